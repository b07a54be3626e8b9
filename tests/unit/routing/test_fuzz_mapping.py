"""Fuzzing of mapping and envelope: whatever rules, topics and messages come, nothing raises, vanishes or escapes.

The invariant: rules are refused with a reason or taken; under rules that are taken, each message has one Pulsar topic
in a listed namespace, or is a dead letter with a reason, or is left out as no reading; what is written is text that
Pulsar takes and below its limit; and two MQTT topics meet in one topic and key only where a rule says so.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bridge import contract
from bridge.dead_letters.letters import HEAD_BYTES, MAX_PROPERTIES_BYTES, dead_letter
from bridge.errors import ConfigError, ContractError
from bridge.mqtt.envelope import Envelope, message_of
from bridge.mqtt.types import Message, PublishProperties
from bridge.routing.mapper import LeftOut, Mapper, PerMessage, Route
from bridge.routing.rules import mapping_problems, subscriptions
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from tests.support.messages import anything, messages

PULSAR = PulsarSettings(namespaces=("acme/a", "acme/b"))
ENVELOPE = Envelope(link="l", protocol="5", mark=True)
LISTED = tuple(f"persistent://{name}/" for name in PULSAR.readings_namespaces)

filters = st.lists(
    st.sampled_from(["a", "b", "s", "", "+", "+x", "+y", "+device", "#", "#rest", "$SYS", "a+", "+a b"]),
    min_size=1,
    max_size=4,
).map("/".join)
pieces = st.sampled_from(
    [
        "{x}",
        "{y}",
        "{device}",
        "{rest}",
        "{level1}",
        "{level2}",
        "{mqtt_topic}",
        "{json:$.id}",
        "{user:u}",
        "{json:}",
        "a",
        "b",
        "-",
        "/",
        ".",
        "acme/",
        "__",
        "-partition-",
        "{",
        "}",
        "{}",
        "{x!r}",
        "{x:3}",
        "é",
        "+",
    ]
)
written = st.text(max_size=12)  # what a file can contain
templates = st.one_of(st.lists(pieces, min_size=1, max_size=3).map("".join), written)
optional = st.none() | templates


@st.composite
def rules(draw: st.DrawFn) -> TopicRule:
    return TopicRule(
        name=draw(st.sampled_from(["r1", "r2", "r3", "default"])),
        filter=draw((filters | written).filter(bool)),
        topic=draw(st.sampled_from(["a", "b", "{level1}"]) | templates),
        key=draw(optional),
        device=draw(optional),
        command_topic=draw(st.none() | st.sampled_from(["c/{device}", "{level1}/set"]) | templates),
        namespace=draw(st.none() | st.sampled_from(["acme/a", "acme/{x}", "{rest}"]) | templates),
        shared=draw(st.booleans()),
    )


@st.composite
def sound_rules(draw: st.DrawFn) -> TopicRule:
    """Most of these are taken, so that their messages are what is tried."""
    return TopicRule(
        name=draw(st.sampled_from(["r1", "r2", "r3"])),
        filter=draw(st.sampled_from(["a/+device/#", "+device/+x", "+/+device", "s/+device/+x", "#", "+device", "a/b"])),
        topic=draw(st.sampled_from(["a", "s", "{level1}", "{level1}-a"])),
        key=draw(st.sampled_from([None, None, "{mqtt_topic}", "{json:$.id}", "{level1}/{user:u}"])),
        device=draw(st.sampled_from([None, None, "{device}", "{level1}", "a", "{json:$.id}"])),
        command_topic=draw(st.sampled_from([None, None, "c/{device}", "{level1}/b"])),
        namespace=draw(st.sampled_from([None, None, "acme/a", "acme/{level1}"])),
        shared=draw(st.sampled_from([False, False, True])),
    )


class Placed(NamedTuple):
    topic: str
    key: str
    rule: str | None


def placed(mapper: Mapper, message: Message) -> Placed | None:
    """Take a message the way that ingest does, and check what is written; None when it is left out."""
    way = mapper.route(message.topic)
    if isinstance(way, PerMessage):
        way = way.of(message.payload, message.properties.user if message.properties is not None else ())
    if isinstance(way, LeftOut):
        assert way.reason in ("broker", "command")
        return None
    properties = ENVELOPE.of(message, ENVELOPE.of_topic(message.topic, way if isinstance(way, Route) else None))
    payload = message.payload
    assert all(name.encode() and value.encode() is not None for name, value in properties.items())
    if isinstance(way, Route):
        assert properties[contract.P_TOPIC] == message.topic
        topic = way.topic
        assert topic.startswith(LISTED)
        assert re.fullmatch(r"persistent://[\w.=:-]+/[\w.=:-]+/[A-Za-z0-9_.=-]{1,240}", topic)
        assert "-partition-" not in topic
        assert "/__" not in topic
        assert way.key.encode()
        if way.command_topic is not None:
            assert not set("+#\0") & set(way.command_topic)
            assert isinstance(mapper.route(way.command_topic), LeftOut)  # H8: it never comes back as a reading
        return Placed(topic, way.key, way.rule)
    assert way.reason
    assert way.reason.encode()
    assert not way.topic or way.topic.startswith(LISTED)
    kept, properties = dead_letter(
        payload, topic=way.topic, device="", reason=way.reason, at_us=1, properties=properties
    )
    assert kept == payload
    assert all(value.encode() is not None for value in properties.values())
    return Placed(PULSAR.system_topic(contract.DEAD_LETTERS_TOPIC), properties[contract.P_TOPIC], None)


FUZZ = settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))


@FUZZ
@given(
    st.lists(rules() | sound_rules(), max_size=3),
    st.lists(filters | written, max_size=2),
    st.booleans(),
    st.lists(messages(), min_size=1, max_size=6),
)
def test_no_rule_and_no_message_raises_vanishes_or_escapes(
    some: list[TopicRule], own_filters: list[str], loopback: bool, arrived: list[Message]
) -> None:
    ingest = IngestSettings(
        routes=tuple(some), filters=tuple(own_filters), allow_loopback=loopback, limits={"topics": 3}
    )
    problems = mapping_problems(ingest, PULSAR)
    assert all(problem.startswith("ingest") for problem in problems)
    if problems:
        try:
            Mapper(Settings(ingest=ingest, pulsar=PULSAR))
        except ConfigError:
            return
        raise AssertionError(f"taken in spite of {problems}")
    assert subscriptions(ingest)
    mapper = Mapper(Settings(ingest=ingest, pulsar=PULSAR))
    for message in arrived:
        placed(mapper, message)
        mapper.explain(message.topic, message.payload)
    assert mapper.topics <= 3 * (len(some) + 1)


@FUZZ
@given(st.lists(sound_rules(), min_size=1, max_size=3), st.lists(messages(), min_size=2, max_size=6))
def test_mqtt_topics_share_a_pulsar_key_only_by_a_rule(some: list[TopicRule], arrived: list[Message]) -> None:
    ingest = IngestSettings(routes=tuple(some), allow_loopback=True)
    assume(not mapping_problems(ingest, PULSAR))
    mapper = Mapper(Settings(ingest=ingest, pulsar=PULSAR))
    by_name = {rule.name: rule for rule in some}
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for message in arrived:
        found = placed(mapper, message)
        if found is None or found.rule is None:
            continue
        topic, rule = seen.setdefault((found.topic, found.key), (message.topic, found.rule))
        if topic == message.topic:
            continue
        if rule == found.rule:
            route = by_name[rule]
            assert route.key or route.device
        else:
            assert any(name in by_name and by_name[name].shared for name in (rule, found.rule))


@FUZZ
@given(
    st.binary(max_size=30),
    st.dictionaries(st.sampled_from([n for n in dir(contract) if n[:2] == "P_"]), anything),
)
def test_any_envelope_is_read_back_or_refused(payload: bytes, fields: dict[str, str]) -> None:
    try:
        found = message_of(payload, {getattr(contract, name): text for name, text in fields.items()})
    except ContractError:
        return
    assert found.payload == payload


@FUZZ
@given(messages())
def test_a_stored_envelope_is_read_back(message: Message) -> None:
    assume(all(text.encode("utf-8", "replace").decode() == text for text in [message.topic, *_texts(message)]))
    route = Route("r", "l", "k", None, None)
    properties = ENVELOPE.of(message, ENVELOPE.of_topic(message.topic, route))
    again = message_of(message.payload, properties)
    same = message.properties if message.properties != PublishProperties() else None
    assert again == message._replace(mid=0, properties=same)


def _texts(message: Message) -> list[str]:
    own = message.properties or PublishProperties()
    return [text for pair in own.user for text in pair] + [own.content_type or "", own.response_topic or ""]


@FUZZ
@given(
    st.lists(st.tuples(st.sampled_from(["a", "é", "\U0001f600"]), st.integers(0, 700_000)), max_size=6),
    st.integers(0, 3),
)
def test_h5_a_dead_letter_s_properties_stay_below_pulsar_s_limit(sizes: list[tuple[str, int]], user: int) -> None:
    own = {f"p{number}": text * length for number, (text, length) in enumerate(sizes)}
    own[contract.P_USER] = contract.encode_user_properties([("n", "v" * 400_000)] * user)
    kept, properties = dead_letter(b"x" * 10, topic="t", device="d", reason="r", at_us=1, properties=own)
    assert sum(len(name) + len(value.encode()) for name, value in properties.items()) <= MAX_PROPERTIES_BYTES + 4096
    assert kept == b"x" * 10
    cut = json.loads(properties.get(contract.P_DEAD_CUT, "{}"))
    for name, value in own.items():
        if name in cut:
            assert cut[name][0] == len(value.encode())
            assert value.startswith(properties.get(name, ""))
        else:
            assert properties[name] == value
    assert contract.decode_user_properties(properties.get(contract.P_USER, "[]")) is not None
    assert HEAD_BYTES <= MAX_PROPERTIES_BYTES
