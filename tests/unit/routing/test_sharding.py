"""How filters are assigned to workers, and which must migrate when they are assigned again."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.routing.mapper import Mapper, Route
from bridge.routing.sharding import (
    Move,
    Remembered,
    Shard,
    intersection,
    own_sessions,
    plan_move,
    sessions,
    split,
    unserved,
)
from bridge.routing.templates import Filter
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.loading import load
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.workers.restarts import Restarts, Wait

PULSAR = PulsarSettings()


def ingest(*filters: str, routes: tuple[TopicRule, ...] = (), **fields: object) -> IngestSettings:
    given = {"resume_topic": None} | fields
    return IngestSettings(filters=filters, routes=routes, **given)  # type: ignore[arg-type]


LINES = TopicRule(name="plant", filter="plant/+line/+device/#rest", device="{line}/{device}")
DEVICES = TopicRule(name="plant", filter="plant/+line/+device/#rest", device="{device}")


def test_a_shard_is_a_number_or_the_host_s() -> None:
    assert Shard.parse("1/4") == Shard(1, 4)
    assert Shard.parse("host/3", host="pulsebridge-ingest-2.pulsebridge.svc") == Shard(2, 3)
    for text, host in (("4/4", ""), ("x/2", ""), ("1", ""), ("host/2", "laptop"), ("host/2", "ingest-2")):
        with pytest.raises(ValueError, match=r"counted from 0|nor of the form|does not end in a number"):
            Shard.parse(text, host=host)


def test_each_group_of_filters_has_a_session_and_each_session_one_worker() -> None:
    settings = ingest("plant/a/#", "plant/b/#", "plant/c/#", routes=(LINES,), shard="0/2")
    assert sessions("pb", settings, PULSAR) == {
        "pb-0": ("plant/a/#",), "pb-1": ("plant/b/#",), "pb-2": ("plant/c/#",),
    }  # fmt: skip
    assert own_sessions("pb", settings, PULSAR) == ("pb-0", "pb-2")
    other = settings.model_copy(update={"shard": "1/2"})
    assert own_sessions("pb", other, PULSAR) == ("pb-1",)
    alone = settings.model_copy(update={"shard": None})
    assert sessions("pb", alone, PULSAR) == {"pb": settings.filters}


def test_requests_to_resume_are_read_by_one_session_whatever_the_count_of_workers() -> None:
    asks = {"resume_topic": "pulsebridge/resume/+device"}
    alone = ingest("plant/#", routes=(LINES,), **asks)
    assert sessions("pb", alone, PULSAR) == {"pb": ("plant/#", "pulsebridge/resume/+")}
    assert sessions("pb", ingest("#", **asks), PULSAR) == {"pb": ("#",)}  # that brings them, too
    for shard in ("0/1", "1/2", "1/3"):
        found = sessions("pb", ingest("plant/a/#", "plant/b/#", "c/#", routes=(LINES,), shard=shard, **asks), PULSAR)
        assert [name for name, filters in found.items() if "pulsebridge/resume/+" in filters] == ["pb-0"]
    shared = ingest("plant/#", routes=(LINES,), share="g", **asks)
    assert sessions("pb", shared, PULSAR)["pb"][1] == "$share/g/pulsebridge/resume/+"


@settings(deadline=None, max_examples=20)
@given(count=st.integers(1, 8), more=st.integers(1, 8))
def test_another_number_of_workers_deals_the_same_sessions(count: int, more: int) -> None:
    filters = tuple(f"plant/{n}/#" for n in range(8))

    def dealt(workers: int) -> list[str]:
        shards = [ingest(*filters, routes=(LINES,), shard=f"{i}/{workers}") for i in range(workers)]
        return sorted(name for one in shards for name in own_sessions("pb", one, PULSAR))

    assert dealt(count) == dealt(more) == sorted(f"pb-{n}" for n in range(8))


def test_filters_that_share_a_device_stay_together() -> None:
    rule = TopicRule(name="plant", filter="plant/+device/+metric", device="{device}")
    assert split(ingest("plant/+/t", "plant/+/h", routes=(rule,)), PULSAR, 1) == [("plant/+/t", "plant/+/h")]
    # The device does not name the line, so the same device may be on both.
    assert len(split(ingest("plant/a/#", "plant/b/#", routes=(DEVICES,)), PULSAR, 1)) == 1
    assert len(split(ingest("plant/a/#", "plant/b/#", routes=(LINES,)), PULSAR, 2)) == 2
    # Other Pulsar topics: no order between them.
    topics = DEVICES.model_copy(update={"topic": "{line}"})
    assert len(split(ingest("plant/a/#", "plant/b/#", routes=(topics,)), PULSAR, 2)) == 2
    # Without a rule the key is the MQTT topic.
    assert len(split(ingest("a/#", "b/+", "c"), PULSAR, 3)) == 3
    # A device that each message names may be on any line.
    gateways = TopicRule(name="gw", filter="gw/+/up", topic="gw", device="{json:$.id}")
    assert len(split(ingest("gw/1/up", "gw/2/up", "x/#", routes=(gateways,)), PULSAR, 2)) == 2


def test_too_few_groups_and_overlaps_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"2 workers cannot divide 1 group of filters .*#.*give more filters"):
        split(ingest(), PULSAR, 2)
    for a, b in (("a/+", "a/b"), ("a/#", "a"), ("+/x", "a/+"), ("#", "q/r"), ("a/b/#", "a/+/c")):
        with pytest.raises(ConfigError, match="no topic in common"):
            split(ingest(a, b), PULSAR, 1)
    with pytest.raises(ConfigError, match="cannot divide") as refused:
        load(None, {"ingest.shard": "0/3", "ingest.filters": ["a/#", "b/#"]})
    assert "1 problem" in str(refused.value)
    with pytest.raises(ConfigError, match="nor of the form I/N"):
        load(None, {"ingest.shard": "3"})


def test_a_shared_subscription_gives_every_worker_everything() -> None:
    settings = ingest("#", share="all", shard="1/2")
    assert sessions("pb", settings, PULSAR) == {"pb-0": ("$share/all/#",), "pb-1": ("$share/all/#",)}
    assert own_sessions("pb", settings, PULSAR) == ("pb-1",)


LEVEL = st.sampled_from(["a", "b", "+", ""])
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]), st.lists(LEVEL, min_size=1, max_size=3), st.sampled_from([[], ["#"]])
)  # fmt: skip
TOPICS = ["/".join(levels) for size in range(1, 5) for levels in combinations(["a", "b", "", "c"] * 2, size)]


@settings(deadline=None, max_examples=300)
@given(FILTERS, FILTERS)
def test_an_intersection_matches_what_both_match(one: str, other: str) -> None:
    a, b = Filter.parse(one), Filter.parse(other)
    both = intersection(a, b)
    for topic in TOPICS:
        levels = topic.split("/")
        expected = a.match(levels) is not None and b.match(levels) is not None
        assert (both is not None and both.match(levels) is not None) == expected, topic


RULES = st.sampled_from(
    [
        TopicRule(name="r", filter="+x/+y/+z", topic="t", device="{x}"),
        TopicRule(name="r", filter="+x/+y/+z", topic="t", device="{y}/{z}"),
        TopicRule(name="r", filter="+x/#rest", topic="{x}", device="{rest}"),
        TopicRule(name="r", filter="a/+y/#rest", topic="{y}", key="{rest}"),
        TopicRule(name="r", filter="+x/#", topic="t"),
    ]
)


@settings(deadline=None, max_examples=300)
@given(RULES, st.lists(FILTERS, min_size=2, max_size=4, unique=True))
def test_no_pulsar_topic_and_key_is_reached_by_two_sessions(rule: TopicRule, filters: list[str]) -> None:
    settings = ingest(*filters, routes=(rule,))
    try:
        divided = split(settings, PULSAR, 1)
    except ConfigError:
        return  # they overlap
    mapper = Mapper(Settings(ingest=settings))
    owner: dict[tuple[str, str], int] = {}
    for number, session in enumerate(divided):
        for topic in TOPICS:
            if any(Filter.parse(f).match(topic.split("/")) is not None for f in session):
                route = mapper.route(topic)
                if isinstance(route, Route):
                    assert owner.setdefault((route.topic, route.key), number) == number, topic


def remembered(**granted: tuple[str, ...]) -> dict[str, Remembered]:
    return {name.replace("_", "-"): Remembered("pb", dict.fromkeys(filters, 1)) for name, filters in granted.items()}


def test_h7_one_worker_that_becomes_shards_moves_its_filters() -> None:
    wanted = {"pb-0": ("a/#",), "pb-1": ("b/#",)}
    known = remembered(pb=("a/#", "b/#"))
    assert plan_move("pb", known, wanted) == Move(wanted, {"pb": ("a/#", "b/#")}, frozenset({"pb"}))
    assert plan_move("pb", {}, wanted) is None
    assert plan_move("pb", remembered(pb_0=("a/#",)), wanted) is None  # lacks only: it subscribes by itself
    assert plan_move("other", known, wanted) is None  # not our family's
    assert plan_move("other", known, {"other": ("a/#",)}, former=("pb",)) == Move(
        {"other": ("a/#",)}, {"pb": ("a/#", "b/#")}, frozenset({"pb"})
    )


def test_h7_a_filter_that_goes_elsewhere_is_drained_and_not_unsubscribed_at_once() -> None:
    wanted = {"pb-0": ("a/#",), "pb-1": ("b/#",)}
    known = remembered(pb_0=("a/#", "b/#"))
    assert plan_move("pb", known, wanted) == Move({"pb-1": ("b/#",)}, {"pb-0": ("b/#",)}, frozenset())
    known = {
        "pb-0": Remembered("pb", {"a/#": 1, "b/#": 1}, ("b/#",)),
        "pb-1": Remembered("pb", {"b/#": 1}),
    }
    assert plan_move("pb", known, wanted) is None  # drained: its worker unsubscribes


def test_h7_sessions_in_neither_the_settings_nor_a_running_process_are_reported() -> None:
    known = remembered(pb=("a/#",), gone=("b/#", "c"))
    known["a.served"] = Remembered("a.served", {"d": 1}, (), "mqtt://h:1", "served")
    assert unserved(known, {"pb"}, {("mqtt://h:1", "served")}) == ["gone"]
    assert unserved(known, {"pb"}, {("mqtt://other:1", "served")}) == ["a.served", "gone"]


def test_a_worker_that_dies_restarts_after_growing_delays_that_reset_once_it_is_stable() -> None:
    restarts = Restarts()
    restarts.started(0, 0.0)
    waits = [restarts.ended(0, -9, 1.0) for _ in range(8)]
    seconds = [w.seconds for w in waits if w is not None]
    assert seconds == sorted(seconds)
    assert seconds[0] < 1 < seconds[-1] <= 30
    restarts.started(0, 100.0)
    assert restarts.ended(0, 0, 200.0) == Wait(seconds[0])


@pytest.mark.parametrize("code", [1, 2])
def test_a_worker_that_says_what_to_change_ends_all(code: int) -> None:
    assert Restarts().ended(3, code, 0.0) is None


def test_workers_without_mqtt_need_no_filters_to_divide() -> None:
    shards = {"ingest.shard": "0/4"}
    assert load(None, {"messaging_protocols": "http"} | shards).ingest.shard == "0/4"
    with pytest.raises(ConfigError, match="4 workers cannot divide 1 group of filters"):
        load(None, {"messaging_protocols": "http, mqtt"} | shards)
