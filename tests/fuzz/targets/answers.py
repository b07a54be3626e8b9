"""Messages of devices to push: answers, forged ones above all, and requests to resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import SECRET_BYTES, PositionTags, read_from
from bridge.errors import ContractError
from bridge.mqtt.presence import PresenceRules
from bridge.mqtt.types import Message, PublishProperties
from bridge.push.device_protocol import parse_answer
from bridge.settings.push import PresenceRule
from tests.fuzz.engine import Case, Check, Target
from tests.support.messages import anything

__all__ = ["ANSWERS"]

_TOPIC: Final = "pulsebridge/answers"
_numbers = st.sampled_from(["0", "1", "-1", "00", "٣", "1_0", " 1", "+1", "9" * 30, "9" * 5000, str(2**63), "", "é"])
_TAGS: Final = PositionTags(bytes(SECRET_BYTES), 3)
_PLACE: Final = CommandPosition(7, 1, -1)
_tags = st.sampled_from(
    [
        _TAGS.tagged(_PLACE, "d").rpartition(".")[2],
        _TAGS.tagged(_PLACE, "other").rpartition(".")[2],
        "A" * 16,
        "é" * 16,
        "",
    ]
)
_positions = st.lists(_numbers, min_size=4, max_size=7).map(tuple) | _tags.map(
    lambda tag: ("0", "3", "7", "1", "-1", tag)
)
_levels = st.lists(_numbers | st.sampled_from(["failed", "repeat", ""]), max_size=8)
_messages = st.tuples(
    st.one_of(
        st.just(f"{_TOPIC}/0/3"),
        _levels.map(lambda levels: "/".join([_TOPIC, *levels])),
        _positions.map(lambda levels: "/".join([_TOPIC, *levels])),
        anything,
    ),
    st.none() | st.binary(max_size=12) | _positions.map(lambda p: ".".join(p).encode()),
    st.lists(st.tuples(st.sampled_from(["failed", "x"]), st.sampled_from(["1", "0", "\ufeff"])), max_size=2).map(tuple),
    st.booleans(),
)
_requests = st.one_of(
    st.binary(max_size=30),
    _positions.map(lambda p: ".".join(p).encode()),
    _positions.map(lambda p: json.dumps({"from": ".".join(p)}).encode()),
    _levels.map(lambda levels: "/".join(levels).encode()),
    st.sampled_from(
        [
            b"earliest",
            b'{"from":null}',
            b'{"from":{}}',
            b"[" * 900,
            b'{"a":' * 150,
            b'"\\ud800"',
            b"\xef\xbb\xbfearliest",
            b"x" * 1025,
        ]
    ),
)
_cases = st.tuples(st.just("answer"), _messages) | st.tuples(st.just("resume"), _requests)


def _answer(one: Any) -> None:
    topic, correlation, user, retain = one
    message = Message(topic, b"p", 1, retain, False, 7, PublishProperties(user=user, correlation_data=correlation))
    PresenceRules((PresenceRule(filter="status/+device"),)).sign(message)
    found = parse_answer(message, _TOPIC, 3)
    if found is None:
        return
    assert not retain
    assert all(-(2**63) <= number < 2**63 for number in found.position), "a position that Pulsar does not have"
    proved = _TAGS.proves(found.tag, found.position, "d")
    assert not proved or found.position == _PLACE, "a tag proves another position"


def _check(case: Case) -> None:
    kind, one = case
    if kind == "answer":
        _answer(one)
        return
    try:
        text, position = read_from(one, "d", _TAGS, earliest=False)
    except ContractError as e:
        e.what.encode()
        return
    assert position == _PLACE
    assert _TAGS.tagged(_PLACE, "d") in text.replace("/", "."), "a request without the tag of its device"


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


ANSWERS: Final = Target(
    "answers",
    "An answer or a request to resume counts only with the tag of its device and position; any other is refused in words.",
    lambda: _cases,
    _opened,
    examples=300,
)
