"""A generation of the commands: its topics, and its positions (H28)."""

from __future__ import annotations

import pytest

from bridge.contract import GENERATION_TOPICS, RECEIPTS_TOPIC
from bridge.contract.commands import Command, CommandPosition
from bridge.contract.tagged_positions import PositionTags, read_from
from bridge.errors import ContractError
from bridge.push.actions import StoreReceipt
from bridge.push.partition import Partition
from bridge.settings.pulsar import PulsarSettings
from tests.support.push_limits import Limits

AT = CommandPosition(7, 3)


def test_a_generation_has_topics_of_its_own_and_shares_the_others() -> None:
    first, second = PulsarSettings(), PulsarSettings(command_generation=2)
    for local in GENERATION_TOPICS:
        assert second.system_topic(local) == f"{first.system_topic(local)}-2"
    assert second.system_topic(RECEIPTS_TOPIC) == first.system_topic(RECEIPTS_TOPIC)


def test_a_position_of_another_generation_is_refused_by_its_name() -> None:
    old, new = PositionTags(b"secret", 1), PositionTags(b"secret", 1, 2)
    assert read_from(new.tagged(AT, "d").encode(), "d", new, earliest=False)[1] == AT
    with pytest.raises(ContractError, match="of generation 0 of the commands, they are at 2"):
        read_from(old.tagged(AT, "d").encode(), "d", new, earliest=False)


def test_h28_a_receipt_names_the_generation_of_its_command_because_all_share_one_receipts_topic() -> None:
    core = Partition(1, Limits().nested(), {}, None, generation=2)
    core.link_up(reports_absence=True)
    core.arrived(AT, Command("c", "d", "t", b"x", expires_at_ms=1), 2_000)
    (receipt,) = [one.receipt for one in core.take(2_000) if isinstance(one, StoreReceipt)]
    assert CommandPosition.decode(receipt.position) == (2, 1, AT)
