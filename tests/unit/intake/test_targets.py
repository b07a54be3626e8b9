"""What the first message of an MQTT topic decides for the others, within a bound."""

from __future__ import annotations

from bridge.intake.targets import Target, Targets
from bridge.mqtt.envelope import Envelope
from bridge.mqtt.types import Message
from bridge.routing.mapper import LeftOut, Mapper, NoRoute
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.push import PresenceRule, PresenceSettings, PushSettings

PLAIN = TopicRule(name="plain", filter="p/+device", topic="plain", device="{device}", command_topic="c/{device}")
GATEWAY = TopicRule(name="gateway", filter="g/#", topic="gateway", device="{json:$.d}")
ANY = TopicRule(name="any", filter="a/#", topic="any")


def targets(*routes: TopicRule, **options: int) -> Targets:
    settings = Settings(ingest=IngestSettings(routes=routes))
    envelope = Envelope(link="l", protocol="5", mark=False)
    return Targets(settings, Mapper(settings), envelope, None, **options)


def found(of: Targets, topic: str, payload: bytes = b"") -> Target | NoRoute | LeftOut:
    return of.of(Message(topic, payload, 1, False, False, 1, None))


def test_the_first_message_of_a_topic_decides_for_the_others() -> None:
    one = targets(PLAIN)
    for topic in ("p/d1", "c/d1", "$SYS/x", "\udcff"):
        assert found(one, topic) is found(one, topic)
    assert one.misses == len(one.cache) == 4


def test_a_rule_that_reads_the_message_is_asked_about_each() -> None:
    one = targets(GATEWAY)
    devices = [found(one, "g/1", payload) for payload in (b'{"d":"a"}', b'{"d":"b"}', b"", b'{"d":"a"}')]
    assert [of.key if isinstance(of, Target) else None for of in devices] == ["a", "b", None, "a"]
    assert one.misses == len(one.cache) == 1


def test_a_will_is_no_sign_of_life_whichever_rule_reads_it_but_a_birth_is() -> None:
    rules = (PresenceRule(filter="p/+device"), PresenceRule(filter="g/+device"))
    settings = Settings(
        ingest=IngestSettings(routes=(PLAIN, GATEWAY)), push=PushSettings(presence=PresenceSettings(rules=rules))
    )
    one = Targets(settings, Mapper(settings), Envelope(link="l", protocol="5", mark=False), lambda _device: None)
    for topic, payload, alive in (
        ("p/d", b"offline", False), ("p/d", b"online", True), ("p/d", b" offline\n", False), ("g/1", b'{"d":"a"}', True),
    ):  # fmt: skip
        target = found(one, topic, payload)
        assert isinstance(target, Target)
        assert (target.seen is not None) == alive, payload
    assert one.misses == len(one.cache) == 2


def test_h10_topics_do_not_fill_the_memory_and_long_ones_leave_room_for_the_others() -> None:
    one = targets(ANY, cache_bytes=100_000)
    first = found(one, "a/first")
    for number in range(20):
        found(one, f"a/{number}/" + "x" * 60_000)
    assert found(one, "a/first") is first
    for number in range(1000):
        found(one, f"a/{number}")
    assert one.cache.bytes <= 100_000
    assert found(one, "a/first") is not first
