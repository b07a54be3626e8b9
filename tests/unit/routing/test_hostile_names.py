"""Names and topics that devices invent: what is refused, what is bounded, and who is left alone."""

from __future__ import annotations

import json

import pulsar
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge import contract
from bridge.bounded_map import BoundedMap
from bridge.dead_letters import dead_letter, letter_key
from bridge.routing.mapper import Mapper, NoRoute, Outcome, PerMessage, ResumeAsked, Route
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.pulsar import PulsarSettings

GATEWAY = TopicRule(name="gateway", filter="gw/+id", topic="gateway", device="{json:$.device}", key="{json:$.key}")
CHANNELS = TopicRule(name="channels", filter="c/+device/+channel", topic="c-{device}-{channel}", device="{device}")
FIXED = TopicRule(name="fixed", filter="f/+device", topic="fixed", device="{device}")


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, NoRoute), outcome
    return outcome.reason


@pytest.mark.parametrize("what", ["device", "key"])
def test_h35_a_name_from_the_payload_has_the_limit(what: str) -> None:
    found = Mapper(Settings(ingest=IngestSettings(routes=(GATEWAY,)), max_name_bytes=64)).route("gw/1")
    assert isinstance(found, PerMessage)
    names = {"device": "d", "key": "k"}
    assert isinstance(found.of(json.dumps(names | {what: "ü" * 32}).encode(), ()), Route)
    refused = found.of(json.dumps(names | {what: "x" * 1_000_000}).encode(), ())
    assert reason(refused) == f"rule gateway: the {what} has 1000000 bytes, max_name_bytes is 64"


@pytest.mark.parametrize("topic", ["f/{}", "gone/{}", "c/{}/t", "pulsebridge/resume/{}"])
def test_h35_a_name_from_the_topic_has_the_limit_and_names_no_pulsar_topic(topic: str) -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(FIXED, CHANNELS)), max_name_bytes=64))
    assert isinstance(mapper.route(topic.format("d" * 50)), Route | ResumeAsked)
    named = mapper.topics
    assert "max_name_bytes is 64" in reason(mapper.route(topic.format("d" * 65)))
    assert mapper.topics == named


@given(st.lists(st.tuples(st.text(max_size=300), st.integers()), max_size=100))
def test_h35_a_map_from_names_keeps_the_youngest_within_its_bytes(puts: list[tuple[str, int]]) -> None:
    kept: BoundedMap[int] = BoundedMap(4000, each=100, copies=2)
    for name, value in puts:
        room = kept.has_room(name)
        before = dict(kept)
        kept.put(name, value)
        assert kept.bytes <= 4000
        assert kept.bytes == sum(map(kept._cost, kept))
        if room:
            assert kept == before | {name: value}
    youngest = list(dict.fromkeys(name for name, _ in reversed(puts)))[: len(kept)]
    assert list(reversed(kept)) == youngest


def test_h35_a_map_stays_within_its_bytes_when_pulsar_s_client_has_seen_its_names() -> None:
    """Its conversion to UTF-8 stays with each str, so that ``sys.getsizeof`` then says more than before."""
    kept: BoundedMap[int] = BoundedMap(40_000, each=100, copies=5)
    for number in range(2000):
        name = f"{number}" + "é" * 60
        kept.put(name, number)
        pulsar.AuthenticationToken(name)  # any text that the client takes will do
        assert kept.bytes == sum(map(kept._cost, kept))
    assert len(kept) < 100


NAMES = st.text(st.sampled_from("aé\U0001f600"), max_size=40).map(lambda text: text * 50)


@given(st.dictionaries(NAMES, NAMES, max_size=60), NAMES, NAMES, st.integers(16_384, 100_000))
@example({"\U0001f600" * number: "a" * 100 for number in range(236, 256)}, "", "a" * 50, 16_384)
def test_h35_a_dead_letter_fits_whatever_the_message(own: dict[str, str], device: str, why: str, most: int) -> None:
    own = {f"{number}{name}": value * 20 for number, (name, value) in enumerate(own.items())}
    _, properties = dead_letter(
        b"",
        topic="t" * 70_000,
        device=device * 30,
        reason=why * 30,
        at_us=1,
        properties=own,
        properties_bytes=most,
    )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    assert size <= most + 20_000
    assert properties[contract.P_DEAD_AT] == "1"
    assert properties[contract.P_DEAD_TOPIC].startswith("t" * 1000)
    assert len(letter_key(device * 30).encode()) <= 16_384


def test_h46_a_route_that_used_up_its_topics_takes_none_of_another() -> None:
    mapper = Mapper(
        Settings(ingest=IngestSettings(routes=(CHANNELS, FIXED), limits={"topics": 4, "topics_per_device": 2}))
    )
    assert isinstance(mapper.route("c/a/1"), Route)
    assert isinstance(mapper.route("c/a/2"), Route)
    assert "the device has 2 Pulsar topics of route channels" in reason(mapper.route("c/a/3"))
    for device in range(100):
        mapper.route(f"c/d{device}/1")
        mapper.route(f"invented-{device}/1")
    assert "route channels has 4 Pulsar topics, ingest.limits.topics is 4" in reason(mapper.route("c/b/1"))
    assert "route default has 4 Pulsar topics" in reason(mapper.route("late/1"))
    assert isinstance(mapper.route("c/a/1"), Route)
    assert isinstance(mapper.route("f/late"), Route), "no device chooses its topic"
    assert mapper.topics == 9


def test_h46_a_restart_gives_no_second_budget() -> None:
    known = [PulsarSettings().readings_topic(name) for name in ("c-a-1", "c-a-2", "fixed", "other")]
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(CHANNELS, FIXED), limits={"topics": 2})), known=known)
    assert "has 2 Pulsar topics" in reason(mapper.route("c/b/1"))
    assert isinstance(mapper.route("c/a/2"), Route)
    assert isinstance(mapper.route("f/1"), Route)
    assert isinstance(mapper.route("more/1"), Route)
    assert "route default has 2" in reason(mapper.route("most/1"))


def test_h46_topics_without_messages_are_released() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(CHANNELS,), limits={"topics": 2, "topic_idle": "1m"})))
    assert not mapper.forgets(0.0)
    for device in ("used", "invented", "late"):
        mapper.route(f"c/{device}/1")
    assert not mapper.forgets(59.0)
    assert mapper.forgets(60.0)
    assert isinstance(mapper.route("c/used/1"), Route)
    assert isinstance(mapper.route("c/late/1"), NoRoute), "the other was used within two periods"
    assert mapper.forgets(120.0)
    assert isinstance(mapper.route("c/late/1"), Route)
    assert isinstance(mapper.route("c/used/1"), Route)
    assert isinstance(mapper.route("c/invented/1"), NoRoute)
    assert mapper.topics == 2
