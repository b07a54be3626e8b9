"""The replayed dead letters are known although the broker denies that their topic has anything."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from bridge.contract import P_DEAD_REASON
from bridge.contract.commands import CommandPosition
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.records import replayed_note
from bridge.intake.provisioning import provision
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings
from tests.support.denying_pulsar import DenyingPulsar

pytestmark = pytest.mark.stack


def test_h48_a_replay_knows_what_was_replayed_though_the_broker_denies_it(namespaces: PulsarSettings) -> None:
    """Pulsar 4.0 does so now and then of a partition that it has just loaded; here each time."""
    with PulsarAdmin(namespaces, timeout_s=30) as admin, PulsarClient(namespaces) as client:
        provision(admin)
        partition = DeadLetterLog(client).partitions[0]
        producer = client.producer(partition, batching=False)
        letter = producer.send(b"letter", properties={P_DEAD_REASON: "x"})
        place = CommandPosition(letter.ledger_id(), letter.entry_id(), letter.batch_index())
        payload, properties = replayed_note([place])
        producer.send(payload, properties=properties)
        producer.close()
    parts = urlsplit(namespaces.service_url)
    with DenyingPulsar(parts.hostname or "", parts.port or 6650) as broker:
        denied = namespaces.model_copy(update={"service_url": broker.service_url})
        with PulsarClient(denied) as client:
            assert DeadLetterLog(client).replayed(0) == {place}
    assert broker.denied
