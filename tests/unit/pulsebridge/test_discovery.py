"""Discovery: counting topics in bounded memory, and rules that the settings take."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.routing.mapper import Mapper, Route
from bridge.routing.rules import mapping_problems
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.loading import load_with_origins
from bridge.settings.presets import preset_names
from bridge.settings.tables import TableDeclaration
from pulsebridge.topics.payloads import device_paths, kind_of
from pulsebridge.topics.proposing import PresetSigns, Proposal, propose
from pulsebridge.topics.schemas import Fields, Room
from pulsebridge.topics.showing import discovery_of, discovery_text
from pulsebridge.topics.tree import Distinct, Node, TopicTree


def seen(messages: Iterable[tuple[str, bytes]]) -> tuple[TopicTree, PresetSigns]:
    tree, signs = TopicTree(), PresetSigns(preset_names())
    for topic, payload in messages:
        tree.add(topic, payload)
        signs.add(topic)
    return tree, signs


def proposed(*topics: str, payload: bytes = b"1") -> Proposal:
    tree, signs = seen((topic, payload) for topic in topics)
    return propose(tree, signs.seen)


def taken(proposal: Proposal) -> IngestSettings:
    """The proposal as a user pastes it."""
    body = yaml.safe_load(proposal.yaml()) or {"ingest": {}}
    ingest = IngestSettings.model_validate(body["ingest"])
    assert mapping_problems(ingest) == []
    return ingest


def device_of(proposal: Proposal, topic: str) -> str | None:
    route = Mapper(Settings(ingest=taken(proposal))).route(topic)
    assert isinstance(route, Route)
    return route.device


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", "empty"),
        (b'{"a": 1}', "JSON"),
        (b"[1, 2]", "JSON"),
        (b"{not json", "text"),
        (b"[" * 60_000, "text"),
        (b"21.5", "number"),
        (b" -3e4\n", "number"),
        (b"ON", "text"),
        ("déjà".encode(), "text"),
        (b"\x00\x01", "binary"),
        (b"\xff\xfe", "binary"),
        (b"x" * 200_000, "text"),
    ],
)
def test_kinds_of_payloads(payload: bytes, kind: str) -> None:
    assert kind_of(payload)[0] == kind


def test_places_that_may_name_a_device() -> None:
    body = {
        "deviceInfo": {"devEui": "01", "name": "x"},
        "device": {"id": 7},
        "id": "message",
        "mac": "aa:bb",
        "sn": True,
    }
    assert dict(device_paths(body)) == {"$.deviceInfo.devEui": "01", "$.device.id": "7", "$.mac": "aa:bb"}
    assert list(device_paths([body])) == []


def test_a_fleet_s_device_is_the_level_whose_names_do_not_repeat() -> None:
    topics = [f"plant/line-{n % 3}/press-{n}/{m}" for n in range(9) for m in ("temperature", "pressure")]
    proposal = proposed(*topics)
    (rule,) = proposal.routes
    assert (rule.filter, rule.topic, rule.device) == ("plant/+group2/+device/+metric", "plant", "{device}")
    assert device_of(proposal, "plant/line-1/press-4/temperature") == "press-4"


def test_names_that_repeat_under_others_are_no_devices() -> None:
    topics = [f"site/s{n}/pump{m}/rpm" for n in range(8) for m in range(5)]
    (rule,) = proposed(*topics).routes
    assert (rule.filter, rule.device) == ("site/+device/#", "{device}")


def test_one_device_with_an_id_is_found() -> None:
    assert device_of(proposed("wearables/w-1/glucose", "wearables/w-1/heart"), "wearables/w-1/glucose") == "w-1"


def test_topics_without_a_device_have_the_topic_as_key() -> None:
    (rule,) = proposed("status").routes
    assert (rule.filter, rule.device) == ("status", None)


def test_many_devices_at_the_first_level_are_one_rule_and_one_pulsar_topic() -> None:
    proposal = proposed(*(f"{n:012x}/{m}" for n in range(100) for m in ("up", "status")))
    (rule,) = proposal.routes
    assert (rule.filter, rule.topic, rule.device) == ("+device/+metric", "devices", "{device}")


def test_a_gateway_s_devices_are_found_in_the_payload() -> None:
    payloads = [json.dumps({"device": {"id": f"d-{n % 20}"}, "n": n}).encode() for n in range(100)]
    tree, signs = seen((f"gateway/{n % 2}/up", payload) for n, payload in enumerate(payloads))
    (rule,) = propose(tree, signs.seen).routes
    assert (rule.filter, rule.device) == ("gateway/#", "{json:$.device.id}")


def test_presets_are_recognised_and_their_topics_get_no_rules_of_their_own() -> None:
    proposal = proposed(
        "zigbee2mqtt/bridge/state",
        "zigbee2mqtt/lamp",
        "tele/plug-1/STATE",
        "stat/plug-1/RESULT",
        "application/1/device/0101010101010101/event/up",
        "other/o-1/x",
    )
    assert sorted(proposal.presets) == ["chirpstack", "tasmota", "zigbee2mqtt"]
    assert [rule.name for rule in proposal.routes] == ["other"]
    taken(proposal)


def test_presets_that_do_not_agree_are_noted() -> None:
    proposal = proposed("homie/5/a/$state", "homie/5/a/$state", "homie/b/$homie")
    assert proposal.presets == ["homie"]
    assert "homie4 matches too" in proposal.notes[0]


def test_commands_are_noted() -> None:
    proposal = proposed("lamp/l-1/set", "lamp/l-1/state", "lamp/l-2/state", "other/o-1/state")
    (note,) = [note for note in proposal.notes if "commands are not readings" in note]
    assert note.startswith("lamp/… has a level 'set'")


def test_the_broker_s_own_topics_are_not_counted() -> None:
    tree, _ = seen([("$SYS/broker/uptime", b"1"), ("", b"")])
    assert (tree.messages, tree.root.children) == (0, {})


def test_a_hundred_thousand_topics_stay_within_the_bounds() -> None:
    tree = TopicTree(max_nodes=100, max_children=10, max_roots=20)
    for number in range(100_000):
        tree.add(f"r{number % 300}/d{number}/{'x' * (number % 300)}", b"1")
    assert tree.messages == 100_000
    assert 85_000 < tree.topics.count < 115_000
    assert tree.nodes <= 100
    assert _nodes(tree.root) == tree.nodes
    assert len(tree.shapes) == 20
    assert max(len(node.children) for node in _all(tree.root)) <= 10
    assert tree.unfolded > 0


def _all(node: Node) -> Iterable[Node]:
    yield node
    for child in [*node.children.values(), *([node.others] if node.others is not None else [])]:
        yield from _all(child)


def _nodes(node: Node) -> int:
    return sum(1 for _ in _all(node))


@settings(deadline=None, max_examples=50)
@given(st.sets(st.text(max_size=5), max_size=300))
def test_estimates_are_near(texts: set[str]) -> None:
    counted = Distinct()
    for _ in range(2):
        for text in texts:
            counted.add(text)
    if len(texts) < 64:
        assert counted.count == len(texts)
    else:
        assert len(texts) * 0.5 < counted.count < len(texts) * 1.9


anything = st.text(st.characters(exclude_categories=()), max_size=8)
level = (
    st.sampled_from(["a", "b", "dev-1", "dev-2", "set", "", "$SYS", "homie", "5", "tele", "STATE", "+", "#"]) | anything
)
topics = st.lists(level, min_size=1, max_size=12).map("/".join)
payloads = st.binary(max_size=10) | st.sampled_from([b'{"deviceId": "x"}', b'{"device": {"id": 3}}', b"1", b"[]"])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(topics, payloads, st.booleans()), max_size=30))
def test_whatever_is_published_every_message_is_counted_and_every_proposal_is_taken(
    messages: list[tuple[str, bytes, bool]],
) -> None:
    tree, signs = (
        TopicTree(max_nodes=20, max_children=3, max_roots=4, max_depth=6),
        PresetSigns(preset_names()),
    )
    for topic, payload, retained in messages:
        tree.add(topic, payload, retained=retained)
        signs.add(topic)
    counted = [m for m in messages if m[0] and not m[0].startswith("$")]
    assert tree.messages == len(counted) == sum(node.messages for node in _all(tree.root))
    assert _nodes(tree.root) == tree.nodes <= 20
    proposal = propose(tree, signs.seen)
    taken(proposal)
    report = discovery_of(tree, signs.seen, proposal, 2.0)
    assert json.loads(json.dumps(report)) == report
    assert discovery_text(report).encode()


def test_the_text_shows_rates_kinds_and_what_to_paste() -> None:
    tree, signs = seen([(f"plant/p-{n}/t", b"21.5") for n in range(10)] + [("tele/x/STATE", b"{}")])
    tree.add("plant/p-1/t", b"22", retained=True)
    text = discovery_text(discovery_of(tree, signs.seen, propose(tree, signs.seen), 10.0))
    assert "12 messages (1 retained) on 11 topics in 10 s, 1.1 a second" in text
    assert "10 names" in text
    assert "{p-0, p-1, …}/  10 alike" in text.replace("{p-1, p-0, …}", "{p-0, p-1, …}")
    assert "10 alike  1/s  number  4 bytes  1 retained" in text
    assert "looks like the preset tasmota" in text
    assert "- name: plant\n    filter: plant/+device/+metric" in text


def test_nothing_published_says_what_to_try() -> None:
    tree, signs = seen([])
    assert "listen longer" in discovery_text(discovery_of(tree, signs.seen, propose(tree, signs.seen), 1.0))


_HOSTILE = "x\ningest: {}\nhttp:\n  enabled: true\n  host: 0.0.0.0\n#"
hostile_level = level | st.sampled_from(
    [
        _HOSTILE,
        "\x1b[2J",
        "\u202eabc",
        "a: b",
        "- a",
        "'",
        '"',
        "{a}",
        "on",
        "12:30",
        "a #b",
        " x",
        "\u2028",
        "x" * 70_000,
    ]
)
hostile_topics = st.lists(hostile_level, min_size=1, max_size=6).map("/".join)


def printed_settings(text: str) -> str:
    """Return what a person copies: all from the heading of the proposal to the end."""
    return text.partition("# proposed settings")[2]


@settings(deadline=None, max_examples=50)
@example([(f"{_HOSTILE}/a", b"1")])
@example([(f"plant/{_HOSTILE}/set", b"1"), (f"plant/{_HOSTILE}/state", b"1")])
@example([(f"{_HOSTILE}/a/set", b"1"), ("+/a", b"1")])
@given(st.lists(st.tuples(hostile_topics, payloads), max_size=12))
def test_h38_the_output_has_the_proposal_and_nothing_else(
    messages: list[tuple[str, bytes]],
) -> None:
    tree, signs = seen(messages)
    proposal = propose(tree, signs.seen)
    text = discovery_text(discovery_of(tree, signs.seen, proposal, 2.0))
    assert all(line.isprintable() and len(line) <= 20_000 for line in text.split("\n"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pulsebridge.yaml"
        file.write_text("#" + printed_settings(text), encoding="utf-8")
        loaded = load_with_origins(file, environ={})
    assert loaded.settings.ingest.routes == tuple(proposal.routes)
    assert loaded.settings.ingest.presets == tuple(proposal.presets)
    assert loaded.settings.streaming.tables == tuple(proposal.tables)
    given_by_file = {f"ingest.{name}" for name in ("routes", "presets") if getattr(proposal, name)}
    given_by_file |= {"streaming.tables"} if proposal.tables else set()
    assert set(loaded.origins) == given_by_file


# --- typed tables ---


def tables(*messages: tuple[str, Any]) -> tuple[dict[str, TableDeclaration], list[str]]:
    tree, signs = seen((topic, json.dumps(body).encode()) for topic, body in messages)
    proposal = propose(tree, signs.seen)
    assert {one["name"] for one in yaml.safe_load(proposal.yaml()).get("streaming", {}).get("tables", [])} == {
        table.name for table in proposal.tables
    }
    return {table.name: table for table in proposal.tables}, proposal.notes


def test_json_of_one_form_is_one_table_with_the_types_that_were_seen() -> None:
    bodies = [
        {"hum": 78.0, "n": 1, "ok": True, "at": {"lat": 1, "name": "x"}, "list": [1, 2.5], "none": None, "any": 1,
         "ts": "2026-01-01T00:00:00Z"},
        {"hum": 48, "n": 2, "ok": None, "at": {"lat": 1.5, "more": [{"k": "v"}]}, "list": [], "any": "x", "HUM": 1},
    ]  # fmt: skip
    found, notes = tables(*((f"plant/press-{n % 4}/climate", bodies[n % 2]) for n in range(8)))
    (decoding,) = found["plant"].decoding
    assert decoding.filter == "plant/+device/+metric"
    assert decoding.fields == (
        "hum double, n bigint, ok boolean, at struct<lat: double, name: string, more: array<struct<k: string>>>, "
        "list array<double>, any string, ts string"
    )
    assert (decoding.time, decoding.columns) == ("$.ts", {})
    assert notes == ["table plant: the bigint fields had only whole numbers: write double if fractions can occur"]


def test_each_form_of_payload_is_a_table_and_text_beside_them_is_none() -> None:
    messages: list[tuple[str, Any]] = []
    for n in range(5):
        messages += [
            (f"plant/press-{n}/climate", {"temperature": 20.5, "time": "2026-01-01T00:00:00"}),
            (f"plant/press-{n}/power", {"watts": 5.5, "meter": {"seen": 1700000000, "ts": 1700000000}}), (f"plant/press-{n}/mode", 3),
        ]  # fmt: skip
    found, notes = tables(*messages)
    assert {name: one.decoding[0].filter for name, one in found.items()} == {
        "plant_climate": "plant/+device/climate", "plant_power": "plant/+device/power",
    }  # fmt: skip
    assert [one.decoding[0].time for one in found.values()] == ["$.time", "$.meter.ts"]
    assert any("$.time is a local time: set time_zone" in note for note in notes)
    deep = [(f"site/s-{n}/{'a/b' if n % 2 else 'c'}", 5 if n % 2 else {"k": 1}) for n in range(8)]
    found, notes = tables(*deep)
    assert found == {}
    assert any("its payloads have several forms" in note for note in notes)


def test_names_that_are_taken_or_odd_get_other_columns() -> None:
    body = {"device": "x", "_id": 1, "metric": 5, "a b": 1.5, "a`b": 2, "ok": 3, "s": {"x y": 1}}
    found, _ = tables(*((f"plant/press-{n}/{m}", body) for n in range(4) for m in ("one", "two")))
    assert found["plant"].decoding[0].columns == {
        "payload_device": "fields.device", "field_id": "fields.`_id`", "payload_metric": "fields.metric",
        "field_a_b": "fields.`a b`", "field_a_b_2": "fields.`a``b`", "ok": "fields.ok", "s": "fields.s",
    }  # fmt: skip
    assert "s string" in (found["plant"].decoding[0].fields or "")


def test_what_payloads_name_is_kept_in_bounded_memory() -> None:
    fields, room = Fields(), Room(left=300)
    for n in range(200):
        fields.add({f"f{n}-{m}": {"x": {"y": m}} for m in range(90)}, room)
    kept = len(fields.below) + sum(len(one.below) for one in fields.below.values())
    assert 0 < kept <= 300
    deep: Any = 1
    for _ in range(100):
        deep = {"d": deep}
    other = Fields()
    other.add(deep, Room())
    assert other.ddl() == "struct<d: struct<d: struct<d: struct<d: string>>>>"
