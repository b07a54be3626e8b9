from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar import Result
from pulsar.exceptions import NotConnected

from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition, encode_command
from bridge.errors import DeniedError, RefusedError, TransientError
from bridge.pulsar import topic_end
from bridge.pulsar.client import MessageId, PulsarClient, ReceiveTimeout, message_id
from bridge.pulsar.topic_end import EVERYTHING, Ledgers, end_of, read_to_end
from bridge.push.actions import FindCommands
from bridge.push.request_log import RequestLog
from bridge.settings import PulsarSettings
from tests.support.stored_message import StoredMessage


def stats(entries: dict[int, int], current: int = 0) -> dict[str, Any]:
    return {
        "ledgers": [{"ledgerId": ledger, "entries": count} for ledger, count in entries.items()],
        "currentLedgerEntries": current,
    }


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 5)), st.integers(0, 5))
def test_the_end_is_the_last_entry_that_is_there(closed: dict[int, int], current: int) -> None:
    ledgers = Ledgers(stats({**closed, 21: 0}, current))
    there = [(ledger, entry) for ledger, count in {**closed, 21: current}.items() for entry in range(count)]
    assert ledgers.end[:2] == max(there, default=BEFORE_ALL[:2])
    for ledger in range(23):
        for entry in range(7):
            assert ledgers.has(CommandPosition(ledger, entry, 3)) == ((ledger, entry) in there)


def test_a_partition_that_was_never_written_has_no_end() -> None:
    assert Ledgers({}).end == BEFORE_ALL


@pytest.mark.parametrize(
    ("reported", "shown", "end"),
    [
        ((5, 7), None, (5, 7)),  # what the broker says of a message is so
        ((-1, -1), stats({5: 8, 9: 0}), (5, 7)),
        ((9, -1), stats({5: 8, 9: 0}), (5, 7)),
        ((-1, -1), stats({5: 8, 9: 0}, current=3), (9, 2)),
        ((-1, -1), stats({9: 0}), BEFORE_ALL[:2]),
        ((-1, -1), DeniedError("internalStats is not for us"), EVERYTHING[:2]),
        ((-1, -1), TransientError("the admin does not answer"), EVERYTHING[:2]),
        ((-1, -1), RefusedError("404: the partition moves"), EVERYTHING[:2]),
    ],
)
def test_h24_a_broker_that_says_nothing_is_there_is_not_believed(
    reported: tuple[int, int], shown: Any, end: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin:
        def __init__(self, *_settings: object, timeout_s: float) -> None: ...

        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_exc: object) -> None: ...

        def internal_stats(self, _topic: str) -> dict[str, Any]:
            if isinstance(shown, Exception):
                raise shown
            assert isinstance(shown, dict)
            return shown

    monkeypatch.setattr(topic_end, "PulsarAdmin", Admin)
    assert end_of(PulsarSettings(), "commands-partition-0", message_id(0, *reported, -1))[:2] == end


class Consumer:
    """A client with no requests, and with a log of one ledger whose end it denies."""

    settings = PulsarSettings()

    def __init__(self, count: int, silences: int) -> None:
        self.count = count
        self.silences = silences
        self.at = 0

    def consumer(self, *_args: object, **_more: object) -> Consumer:
        return self

    reader = consumer

    def read_next(self, _wait_ms: int) -> CommandMessage:
        if self.at == self.count or (self.at == 2 and self.silences):
            self.silences -= 1
            raise ReceiveTimeout("nothing came")
        self.at += 1
        return CommandMessage(self.at - 1)

    def has_message_available(self) -> bool:
        return False

    def close(self) -> None: ...


class CommandMessage(StoredMessage):
    """A command for the device d."""

    def __init__(self, entry: int) -> None:
        super().__init__(entry, "d", b"")

    def properties(self) -> dict[str, str]:
        return encode_command(Command("c", "d", "t", b""))


@pytest.mark.parametrize(
    ("shown", "found"),
    [({3: 5}, [0, 1, 2, 3, 4]), ({3: 2}, [0, 1]), (None, [0, 1]), ("away", [0, 1, 2, 3, 4])],
)
def test_h27_a_search_goes_on_to_its_end_though_the_broker_says_that_it_is_there(
    shown: Any, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_settings: object, _topic: str) -> Ledgers | None:
        if shown == "away":
            raise TransientError("the admin does not answer")
        return None if shown is None else Ledgers(stats(shown))

    monkeypatch.setattr("bridge.pulsar.topic_end.ledgers_of", asked)
    client = cast(PulsarClient, Consumer(5, 2))
    requests = RequestLog(client, "resume", "commands", 0, most_found=9, post=print, failed=print)
    until = CommandPosition(3, 4, -1)
    (one,) = requests._search([FindCommands("d", 1, BEFORE_ALL, until)])
    assert list(one.ids[1::4]) == found


