from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from streaming.decoders.known import Leaf, known_fields
from streaming.decoders.settings import parse_decoders
from streaming.evolving import FieldNews
from streaming.rule_fields import RuleFields
from structlog.testing import capture_logs

from bridge.errors import ConfigError
from bridge.silver_metrics import SilverMetrics
from streaming.evolution import NESTED, UNFIT, UNKNOWN, Found, Kind, new_columns, stop_at, type_of

DECODER = {"filter": "a/+", "metric": "m", "id": "$.id", "time": "$.ts", "value": "$.v"}
MODES = ("add_columns", "rescue", "fail")
FILTERS = ("a/+", "b/+", "c/+")

kinds = st.sampled_from(Kind)
names = st.sampled_from(
    ["battery", "Battery", "rssi", "device", "fw-version", "a b", "_own", "x" * 129, "é", "n.m"]
)
found = st.builds(
    Found,
    decoder=st.sampled_from([0, 1]),
    field=names,
    kind=kinds.map(lambda kind: kind.value) | st.sampled_from([UNKNOWN, NESTED, UNFIT]),
    count=st.just(2),
    passed=st.sampled_from([0, 2]),
    topic=st.just("a/b"),
)


@given(st.sets(kinds), st.sets(kinds))
def test_what_two_batches_give_is_one_of_their_types_or_text(one: set[Kind], other: set[Kind]) -> None:
    types = {type_of(one), type_of(other)}
    assert type_of(one | other) in types | {"string"}
    if None in types:  # nulls say nothing
        assert {type_of(one | other)} == types - {None} or types == {None}


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({Kind.NULL}, None),
        ({Kind.NULL, Kind.BOOLEAN}, "boolean"),
        ({Kind.INTEGER}, "double"),
        ({Kind.INTEGER, Kind.NUMBER}, "double"),
        ({Kind.INTEGER, Kind.LONG}, "bigint"),
        ({Kind.LONG, Kind.NUMBER}, "string"),
        ({Kind.HUGE}, "string"),
        ({Kind.DEEP}, "string"),
        ({Kind.BOOLEAN, Kind.INTEGER}, "string"),
    ],
)
def test_a_type_holds_its_values_unchanged(seen: set[Kind], kind: str | None) -> None:
    assert type_of(seen) == kind


@given(
    st.lists(found), st.dictionaries(st.sampled_from(["rssi", "old"]), st.just("string")), st.integers(0, 4)
)
def test_columns_are_few_new_and_the_same_in_any_order(
    batch: list[Found], there: dict[str, str], limit: int
) -> None:
    added = new_columns(batch, MODES, there, {"device"}, limit)
    shuffled = random.Random(1).sample(batch, len(batch))
    assert new_columns(shuffled, MODES, there, {"device"}, limit) == added
    assert len(added) <= max(0, limit - len(there))
    lower = [name.lower() for name in (*added, *there)]
    assert len(set(lower)) == len(lower)
    assert "device" not in lower
    assert not {"a b", "_own", "x" * 129, "n.m"} & set(added)
    passed = {one.field for one in batch if one.passed and one.decoder == 0}
    assert set(added) <= passed  # nothing of readings that go to quarantine, or of a decoder that rescues
    known = [one for one in batch if one.field not in added]
    if len(added) < limit - len(there):
        assert new_columns(known, MODES, {**there, **added}, {"device"}, limit) == {}


def test_fail_stops_with_one_line_that_names_topic_field_and_remedy() -> None:
    def one(decoder: int, field: str, kind: str = UNKNOWN, passed: int = 1) -> Found:
        return Found(decoder, field, kind, 1, passed, "c/dev\n1")

    assert stop_at([one(1, "x"), one(2, "y", UNFIT), one(2, "z", passed=0)], MODES, FILTERS) is None
    error = stop_at([one(2, "rssi", NESTED), one(2, "bat"), one(2, "bat")], MODES, FILTERS)
    for words in ("'bat' and 1 more", r"'c/dev\n1'", "readings[2], filter 'c/+'", "`ignored`", "rescue"):
        assert words in str(error)
    assert "\n" not in str(error)


def test_each_name_is_logged_once_and_every_field_is_counted() -> None:
    registry = CollectorRegistry()
    news = FieldNews(SilverMetrics(registry))
    batch = [Found(0, "rssi", UNKNOWN, 3, 3, "a/1"), Found(1, "$.v", UNFIT, 2, 0, "b/1")]
    with capture_logs() as told:
        for _ in range(2):
            news(batch, FILTERS)
        for n in range(1100):
            news([Found(2, f"f{n}", NESTED, 1, 1, "c/1")], FILTERS)
    assert [(line["field"], line["decoder"]) for line in told[:2]] == [("rssi", "a/+"), ("$.v", "b/+")]
    assert {line["log_level"] for line in told} == {"info"}
    assert len(told) == 2 + 1000 + 1  # devices choose the names: the last line says that no more are named
    counted = {
        (name, decoder): registry.get_sample_value(f"pulsebridge_silver_{name}_total", {"decoder": decoder})
        for name, decoder in (("unknown_fields", "a/+"), ("unfit_values", "b/+"), ("unknown_fields", "c/+"))
    }
    assert list(counted.values()) == [6, 4, 1100]


def test_what_a_decoder_knows_is_a_tree_and_the_whole_covers_its_parts() -> None:
    (decoder,) = parse_decoders(
        [DECODER | {"value": "$.a.b", "unit": "$.u[0].name", "sent": "$.m", "ignored": ["$.m.x", "$.fw"]}],
        "f",
    )
    known = known_fields(decoder, ())
    assert known.message is None
    assert known.reading == {
        "id": Leaf(None, "$.id"),
        "ts": Leaf(None, "$.ts"),
        "a": {"b": Leaf("double", "$.a.b")},
        "m": Leaf("bigint", "$.m"),
        "u": Leaf(None, "$.u[0].name"),
        "fw": Leaf(None, "$.fw"),
    }
    (whole,) = parse_decoders([DECODER | {"format": "raw", "value": "$"}], "f")
    assert known_fields(whole, ()).reading is None


def test_around_an_array_the_message_is_known_by_its_own_paths_and_the_topic_rule() -> None:
    entry = {"filter": "gw/+", "metric": "m", "value": "$.v", "unit": "$$.unit", "elements": "$.list"}
    (decoder,) = parse_decoders([entry], "f")
    rules = (
        RuleFields("gw", "gw/+dev", "{json:$.ids[1]}-{user:n}", "{json:$.meta.at}"),
        RuleFields("other", "lab/+dev", "{json:$.own}", None),
    )
    known = known_fields(decoder, rules)
    assert known.reading == {"v": Leaf("double", "$.v")}
    assert known.message == {
        "unit": Leaf(None, "$.unit"), "list": Leaf(), "ids": Leaf(), "meta": {"at": Leaf()},
    }  # fmt: skip


def test_a_wrong_way_or_path_is_refused_at_load() -> None:
    with pytest.raises(ConfigError, match=r"readings\[0\].schema_evolution"):
        parse_decoders([DECODER | {"schema_evolution": "drop"}], "f")
    with pytest.raises(ConfigError, match=r"readings\[0\].ignored: 'fw' is no JSON path, give \$.fw"):
        parse_decoders([DECODER | {"ignored": ["fw"]}], "f")
