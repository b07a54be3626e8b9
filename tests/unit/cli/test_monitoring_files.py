"""Dashboard and alert rules: well formed, and about metrics that the code really shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.cli.metrics_catalogue import Family, catalogue
from tests.support.promql import Selector, parse

CONF = Path(__file__).resolve().parents[3] / "conf"
DASHBOARD = CONF / "grafana" / "pulsebridge.json"
ALERTS = CONF / "prometheus" / "alerts.yaml"

OURS = {sample: family for family in catalogue() for sample in family.samples}
# What the Prometheus client shows of each process, and what Prometheus itself adds.
FOREIGN = {
    "up": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
}
TARGET_LABELS = {"job", "instance"}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert len({g["name"] for g in groups}) == len(groups)
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for rule in rules():
        yield rule["expr"]


def kind_of(selector: Selector) -> str:
    return FOREIGN.get(selector.metric) or OURS[selector.metric].kind


def labels_of(selector: Selector) -> set[str]:
    family = OURS.get(selector.metric)
    mine = set(family.labels) if family is not None else set()
    return mine | TARGET_LABELS | ({"le"} if selector.metric.endswith("_bucket") else set())


@pytest.mark.parametrize("text", list(expressions()))
def test_expressions_parse_and_use_what_the_code_shows(text: str) -> None:
    found = parse(text)
    assert found.selectors
    for selector in found.selectors:
        assert selector.metric in OURS or selector.metric in FOREIGN, f"no metric {selector.metric}"
        known = labels_of(selector)
        assert {label for label, _, _ in selector.matchers} <= known, f"{selector.metric} has labels {known}"
        counted = kind_of(selector) == "counter" or selector.metric.endswith("_bucket")
        over_time = any(name in ("rate", "increase") for name in selector.inside)
        assert counted == over_time, f"{selector.metric}: rate() or increase() for counters, and for them alone"
        if "histogram_quantile" in selector.inside:
            assert selector.metric.endswith("_bucket")
            assert "le" in found.labels
    assert found.labels <= set().union(*(labels_of(s) for s in found.selectors)), found.labels


def test_every_metric_is_looked_at_somewhere() -> None:
    used = {selector.metric for text in expressions() for selector in parse(text).selectors}
    unseen = {f.name for f in catalogue(mop=False) if not used & set(f.samples)}
    assert unseen == {"pulsebridge_build_info"}  # a variable's query


def test_alerts_are_complete_and_say_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) > 15
    for rule in found:
        name = rule["alert"]
        assert re.fullmatch(r"Pulsebridge[A-Za-z]+", name)
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m")), name
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert set(rule["annotations"]) == {"summary", "advice"}, name
        for text in rule["annotations"].values():
            assert "\n" not in text
            assert text.endswith("."), f"{name}: {text}"
        assert re.search(r"[<>]|==", rule["expr"]), f"{name} has no condition"
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in labels_after(rule["expr"]), f"{name}: {label}"


def labels_after(text: str) -> set[str]:
    """Return the labels that a rule's result may have: those of its first series, or of its grouping."""
    found = parse(text)
    first = found.selectors[0]
    grouped = any(name in ("sum", "max", "avg") for name in first.inside)
    return found.labels if grouped else labels_of(first)


def test_advice_names_settings_and_commands_that_exist() -> None:
    from bridge.settings import Settings
    from bridge.settings.fields import field_at

    sections = "|".join(Settings.model_fields)
    for rule in rules():
        for name in re.findall(rf"\b((?:{sections})\.[a-z_]+)\b", rule["annotations"]["advice"]):
            assert field_at(Settings, name.split(".")) is not None, f"{rule['alert']} names {name}"


def test_the_dashboard_can_be_imported() -> None:
    found = dashboard()
    assert found["id"] is None, "an id belongs to one Grafana"
    assert found["uid"] == "pulsebridge"
    assert found["schemaVersion"] >= 36
    variables = {v["name"]: v for v in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for name in set(re.findall(r"\$\{?(\w+)\}?", json.dumps([found["panels"], found["templating"]]))):
        assert name in variables or name.startswith("__"), f"no variable {name}"
    for variable in variables.values():
        if variable["type"] == "query":
            metric = re.match(r"label_values\((\w+)", variable["query"]["query"])
            assert metric is not None
            assert metric[1] in OURS


def test_panels_have_a_position_a_source_and_a_description() -> None:
    everything = dashboard()["panels"]
    assert len({p["id"] for p in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len({t["refId"] for t in panel["targets"]}) == len(panel["targets"])
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert any(label in labels_of(s) for s in parse(target["expr"]).selectors), panel["title"]


# --- the rules of promtool's linter, and of this project ---

_UNITS = "seconds|bytes|ratio|celsius|meters|volts|amperes|joules|grams"
_NOT_BASE = r"milliseconds|microseconds|nanoseconds|minutes|hours|days|kilobytes|megabytes|percent|ms|us|kb|mb"


@pytest.mark.parametrize("family", catalogue(mop=False), ids=lambda f: f.name)
def test_names_and_help_follow_the_conventions_of_prometheus(family: Family) -> None:
    name, kind = family.name, family.kind
    assert re.fullmatch(r"pulsebridge(_[a-z][a-z0-9]*)+", name)
    assert (kind == "counter") == name.endswith("_total")
    assert not name.endswith(("_count", "_sum", "_bucket"))
    assert name.endswith("_info") == (name == "pulsebridge_build_info")
    words = name.split("_")
    assert not {"counter", "gauge", "histogram", "summary", "metric", "rate"} & set(words)
    assert not re.search(rf"_(?:{_NOT_BASE})(?:_|$)", name)
    for unit in re.findall(rf"_({_UNITS})(?=_|$)", name):
        assert name.removesuffix("_total").endswith(unit), "the unit comes last"
    assert family.text.endswith(".")
    assert family.text[0].isupper() or family.text[0].isdigit()
    assert len(family.text) < 250


def test_no_label_can_grow_with_devices_or_topics() -> None:
    labels = {label for family in catalogue(mop=False) for label in family.labels}
    bounded = {
        "link",
        "reason",
        "result",
        "partition",
        "query",
        "table",
        "phase",
        "state",
        "version",
        "hop",
        "kind",
        "record",
    }
    assert labels == bounded
    named_by_mop = {label for family in catalogue() for label in family.labels} - labels
    assert named_by_mop == {"client_address", "broker_address", "stat"}


# --- the parser itself ---


@pytest.mark.parametrize(
    "text",
    [
        "sum by (a (b)",
        "rate(a_total)",
        "a[5m]",
        "sum(rate(a_total[5m]) by (b)",
        "a{b=c}",
        "a b",
        "a >",
        'a{b="c"',
        "rate(a_total[5x])",
        "histogram_quantile(0.9, a_bucket[5m])",
        "",
    ],
)
def test_what_is_not_well_formed_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@given(st.text("ab_{}()[]=~\"'1 5ms+-/<>sum rate by on", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        parse(text)
