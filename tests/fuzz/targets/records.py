"""Records of the compacted topics, from any writer: decoders, and the state that push loads from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from hypothesis import strategies as st

from bridge import contract
from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition, decode_command, encode_command
from bridge.contract.cursors import (
    OWNER_KEY,
    TERM_KEY,
    OwnerRecord,
    Term,
    Unproven,
    key_of_term,
    read_term,
    term_record,
)
from bridge.contract.groups import decode_group_command, member_key, member_of
from bridge.contract.presence import PresenceRecord
from bridge.contract.segments import ParkedId, read_segment, segment_device, segment_key
from bridge.contract.tagged_positions import SECRET_BYTES
from bridge.dead_letters.plan import replay_of
from bridge.dead_letters.records import DeadLetter, LetterId, note_of
from bridge.errors import ContractError
from bridge.inspect.devices.view import PartitionView
from bridge.mqtt.envelope import message_of
from bridge.protocols.records import InstanceRecord, ProtocolRecord
from bridge.push.actions import Push
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords, owner_record
from bridge.push.groups.roster import Change, Roster, owner_of
from bridge.push.partition import Partition
from bridge.routing.mapper import Mapper
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from sources.offsets import Offset
from tests.fuzz.engine import Case, Check, Target
from tests.support.messages import anything
from tests.support.push_limits import Limits

__all__ = ["RECORDS"]

_NOW: Final = 1_700_000_000_000_000
_HUGE: Final = 10**30
_LEAVES: Final = st.sampled_from(
    [
        None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, _HUGE, float("inf"), float("-inf"), float("nan"), 1e308,
        0.5, "", "x", "\0", "\ud800", "9" * 5000, [], {}, [[]], [None], ["x"], {"v": 1}, [1, 2, 3], [2**63] * 5, [0] * 5, [float("inf")] * 4,
    ]
)  # fmt: skip


def _cursor() -> Cursor:
    cursor = Cursor(16, CommandPosition(3, 7, 0))
    for n in range(3):
        cursor.settle(CommandPosition(3, 8 + n, 0), f"c{n}", delivered=n != 1, at_us=_NOW)
    cursor.add_unproven(Unproven(ParkedId(CommandPosition(3, 9, 0), 0, True, True), _NOW))
    cursor.resend_from = CommandPosition(3, 6, -1)
    cursor.resend = [ParkedId(CommandPosition(3, 7, 0), 5, True, True)]
    cursor.online = True
    cursor.maybe_seen_to = CommandPosition(3, 30, 0)
    return cursor


def _records() -> dict[str, list[tuple[str, Any]]]:
    """Valid records by their topic: keys, and bodies as JSON."""
    instance = InstanceRecord(
        "i", "h", 1, "running", 1, 2, 5.0, {"mqtt": ProtocolRecord("", ["a"], {"l": True})}, ["t"], 1
    )
    cursor = _cursor()
    apart, stored = cursor.records("d", all_keys=True)
    segment = {"v": 1, "parked": [3, 31, 0, 0, 0, 3, 32, 0, 9, 3], "since_us": 7}
    encoded: dict[str, list[tuple[str, bytes]]] = {
        "cursors": [
            (stored[0], cursor.encode()),
            (apart[0], apart[1]),
            (segment_key("d", "o", 0), json.dumps(segment).encode()),
            (segment_key("d", "o", 1), json.dumps({**segment, "places": [1, 2, 0, -1, -1, -1]}).encode()),
            (OWNER_KEY, OwnerRecord("t", 1, True).encode()),
            (TERM_KEY, term_record(Term(bytes(SECRET_BYTES)))),
        ],
        "presence": [("d", PresenceRecord(_NOW, "l").encode())],
        "roster": [
            Change(("progress",), {"done": [1, 2, 0], "at": [1, 3, 0], "after": "d"}).encode("o"),
            Change(("group", "g"), {}).encode("o"),
            Change(("member", "g", "d"), {"left": [1, 2, 0]}).encode("o"),
            Change(("open", 1, 3, 0), {"group": "g", "command_id": "c", "mqtt_topic": "t", "expires_at_ms": 5, "size": 3}).encode("o"),
            Change(("owner",), {}).encode("o"),
        ],
        "members": [(member_key("g", "d"), b'{"v":1}')],
        "instances": [("i", instance.encode())],
        "receipts": [("d", Receipt("c", "d", "t", "answered", answer=b"x", attempts=1).encode())],
        "notes": [("", b'["1:2","1:3:0"]')],
        "offsets": [("", json.dumps(Offset("c", {"p": contract.Position(1, 2)}, {"t": "m"}).to_json()).encode())],
        "ingest": [("", contract.encode_ingest(link="l", protocol="5", device="d").encode())],
        "users": [("", contract.encode_user_properties([("a", "b")]).encode())],
    }  # fmt: skip
    return {topic: [(key, json.loads(payload)) for key, payload in some] for topic, some in encoded.items()}


_HONEST: Final = _records()


def _places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for at in body if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ():
        yield from _places(body[at], (*path, at))


def _put(body: Any, path: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    if not path:
        return value
    body = copy.deepcopy(body)
    at = body
    for step in path[:-1]:
        at = at[step]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return body


@st.composite
def _payloads(draw: st.DrawFn, body: Any) -> bytes:
    """A record's payload with some of its values replaced or removed, or bytes that are no JSON, or none."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(
            st.sampled_from(
                [
                    b"",
                    b"null",
                    b"1",
                    b"[]",
                    b"{}",
                    b'"x"',
                    b"\xff",
                    b"[" * 50_000,
                    b'{"v":1' + b"0" * 5000 + b"}",
                    b"NaN",
                    b"1e999",
                    b'{"v":1}',
                ]
            )
            | st.binary(max_size=12)
        )
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(_places(body))))
        body = _put(body, path, draw(_LEAVES), remove=draw(st.integers(0, 3)) == 0)
    payload = json.dumps(body).encode()
    if kind == 1:
        at = draw(st.integers(0, len(payload)))
        payload = payload[:at] + draw(st.binary(max_size=3)) + payload[at + draw(st.integers(0, 2)) :]
    if kind == 2:
        payload = payload.replace(b"1", b"1e999", 1)
    return payload


