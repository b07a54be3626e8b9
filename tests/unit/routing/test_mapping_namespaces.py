"""Tenants and namespaces by rule: only those that the configuration lists are ever reached."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.contract import namespace_of
from bridge.routing.mapper import Mapper, NoRoute, Route
from bridge.routing.rules import mapping_problems
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule

PULSAR = PulsarSettings(namespaces=("acme/site-1", "acme/site-2", "lab/readings"))


def rule(**changes: Any) -> TopicRule:
    fields = {"name": "r", "filter": "s/+site/+device", "topic": "t", "device": "{device}"}
    return TopicRule(**(fields | changes))


def ingest(*rules: TopicRule, **changes: Any) -> IngestSettings:
    return IngestSettings(routes=rules, **changes)


def test_a_rule_names_its_namespace() -> None:
    mapper = Mapper(Settings(ingest=ingest(rule(namespace="acme/site-1")), pulsar=PULSAR))
    route = mapper.route("s/x/w-1")
    assert route == Route("r", "persistent://acme/site-1/t", "w-1", "w-1", None)


def test_the_usual_namespace_may_be_named_as_well() -> None:
    mapper = Mapper(Settings(ingest=ingest(rule(namespace="public/pulsebridge")), pulsar=PULSAR))
    route = mapper.route("s/x/w-1")
    assert isinstance(route, Route)
    assert route.topic == "persistent://public/pulsebridge/t"


def test_a_capture_reaches_only_what_is_listed() -> None:
    mapper = Mapper(Settings(ingest=ingest(rule(namespace="acme/{site}")), pulsar=PULSAR))
    assert mapper.route("s/site-2/w-1") == Route("r", "persistent://acme/site-2/t", "w-1", "w-1", None)
    refused = mapper.route("s/site-3/w-1")
    assert isinstance(refused, NoRoute)
    assert refused.reason == "the namespace 'acme/site-3' is not one of pulsar.namespaces"


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.text(alphabet="site-123/.acmelb", max_size=12) | st.sampled_from(["site-1", "..", "readings"]),
        min_size=1,
        max_size=4,
    )
)
def test_no_topic_reaches_outside(levels: list[str]) -> None:
    rules = (
        rule(namespace="{site}/{device}"),
        rule(name="rest", filter="x/#rest", namespace="{rest}", device="{rest}", shared=True),
    )
    mapper = Mapper(Settings(ingest=ingest(*rules), pulsar=PULSAR))
    for root in ("s", "x", "lab"):
        route = mapper.route("/".join([root, *levels]))
        if isinstance(route, Route):
            assert namespace_of(route.topic) in PULSAR.readings_namespaces
            assert route.topic.count("/") == 4


@pytest.mark.parametrize("namespace", ["acme/other", "acme", "acme/{device}/x", "public/pulsebridge-system"])
def test_a_namespace_that_is_not_listed_is_refused_at_load(namespace: str) -> None:
    (problem,) = mapping_problems(ingest(rule(namespace=namespace)), PULSAR)
    assert "not one of pulsar.namespaces; listed: public/pulsebridge, acme/site-1" in problem


def test_rules_collide_only_within_a_namespace() -> None:
    other = rule(name="o", filter="o/+site/+device")
    apart = ingest(rule(namespace="acme/site-1"), other)
    assert mapping_problems(apart, PULSAR) == []
    together = ingest(rule(namespace="acme/{site}"), other.model_copy(update={"namespace": "acme/site-2"}))
    (problem,) = mapping_problems(together, PULSAR)
    assert "one key" in problem


def test_topics_of_all_namespaces_count() -> None:
    mapper = Mapper(
        Settings(ingest=ingest(rule(namespace="acme/{site}"), limits={"topics": 1}), pulsar=PULSAR),
        known=["persistent://acme/site-1/t", "persistent://public/pulsebridge/old"],
    )
    assert isinstance(mapper.route("s/site-1/w-1"), Route)
    refused = mapper.route("s/site-2/w-1")
    assert isinstance(refused, NoRoute)
    assert refused.topic == "persistent://acme/site-2/t"
    assert mapper.topics == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"namespaces": ("public/pulsebridge-system",)},
        {"namespaces": ("acme",)},
        {"namespaces": ("a/b/c",)},
        {"namespaces": ("a/b c",)},
        {"namespaces": ("é/b",)},
        {"tenant": "a/b"},
        {"namespace": ""},
    ],
)
def test_names_that_pulsar_would_not_take_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PulsarSettings(**changes)
