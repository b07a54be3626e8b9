from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.settings.loading import conf_path
from bridge.settings.presets import load_preset
from streaming.decoders.settings import NO_ID, check_rules, load_decoders, parse_decoders
from streaming.readings import topic_pattern
from streaming.rule_fields import rule_fields


def matches(mqtt_filter: str, topic: str) -> bool:
    # Java's \x{..} is Python's \x.. for the characters used here
    pattern = re.sub(
        r"\\x\{(\w+)\}", lambda m: re.escape(chr(int(m.group(1), 16))), topic_pattern(mqtt_filter)
    )
    return re.search(pattern, topic) is not None


@pytest.mark.parametrize(
    ("mqtt_filter", "topic", "expected"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a//c", True),
        ("a/+/c", "a/b/x/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("a.c", "abc", False),
        ("+/+/glucose", "wearables/cgm-1/glucose", True),
    ],
)
def test_a_filter_matches_as_mqtt_says(mqtt_filter: str, topic: str, expected: bool) -> None:
    assert matches(mqtt_filter, topic) is expected


@given(
    st.text(
        st.characters(exclude_characters="+#/", codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1
    )
)
def test_a_topic_without_wildcards_matches_itself(level: str) -> None:
    assert matches(f"x/{level}", f"x/{level}")
    assert not matches(f"x/{level}", f"x/{level}y")


@pytest.mark.parametrize("mqtt_filter", ["a/#/b", "a+/b", "a/b#"])
def test_a_misplaced_wildcard_is_refused(mqtt_filter: str) -> None:
    with pytest.raises(ConfigError, match=r"wildcard|last level"):
        topic_pattern(mqtt_filter)


def test_the_decoders_that_are_shipped_load() -> None:
    assert [d.metric for d in load_decoders(conf_path("rules.yaml"))] == ["glucose", "temperature"]


def test_all_problems_of_the_decoders_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "readings: [{filter: a, metric: m, id: id, time: $.t, value: $.v, extra: 1}, {filter: b}, 3]"
    )
    with pytest.raises(ConfigError) as caught:
        load_decoders(path)
    for named in ("readings[0].extra", "give $.id", "readings[1].metric is missing", "readings[2]"):
        assert named in str(caught.value)


def test_a_decoder_may_say_that_there_is_no_id_but_not_that_there_is_no_time() -> None:
    entry = {"filter": "a", "metric": "m", "id": NO_ID, "time": "$.t", "value": "$.v"}
    check_rules(parse_decoders([entry], "f"), (), "f")
    with pytest.raises(ConfigError, match=r"readings\[0\].time: 'none' is no JSON path"):
        parse_decoders([entry | {"time": NO_ID}], "f")


def test_a_decoder_without_an_id_needs_a_topic_rule_that_names_one() -> None:
    rules = rule_fields(load_preset("thethingsstack").rules)
    entry = {"filter": "v3/+/devices/+/up", "metric": "temperature", "value": "$.t"}
    check_rules(parse_decoders([entry], "f"), rules, "f")
    joins = parse_decoders([entry | {"filter": "v3/+/devices/+/join"}], "f")  # a rule with a time alone
    with pytest.raises(ConfigError, match=r"readings\[0\].id is missing, and no topic rule") as caught:
        check_rules(joins, rules, "f")
    assert ".time" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"readings\[0\].time is missing"):
        check_rules(parse_decoders([entry], "f"), (), "f")
    check_rules(parse_decoders([entry | {"id": "$.id", "time": "$.t"}], "f"), (), "f")
