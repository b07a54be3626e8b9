"""The mapping: rules, defaults, injectivity, collisions, loops, bounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, Route
from bridge.routing.rules import mapping_problems, subscriptions
from bridge.routing.templates import MAX_LOCAL_NAME, encode_local, encode_piece
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.rules import TopicRule

WEARABLES = TopicRule(
    name="wearables",
    filter="wearables/+device/+metric",
    topic="wearables",
    device="{device}",
    command_topic="devices/{device}/commands",
)
PLANT = TopicRule(name="plant", filter="plant/+line/+device/#rest", topic="plant-{line}", device="{line}/{device}")

level = st.one_of(
    st.text(alphabet=st.characters(blacklist_characters="/+#\0", blacklist_categories=("Cs",)), max_size=12),
    st.sampled_from(
        [
            "",
            ".",
            "..",
            "...",
            "a-partition-3",
            "-partition-0",
            "__change_events",
            "_",
            "__",
            "=2E",
            "%2F",
            "=",
            "é",
            "a b",
        ]
    ),
)
mqtt_topics = st.lists(level, min_size=1, max_size=6).map("/".join).filter(lambda t: t and not t.startswith("$"))


READINGS = "persistent://public/pulsebridge/"


def routed(mapper: Mapper, topic: str) -> Route:
    route = mapper.route(topic)
    assert isinstance(route, Route), route
    return route


def test_a_rule_names_topic_key_device_and_command_topic() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(WEARABLES, PLANT))))
    assert routed(mapper, "wearables/w-1/glucose") == Route(
        "wearables", f"{READINGS}wearables", "w-1", "w-1", "devices/w-1/commands"
    )
    assert routed(mapper, "plant/7/press/temp/inner") == Route(
        "plant", f"{READINGS}plant-7", "7/press", "7/press", None
    )


def test_without_a_rule_the_first_level_is_the_topic_and_the_whole_topic_the_key() -> None:
    topic = "house/kitchen/t"
    assert routed(Mapper(Settings()), topic) == Route("default", f"{READINGS}house", topic, None, None)


def test_the_first_matching_rule_decides() -> None:
    special = TopicRule(name="special", filter="wearables/w-1/#", topic="special")
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(special, WEARABLES))))
    assert routed(mapper, "wearables/w-1/glucose").rule == "special"
    assert routed(mapper, "wearables/w-2/glucose").rule == "wearables"


def test_a_named_rest_wants_a_level_a_plain_one_matches_the_parent_too() -> None:
    named = Mapper(
        Settings(ingest=IngestSettings(routes=(TopicRule(name="r", filter="a/#rest", topic="x", key="{rest}"),)))
    )
    plain = Mapper(Settings(ingest=IngestSettings(routes=(TopicRule(name="r", filter="a/#", topic="x"),))))
    assert routed(named, "a").rule == "default"
    assert routed(plain, "a").rule == "r"
    assert isinstance(named.route("a/"), NoRoute)  # an empty rest is no key


@settings(deadline=None, max_examples=300)
@given(st.lists(mqtt_topics, min_size=2, max_size=8, unique=True))
def test_the_default_is_injective_and_stays_in_its_namespace(topics: list[str]) -> None:
    mapper = Mapper(Settings())
    seen: dict[tuple[str, str], str] = {}
    for topic in topics:
        route = mapper.route(topic)
        if isinstance(route, NoRoute):
            assert "characters" in route.reason
            continue
        assert isinstance(route, Route)
        assert seen.setdefault((route.topic, route.key), topic) == topic
        local = route.topic.removeprefix(READINGS)
        assert re.fullmatch(r"[A-Za-z0-9_.=-]+", local)
        assert local.strip(".")
        assert "-partition-" not in local
        assert "__" not in local


@settings(deadline=None, max_examples=300)
@given(mqtt_topics, mqtt_topics)
def test_rules_and_default_never_meet_unless_a_rule_names_the_device(a: str, b: str) -> None:
    rules = (
        TopicRule(name="levels", filter="+x/+y/#rest", topic="{x}-{y}"),
        TopicRule(name="one", filter="+only", topic="{only}-{only}"),
    )
    mapper = Mapper(Settings(ingest=IngestSettings(routes=rules)))
    first, second = mapper.route(a), mapper.route(b)
    if a != b and isinstance(first, Route) and isinstance(second, Route):
        assert (first.topic, first.key) != (second.topic, second.key)


@settings(deadline=None, max_examples=500)
@given(level, level)
def test_encoded_pieces_are_injective_and_safe(a: str, b: str) -> None:
    assert (encode_piece(a) == encode_piece(b)) == (a == b)
    assert (encode_local(encode_piece(a)) == encode_local(encode_piece(b))) == (a == b)
    assert encode_piece(a)


def test_the_default_leaves_a_rule_s_topic_alone_where_keys_could_meet() -> None:
    rule = TopicRule(name="r", filter="foo/+device", topic="foo", device="{device}")
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(rule,), filters=("#",))))
    assert routed(mapper, "foo/foo").key == "foo"
    refused = mapper.route("foo")  # the default would write it to foo under the key foo as well
    assert isinstance(refused, NoRoute)
    assert "rule r can write" in refused.reason
    assert routed(mapper, "foo/a/b").key == "foo/a/b"  # no device is called that


def test_two_rules_that_could_meet_are_refused_unless_one_is_shared() -> None:
    a = TopicRule(name="a", filter="factory/+device/#", topic="plant", device="{device}")
    b = TopicRule(name="b", filter="site/+device", topic="plant", device="{device}")
    (problem,) = mapping_problems(IngestSettings(routes=(a, b)))
    assert re.search(r"a and b could write different MQTT topics.*shared: true", problem)
    assert mapping_problems(IngestSettings(routes=(a, b.model_copy(update={"shared": True})))) == []
    assert mapping_problems(IngestSettings(routes=(a, b.model_copy(update={"topic": "other"})))) == []
    assert mapping_problems(IngestSettings(routes=(a, b.model_copy(update={"topic": "{level1}"})))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filter": "a/#/b"}, "nothing may follow level 2"),
        ({"filter": "a/b+"}, "must begin level 2"),
        ({"filter": "$SYS/#"}, "broker's own"),
        ({"filter": "+x/+x"}, "is in use or reserved"),
        ({"filter": "+1x"}, "not a name"),
        ({"topic": "{nothing}"}, "known: device, metric, level1, mqtt_topic"),
        ({"topic": "a/b"}, "letters, digits"),
        ({"topic": ".."}, "dots only"),
        ({"topic": "{level9}"}, "not in every topic"),
        ({"topic": "{level1!r}"}, "not have a format"),
        ({"topic": "{level1"}, "template"),
        ({"device": "{device}-{metric}"}, "put a slash between"),
        ({"command_topic": "devices/+/x"}, "must not contain"),
        ({"name": "default"}, "reserved for the default"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_path(changes: dict[str, str], words: str) -> None:
    rule = TopicRule(**({"name": "r", "filter": "w/+device/+metric"} | changes))
    (problem,) = mapping_problems(IngestSettings(routes=(rule,)))
    assert words in problem
    assert problem.startswith("ingest.routes.0")
    with pytest.raises(ConfigError, match=re.escape(words)):
        Mapper(Settings(ingest=IngestSettings(routes=(rule,))))


def test_all_problems_are_listed_at_once() -> None:
    text = "\n".join(
        mapping_problems(
            IngestSettings(routes=(TopicRule(name="a", filter="#/x"), TopicRule(name="a", filter="x", topic="{y}")))
        )
    )
    assert "ingest.routes.0" in text
    assert "ingest.routes.1" in text
    assert "is duplicate" in text


@pytest.mark.parametrize("filters", [("#",), ("devices/#",), ("+/+/commands",), ("+/+/+",)])
def test_h8_a_filter_that_matches_command_topics_is_refused(filters: tuple[str, ...]) -> None:
    (problem,) = mapping_problems(IngestSettings(routes=(WEARABLES,), filters=filters))
    assert "ingest would receive commands" in problem
    allowed = IngestSettings(routes=(WEARABLES,), filters=filters, allow_loopback=True)
    assert Mapper(Settings(ingest=allowed)).route("devices/w-1/commands") == LeftOut("command", "wearables")


def test_h8_a_rule_whose_own_filter_takes_its_commands_is_refused() -> None:
    rule = TopicRule(name="r", filter="d/+device/#", command_topic="d/{device}/commands")
    (problem,) = mapping_problems(IngestSettings(routes=(rule,)))
    assert "ingest would receive commands" in problem


def test_topics_of_the_broker_are_left_out() -> None:
    assert Mapper(Settings()).route("$SYS/broker/uptime") == LeftOut("broker", "")


def test_topics_are_bounded_and_known_ones_count() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(limits={"topics": 2})), known=[f"{READINGS}old"])
    routed(mapper, "new/1")
    assert "ingest.limits.topics is 2" in mapper.route("newer/1").reason  # type: ignore[union-attr]
    routed(mapper, "old/1")
    routed(mapper, "new/2")
    assert mapper.topics == 2


def test_what_cannot_be_named_has_a_reason() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(WEARABLES,))))
    for topic in ("", "\udcff/x", "x" * (MAX_LOCAL_NAME + 1), "wearables//glucose"):
        assert isinstance(mapper.route(topic), NoRoute), topic


def test_an_explanation_names_the_rule_or_why_there_is_none() -> None:
    mapper = Mapper(Settings())
    rule = mapper.explain("a/b").rule
    assert rule is not None
    assert rule.name == "default"
    assert isinstance(mapper.explain("\udcff").outcome, NoRoute)


def test_subscriptions_are_the_rules_filters_each_once() -> None:
    assert subscriptions(IngestSettings()) == ("#",)
    assert subscriptions(IngestSettings(routes=(WEARABLES, PLANT))) == ("wearables/+/+", "plant/+/+/#")
    assert subscriptions(IngestSettings(routes=(WEARABLES,), filters=("a", "a", "b"))) == ("a", "b")