_keys = st.one_of(
    st.sampled_from(
        [
            "",
            "d",
            "e",
            "\0",
            "\0owner",
            "\0term",
            "\0ids\0",
            "\0ids\0d",
            "\0parked\0o.0\0e",
            "\0parked\0",
            "x" * 5000,
            "[]",
            "null",
            "[1]",
            '["member"]',
            '["open",1,2]',
            '["open","a",{},[]]',
            '["group",[]]',
            '["member",{},"d"]',
            '["progress",1]',
            "[" * 50_000,
            '["open",1e999,1,1]',
        ]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
)


@st.composite
def _record(draw: st.DrawFn, topic: str) -> tuple[str, bytes]:
    key, body = draw(st.sampled_from(_HONEST[topic]))
    return draw(st.just(key) | st.just(key) | _keys), draw(_payloads(body))


_properties = st.dictionaries(
    st.sampled_from([value for name, value in vars(contract).items() if name.startswith(("P_", "C_")) and isinstance(value, str)]),
    anything.map(lambda t: t.encode("utf-8", "replace").decode()) | st.sampled_from(["1", "2", "0", "-1", "9" * 5000, "1e999", "[[1]]", "{}", "[" * 50_000, "1:2:3", "::", "é", "persistent://a/b/c", "persistent://public/pulsebridge/commands", "replayed"]),
    max_size=6,
)  # fmt: skip


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    kind = draw(
        st.sampled_from(["fold", "fold", "fold", "properties", *(t for t in _HONEST if t != "cursors"), "cursor"])
    )
    if kind == "fold":
        terms = st.sampled_from(["0.1", "0.5", ""])
        return kind, draw(st.lists(st.tuples(terms, _record("cursors")).map(lambda one: (*one[1], one[0])), max_size=8))
    if kind == "properties":
        properties = draw(_properties)
        if draw(st.booleans()):
            properties = encode_command(Command("c", "d", "t", b"")) | properties
        return kind, properties, draw(st.binary(max_size=6))
    if kind == "roster":
        return kind, draw(st.lists(_record("roster"), min_size=1, max_size=5))
    return kind, *draw(_record("cursors" if kind == "cursor" else kind))


def _fold(records: list[tuple[str, bytes, str]]) -> None:
    """Do what an owner does, leaving out what raises ContractError; the honest device still gets its command."""
    view = PartitionView(0)
    found = CursorRecords(16)
    for entry, (plain, payload, term) in enumerate(records):
        key = plain if segment_device(plain) or plain == OWNER_KEY else key_of_term(plain, term)
        with suppress(ContractError):
            owner_record(key, payload)
        with suppress(ContractError):
            found.take(key, payload, CommandPosition(0, entry, -1))
        view.take_record(key, payload)
    for _ in range(len(records) + 1):
        with suppress(ContractError):
            found.whole()
            break
    list(view.devices())
    limits = Limits(remembered_ids=16, answers=False)
    core = Partition(0, limits.nested(), found.by_device, None, found.parked, owner="o", now_us=_NOW)
    core.link_up()
    position, command = CommandPosition(2**40, 0, -1), Command("honest", "honest", "t", b"x")
    core.arrived(position, command, _NOW)
    actions = core.take(_NOW)
    core.tick(_NOW + 10_000_000)
    actions += core.take(_NOW + 10_000_000)
    assert any(isinstance(one, Push) and one.command == command for one in actions), "an honest device's command waits"
    for name in core.devices.with_cursors:
        cursor = core.devices.cursor_of(name)
        if cursor is not None:
            for key, payload in cursor.records(name):
                _again(key, payload)


def _again(key: str, payload: bytes) -> None:
    """What push writes of a cursor that it read, it reads again."""
    found = CursorRecords(16)
    found.take(key, payload)
    found.whole()


def _of_cursors(key: str, payload: bytes) -> None:
    with suppress(ContractError):
        read_segment(payload)
    with suppress(ContractError):
        Cursor.decode(payload, 16)
    with suppress(ContractError):
        _cursor().with_ids(payload)
    with suppress(ContractError):
        OwnerRecord.decode(payload)
    with suppress(ContractError):
        read_term(payload)
    with suppress(ContractError):
        owner_record(key, payload)


def _roster(records: list[tuple[str, bytes]]) -> None:
    roster = Roster()
    for key, payload in records:
        with suppress(ContractError):
            owner_of(key, payload)
        with suppress(ContractError):
            roster.take(key, payload)
    roster.standing()
    roster.forgotten()
    for one in roster.open.values():
        one.expired(_NOW)
    sorted(roster.open)
    sorted(roster.left.values())
    assert roster.progress.in_between in (True, False)


def _instance(_key: str, payload: bytes) -> None:
    record = InstanceRecord.decode(payload)
    record.gone(_NOW // 1000)
    record.encode()


def _offset(_key: str, payload: bytes) -> None:
    with suppress(ValueError, RecursionError):  # Spark gives nothing that is no JSON
        body = json.loads(payload)
        if isinstance(body, dict):
            Offset.from_json(body)


_MAPPER: Final = Mapper(Settings())


def _of_properties(properties: dict[str, str], payload: bytes) -> None:
    for read in (decode_command, decode_group_command):
        with suppress(ContractError):
            read(properties, payload)
    with suppress(ContractError):
        contract.full_envelope(properties)
    with suppress(ContractError):
        message_of(payload, properties)
    note_of(properties, payload)
    letter = DeadLetter(LetterId(0, CommandPosition(1, 2, 0)), "k", payload, properties, 0, 1)
    assert letter.at_us >= 0
    assert isinstance(letter.lost_bytes, int)
    assert isinstance(letter.target + letter.reason + letter.device, str)
    replay_of(letter, PulsarSettings())
    replay_of(letter, PulsarSettings(), _MAPPER)


_DECODERS: Final[dict[str, Callable[[str, bytes], object]]] = {
    "cursor": _of_cursors,
    "presence": lambda key, payload: PresenceRecord.decode(payload),
    "members": member_of,
    "instances": _instance,
    "receipts": lambda key, payload: Receipt.decode(payload).encode(),
    "notes": lambda key, payload: note_of({contract.P_DEAD_NOTE: contract.NOTE_REPLAYED}, payload),
    "offsets": _offset,
    "ingest": lambda key, payload: contract.decode_ingest(payload.decode("utf-8", "replace")),
    "users": lambda key, payload: contract.decode_user_properties(payload.decode("utf-8", "replace")),
}


def _check(case: Case) -> None:
    kind = case[0]
    if kind == "fold":
        _fold(case[1])
    elif kind == "roster":
        _roster(case[1])
    elif kind == "properties":
        _of_properties(case[1], case[2])
    else:
        with suppress(ContractError):
            _DECODERS[kind](case[1], case[2])


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


RECORDS: Final = Target(
    "records",
    "A decoder of stored records raises nothing but ContractError, and what push makes of a partition's records, the "
    "unreadable ones left out, still serves an honest device.",
    _cases,
    _opened,
    examples=250,
)
