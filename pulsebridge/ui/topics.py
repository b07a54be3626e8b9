"""What the pages show of Pulsar's topics: devices with their queues, receipts, dead letters; and what they write.

Each function connects for itself, as the commands do, so a page never waits for a connection that hangs elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.contract import COMMANDS_TOPIC, DEAD_LETTERS_TOPIC, NOTE_REPLAYED, RECEIPTS_TOPIC, Receipt
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.dead_letters.log import record_of
from bridge.dead_letters.records import LetterId, Note
from bridge.dead_letters.records import Selection as LetterSelection
from bridge.dead_letters.replay import Replayer, Report
from bridge.errors import ConfigError, ContractError, TerminalError
from bridge.inspect.devices.reading import READER, Budget, PushTopics
from bridge.inspect.devices.view import DeviceView
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, Message, PulsarClient, key_of, message_id
from bridge.pulsar.messages import position_of
from bridge.pulsar.topic_end import ledgers_of, read_partition
from bridge.settings import Settings
from pulsebridge.connection import Connection
from pulsebridge.output.dead_letters import body_of
from pulsebridge.output.devices import read_device
from pulsebridge.output.overview import Overview, Selection
from pulsebridge.ui.rows import clip

__all__ = [
    "Letters",
    "Queues",
    "Receipts",
    "Tail",
    "default_topic",
    "device_state",
    "patient",
    "read_queues",
    "replay",
    "send_command",
]

_BACKLOG: Final = 100_000
"""Most unacknowledged commands of one read."""
_PATIENCE_S: Final = 5.0
_TAIL: Final = 10_000
"""Entries before the end of a partition that the first read takes, and dead letters in memory."""
_PAYLOAD: Final = 256

Row = dict[str, Any]


def patient(settings: Settings) -> Settings:
    """Return settings with which Pulsar's client gives up after five seconds."""
    limited = min(settings.pulsar.operation_timeout, _PATIENCE_S)
    return settings.model_copy(update={"pulsar": settings.pulsar.model_copy(update={"operation_timeout": limited})})


@dataclass(frozen=True)
class Queues:
    """All devices that Pulsar knows, those with the most pending commands first, and their totals."""

    devices: list[tuple[DeviceView, str]] = field(default_factory=list)
    """Each with its presence."""
    totals: dict[str, int] = field(default_factory=lambda: {"devices": 0, "absent": 0, "pending": 0, "parked": 0})
    cut: bool = False
    """Whether more commands wait than were read."""


def read_queues(settings: Settings) -> Queues:
    """Read cursors, presence and backlog. Empty without a commands topic. Raises TransientError without Pulsar."""
    now_us = time.time_ns() // 1000
    overview = Overview(Selection.of(settings), settings.ui.max_devices, now_us)
    budget = Budget(_BACKLOG)
    with _push_topics(settings) as topics:
        if topics is None:
            return Queues()
        overview.read(topics, budget, oldest_of_all=False)
    devices = [(one, overview.selection.presence(one, now_us)) for one in overview.lines]
    return Queues(devices, overview.totals(), budget.spent)


@contextmanager
def _push_topics(settings: Settings) -> Iterator[PushTopics | None]:
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, PulsarClient(settings.pulsar) as client:
        exists = admin.partition_count(settings.pulsar.system_topic(COMMANDS_TOPIC)) > 0
        yield PushTopics(client, admin) if exists else None


class Tail:
    """Reads the newest entries of a system topic, then what follows, at each call. One thread uses it."""

    def __init__(self, local: str) -> None:
        self._local = local
        self._last: dict[str, CommandPosition] = {}

    def read(self, client: PulsarClient) -> Iterator[tuple[int, Message]]:
        """Yield partition and message of each entry that the last call did not."""
        for number, name in enumerate(client.partitioned(client.settings.system_topic(self._local))):
            last = self._last.get(name)
            start, inclusive = EARLIEST, True
            if last is not None:
                start, inclusive = message_id(number, *last), False
            elif (ledgers := ledgers_of(client.settings, name)) is not None:
                begin = ledgers.before_the_end(_TAIL)[0]
                start = EARLIEST if begin is None else message_id(number, *begin)
            messages = read_partition(
                client, name, start=start, inclusive=inclusive, last=last or BEFORE_ALL, queue=200, name=READER
            )
            for message in messages:
                self._last[name] = position_of(message.message_id())
                yield number, message


