"""Any message under any rules: what becomes of it, and the names that come out of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from hypothesis import strategies as st

from bridge import contract
from bridge.contract.names import name_problem
from bridge.dead_letters.letters import dead_letter
from bridge.errors import ConfigError
from bridge.mqtt.envelope import Envelope, message_of
from bridge.mqtt.types import Message, PublishProperties
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.routing.rules import mapping_problems
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from tests.fuzz.engine import Case, Check, Target
from tests.support.messages import arriving, messages

__all__ = ["ENVELOPE"]

_PULSAR: Final = PulsarSettings(namespaces=("acme/a", "acme/b"))
_LISTED: Final = tuple(f"persistent://{name}/" for name in _PULSAR.readings_namespaces)
_ENVELOPE: Final = Envelope(link="l", protocol="5", mark=True)
_TOPIC: Final = re.compile(r"persistent://[\w.=:-]+/[\w.=:-]+/[A-Za-z0-9_.=-]{1,240}")

_filters = st.sampled_from(
    ["a/+device/#", "+device/+x", "+/+device", "s/+device/+x", "#", "+device", "a/b", "+x/#rest", "a/#rest"]
)
_rules = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["r1", "r2", "r3"]),
        "filter": _filters,
        "topic": st.sampled_from(["a", "s", "{level1}", "{level1}-a", "{x}", "{device}"]),
        "key": st.sampled_from([None, None, "{mqtt_topic}", "{json:$.id}", "{level1}/{user:u}", "{rest}"]),
        "device": st.sampled_from([None, None, "{device}", "{level1}", "a", "{json:$.id}", "{user:u}", "{rest}"]),
        "command_topic": st.sampled_from([None, None, "c/{device}", "{level1}/b"]),
        "namespace": st.sampled_from([None, None, "acme/a", "acme/{level1}"]),
        "shared": st.booleans(),
    }
)
_long = st.sampled_from([1023, 1024, 1025, 65_535, 200_000])


@st.composite
def _messages(draw: st.DrawFn) -> tuple[Any, ...]:
    """A message as a plain tuple; sometimes with a name of a length around the limit or far beyond."""
    # The link and the HTTP handler decode UTF-8 strictly and refuse U+0000, so that no other texts arrive.
    message = draw(messages(arriving))
    kind = draw(st.sampled_from(["as it is", "as it is", "json", "topic", "user"]))
    if kind == "json":
        message = message._replace(
            payload=json.dumps({"id": draw(st.sampled_from(["x", "é", "\ufeff", "\u2028"])) * draw(_long)}).encode()
        )
    elif kind == "topic":
        message = message._replace(topic="a/" + "y" * min(draw(_long), 65_533) + draw(st.sampled_from(["", "/z"])))
    elif kind == "user":
        message = message._replace(properties=PublishProperties(user=(("u", "v" * min(draw(_long), 65_535)),)))
    return (*message[:6], None if message.properties is None else tuple(message.properties))


def _cases() -> st.SearchStrategy[Case]:
    return st.tuples(st.lists(_rules, max_size=3), st.lists(_messages(), min_size=1, max_size=4))


def _check(case: Case) -> None:
    some, arrived = case
    ingest = IngestSettings(routes=tuple(TopicRule(**one) for one in some), allow_loopback=True, limits={"topics": 3})
    if mapping_problems(ingest, _PULSAR):
        try:
            Mapper(Settings(ingest=ingest, pulsar=_PULSAR))
        except ConfigError:
            return
        raise AssertionError("rules with problems are taken")
    mapper = Mapper(Settings(ingest=ingest, pulsar=_PULSAR))
    for one in arrived:
        properties = None if one[6] is None else PublishProperties(*one[6])
        message = Message(*one[:6], properties)
        _placed(mapper, message)
        mapper.explain(message.topic, message.payload)
    assert mapper.topics <= 3 * (len(ingest.routes) + 1)  # as many for what no rule matches


def _placed(mapper: Mapper, message: Message) -> None:
    way = mapper.route(message.topic)
    if isinstance(way, PerMessage):
        way = way.of(message.payload, () if message.properties is None else message.properties.user)
    assert isinstance(way, Route | NoRoute | LeftOut | ResumeAsked), way
    if isinstance(way, LeftOut | ResumeAsked):
        return
    properties = _ENVELOPE.of(message, _ENVELOPE.of_topic(message.topic, way if isinstance(way, Route) else None))
    for name, value in properties.items():
        name.encode()
        value.encode()
    same = message.properties if message.properties != PublishProperties() else None
    again = message_of(message.payload, contract.full_envelope(properties))
    assert again == message._replace(mid=0, properties=same), f"{again} instead of {message}"
    if isinstance(way, Route):
        topic = way.topic
        assert topic.startswith(_LISTED)
        assert _TOPIC.fullmatch(topic)
        assert "-partition-" not in topic
        names = [one for one in (way.key, way.device) if one is not None and one != message.topic]
        problems = [problem for problem in map(name_problem, names) if problem is not None]
        assert not problems, f"a name {problems[0]}"
        return
    assert way.reason.encode()
    assert not way.topic or way.topic.startswith(_LISTED)
    kept, properties = dead_letter(
        message.payload, topic=way.topic, device="", reason=way.reason, at_us=1, properties=properties
    )
    size = len(kept) + sum(len(name) + len(value.encode()) for name, value in properties.items())
    assert size <= 5 * 1024 * 1024 - 64 * 1024, f"a dead letter of {size} bytes"


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


ENVELOPE: Final = Target(
    "envelope",
    "A message has one outcome: a listed topic with names within the limit, a dead letter that fits, or a reason why it is no "
    "reading; and its envelope is read back.",
    _cases,
    _opened,
    examples=100,
)
