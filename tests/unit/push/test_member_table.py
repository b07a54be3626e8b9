"""The memberships that Spark wrote, read from a Pulsar that stalls."""

from __future__ import annotations

import time
from typing import cast

import pytest

from bridge.contract.groups import MEMBER, member_key
from bridge.errors import TransientError
from bridge.pulsar.client import EARLIEST, MessageId, PulsarClient, ReceiveTimeout, message_id
from bridge.pulsar.topic_end import Ledgers
from bridge.push.groups.log import Stopped
from bridge.push.groups.owner import MemberTable
from bridge.push.groups.roster import Membership
from bridge.settings import PulsarSettings


class Record:
    def __init__(self, number: int) -> None:
        self._number = number

    def message_id(self) -> MessageId:
        return message_id(0, 1, self._number, -1)

    def partition_key(self) -> str:
        return member_key("presses", f"d{self._number}")

    def data(self) -> bytes:
        return MEMBER


class View:
    """The compacted view of five memberships: nothing comes of it ``stalls`` times before the third. ``cut``: what
    Pulsar says to be its end was compacted away.
    """

    settings = PulsarSettings()

    def __init__(self, stalls: int = 0, *, cut: bool = False) -> None:
        self._left = [Record(number) for number in range(5)]
        self._stalls = stalls
        self._cut = cut
        self.raw_from: MessageId | None = None

    def reader(self, _topic: str, start: MessageId, *, compacted: bool = False, **_more: object) -> object:
        if compacted:
            assert start == EARLIEST
            return self
        self.raw_from = start
        return Quiet()

    def has_message_available(self) -> bool:
        return bool(self._left) or self._cut

    def read_next(self, _wait_ms: int) -> Record:
        if len(self._left) == 3 and self._stalls:
            self._stalls -= 1
            raise ReceiveTimeout("nothing came")
        if not self._left:
            raise ReceiveTimeout("nothing came")
        return self._left.pop(0)

    def seek(self, where: MessageId) -> None:
        """Nothing changes: what is silent goes on by itself."""

    def close(self) -> None:
        pass


class Quiet:
    """A topic without a writer."""

    def has_message_available(self) -> bool:
        return False

    def read_next(self, wait_ms: int) -> None:
        time.sleep(wait_ms / 1000)
        raise ReceiveTimeout("nothing came")

    def close(self) -> None:
        pass


def shows(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    ledgers = Ledgers(
        {
            "ledgers": [{"ledgerId": 1, "entries": entries}],
            "cursors": {"__compaction": {"markDeletePosition": f"1:{entries - 1}"}},
            "lastConfirmedEntry": f"1:{entries - 1}",
        }
    )
    monkeypatch.setattr("bridge.pulsar.topic_end.ledgers_of", lambda _settings, _topic: ledgers)


class DeniedView(View):
    """Says at first that nothing is there, as a broker that has just restarted does now and then."""

    def has_message_available(self) -> bool:
        return len(self._left) < 5 and super().has_message_available()


def test_h24_a_broker_that_says_nothing_is_there_costs_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    shows(monkeypatch, 5)
    membership = Membership([])
    MemberTable(cast(PulsarClient, DeniedView(3)), membership).close()
    assert len(membership.members("presses")) == 5


@pytest.mark.parametrize("view", [View(), View(3), View(cut=True), View(3, cut=True)])
def test_all_of_the_compacted_view_is_read_before_what_comes_is_followed(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind a stall stands nowhere else when Pulsar has trimmed the topic."""
    monkeypatch.setattr("bridge.pulsar.topic_end._COMPACTED_S", 0.1)
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 0.5)
    shows(monkeypatch, 5)
    membership = Membership([])
    table = MemberTable(cast(PulsarClient, view), membership)
    table.close()
    assert membership.members("presses") == {f"d{number}" for number in range(5)}
    assert view.raw_from == message_id(0, 1, 4, -1)


def test_a_process_that_is_to_end_waits_for_no_membership() -> None:
    with pytest.raises(Stopped):
        MemberTable(cast(PulsarClient, View(10**9)), Membership([]), lambda: True)


class Followed:
    """The log of a table behind its view; ``hides`` messages come only after a second request each."""

    def __init__(self, count: int, hides: int = 0) -> None:
        self._left = [Record(100 + number) for number in range(count)]
        self._hides = hides
        self.waits: list[int] = []

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, wait_ms: int) -> Record:
        self.waits.append(wait_ms)
        self._hides -= 1
        if not self._left or self._hides >= 0:
            raise ReceiveTimeout("nothing came")
        return self._left.pop(0)

    def close(self) -> None:
        pass


class FollowedView(View):
    """A view whose log behind it is ``followed``."""

    def __init__(self, followed: Followed) -> None:
        super().__init__()
        self._followed = followed

    def reader(self, _topic: str, start: MessageId, *, compacted: bool = False, **more: object) -> object:
        return super().reader(_topic, start, compacted=compacted, **more) if compacted else self._followed


def following(followed: Followed, *, over: bool = False) -> tuple[MemberTable, Membership]:
    membership, ends = Membership([]), [False]
    client = cast(PulsarClient, FollowedView(followed))
    table = MemberTable(client, membership, lambda: ends[0])
    ends[0] = over
    return table, membership


def test_a_group_command_waits_for_no_membership_that_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shows(monkeypatch, 5)
    quiet = Followed(0)
    table, _ = following(quiet)
    table.take_all()
    assert quiet.waits == [], "Pulsar says that nothing is there"
    table.take()
    assert quiet.waits == [0]


def test_all_that_was_written_before_is_taken_however_slowly_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shows(monkeypatch, 5)
    table, membership = following(Followed(3, hides=4))
    table.take_all()
    assert membership.members("presses") >= {"d100", "d101", "d102"}


def test_a_membership_that_does_not_load_is_reported_and_does_not_delay_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 0.0)
    shows(monkeypatch, 5)
    with pytest.raises(TransientError, match="group-members"):
        following(Followed(1, hides=10**9))[0].take_all()
    with pytest.raises(Stopped):
        following(Followed(1, hides=10**9), over=True)[0].take_all()