class Receipts:
    """The last receipt of each device, of the newest ``most`` devices."""

    def __init__(self, most: int) -> None:
        self._tail = Tail(RECEIPTS_TOPIC)
        self._most = most
        self.last: dict[str, tuple[str, int]] = {}
        """State and time in µs, by device."""

    def read(self, client: PulsarClient) -> None:
        """Read new receipts."""
        for _, message in self._tail.read(client):
            device = key_of(message)
            with suppress(ContractError):  # of another program
                receipt = Receipt.decode(message.data())
                if device:
                    self.last.pop(device, None)
                    self.last[device] = receipt.state, message.publish_timestamp() * 1000
                    if len(self.last) > self._most:
                        del self.last[next(iter(self.last))]


class Letters:
    """The newest dead letters, at most 10,000. A letter's payload is clipped."""

    def __init__(self) -> None:
        self._tail = Tail(DEAD_LETTERS_TOPIC)
        self._rows: dict[str, Row] = {}

    def read(self, client: PulsarClient) -> list[Row]:
        """Read new records. Returns the letters, the newest first."""
        for partition, message in self._tail.read(client):
            record = record_of(message, partition)
            if isinstance(record, Note):
                for position in record.replayed if record.kind == NOTE_REPLAYED else ():
                    known = self._rows.get(str(LetterId(partition, position)))
                    if known is not None:
                        known["replayed"] = True
                continue
            self._rows[str(record.id)] = {
                "id": str(record.id),
                "at": record.at_us,
                "device": clip(record.device, 200),
                "topic": clip(record.mqtt_topic or record.target, 200),
                "reason": clip(record.reason, 300),
                "payload": clip("\n".join(body_of(record.payload, _PAYLOAD)), 2 * _PAYLOAD),
                "bytes": len(record.payload) + record.lost_bytes,
                "lost": record.lost_bytes > 0,
                "replayed": False,
            }
            if len(self._rows) > _TAIL:
                del self._rows[next(iter(self._rows))]
        return sorted((dict(row) for row in self._rows.values()), key=lambda row: -int(row["at"]))


def device_state(settings: Settings, device: str) -> Row | None:
    """Return what ``pulsebridge devices show`` does, None without a commands topic."""
    with _push_topics(settings) as topics:
        if topics is None:
            return None
        return read_device(
            topics,
            settings,
            device,
            now_us=time.time_ns() // 1000,
            budget=Budget(_BACKLOG),
            limit=50,
            receipts=20,
        )


def send_command(settings: Settings, device: str, payload: str, topic: str, expires_in: str) -> str:
    """Store a command for a device. Returns its id. Raises ConfigError for an invalid one."""
    fields = {"expires_in": expires_in} if expires_in else {}
    with Connection(settings) as connection:
        sent = connection.send(device, payload, topic=topic or None, **fields)
        return str(sent.commands[0]["command_id"])


def default_topic(settings: Settings, device: str) -> str:
    """Return the MQTT topic of commands to a device, empty if the routes do not name exactly one."""
    with suppress(TerminalError):
        return Connection(settings).command_topic().replace("{device}", device)
    return ""


def replay(settings: Settings, letters: list[str]) -> Report:
    """Replay these dead letters. Raises ConfigError for none or an invalid id, and the errors of a replay."""
    if not letters:  # an empty selection means all
        raise ConfigError("no dead letter is chosen", remedy="choose some")
    selection = LetterSelection(ids=frozenset(map(LetterId.parse, letters)))
    with PulsarClient(settings.pulsar) as client, PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        return Replayer(client, admin, selection).run()