def test_an_admin_that_knows_no_such_partition_is_not_believed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_admin: object, _topic: str) -> Any:
        raise RefusedError("Pulsar's admin refused GET internalStats with 404: Topic not found")

    monkeypatch.setattr("bridge.pulsar.admin.PulsarAdmin.internal_stats", not_found)
    with pytest.raises(TransientError, match="404"):
        topic_end.has_entry(PulsarSettings(), "commands-partition-0", CommandPosition(3, 4, -1))


class Denying:
    """A reader of a partition that the broker has just loaded: it gives what is there, and denies that there is more."""

    def __init__(self, count: int) -> None:
        self._left = [StoredMessage(entry, "d", b"%d" % entry) for entry in range(count)]
        self.closed = False

    def has_message_available(self) -> bool:
        return False

    def read_next(self, _wait_ms: int) -> StoredMessage:
        if not self._left:
            raise ReceiveTimeout("nothing came")
        return self._left.pop(0)

    def close(self) -> None:
        self.closed = True


def shown(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    def asked(_settings: object, _topic: str) -> Ledgers | None:
        if isinstance(what, Exception):
            raise what
        return None if what is None else Ledgers(what)

    monkeypatch.setattr("bridge.pulsar.topic_end.ledgers_of", asked)
    monkeypatch.setattr("bridge.pulsar.topic_end._DENIED_S", 0.0)
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 0.0)


@pytest.mark.parametrize(
    ("ledgers", "read"),
    [(stats({3: 4}), 4), (stats({3: 2}), 2), (stats({}), 0), (stats({3: 9}), 4), (None, 0)],
    ids=["all", "as many as were there", "an empty one", "markers behind", "the admin shows nothing"],
)
def test_h48_a_broker_that_denies_what_is_there_does_not_end_a_reading(
    ledgers: Any, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(monkeypatch, ledgers)
    found = list(read_to_end(Denying(4), PulsarSettings(), "dead-letters"))
    assert [message.data() for message in found] == [b"%d" % entry for entry in range(read)]


class Lost(Denying):
    """A reader whose connection the broker has closed, as it does after the topic was deleted and made again."""

    def __init__(self, count: int, failures: int) -> None:
        super().__init__(count)
        self._failures = failures

    def has_message_available(self) -> bool:
        self._failures -= 1
        if self._failures >= 0:
            raise NotConnected(Result.NotConnected)
        return bool(self._left)


def test_a_reader_without_a_connection_is_given_time_to_connect_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(monkeypatch, stats({3: 2}))
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 30.0)
    assert len(list(read_to_end(Lost(2, 4), PulsarSettings(), "commands"))) == 2
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 0.0)
    with pytest.raises(TransientError, match="reading commands: Pulsar answered NotConnected"):
        list(read_to_end(Lost(0, 9), PulsarSettings(), "commands"))


def test_a_reader_without_a_connection_ends_where_the_ledgers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a partition that was terminated and never written, when commands move (H28)."""
    shown(monkeypatch, stats({3: 0}))
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 0.0)
    assert list(read_to_end(Lost(0, 10**6), PulsarSettings(), "commands")) == []


def test_h48_a_read_without_a_known_end_does_not_count_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown(monkeypatch, TransientError("the admin does not answer"))
    with pytest.raises(TransientError, match="dead-letters to its end: no message arrives"):
        list(read_to_end(Denying(0), PulsarSettings(), "dead-letters"))


class Stuck(Denying):
    """A reader to which the broker gives nothing more from the third message on, until it is moved (seen on Pulsar 4.0.8
    when a compaction ends while the view is read).
    """

    def __init__(self) -> None:
        super().__init__(5)
        self._rest = [StoredMessage(entry, "d", b"%d" % entry) for entry in range(2, 5)]
        del self._left[3:]

    def has_message_available(self) -> bool:
        return bool(self._left or self._rest)

    def seek(self, where: MessageId) -> None:
        assert (where.ledger_id(), where.entry_id()) == (3, 2)
        self._left, self._rest = self._rest, []  # the message at its position comes again


def test_h48_a_reader_that_a_compaction_left_without_a_word_is_moved_to_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where all of it was compacted, which makes silence look like the end."""
    cursors = {"__compaction": {"markDeletePosition": "3:4"}}
    shown(monkeypatch, stats({3: 5}) | {"cursors": cursors, "lastConfirmedEntry": "3:4"})
    monkeypatch.setattr("bridge.pulsar.topic_end._COMPACTED_S", 0.0)
    monkeypatch.setattr("bridge.pulsar.topic_end._PATIENCE_S", 30.0)
    found = list(read_to_end(Stuck(), PulsarSettings(), "cursors", compacted=True))
    assert [message.data() for message in found] == [b"%d" % entry for entry in range(5)]
