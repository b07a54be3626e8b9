"""A real Prometheus with our alert rules scrapes a real endpoint: rules evaluate, and every panel shows a series."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server
from tests.support.folders import own_folder
from tests.support.prometheus import Prometheus, program, running_prometheus
from tests.support.promql import parse
from tests.support.waiting import poll_for

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "conf/prometheus/alerts.yaml"
DASHBOARD = ROOT / "conf/grafana/pulsebridge.json"
JOBS = ("pulsebridge-all", "pulsebridge-mortal")
VARIABLES = {"$job": "pulsebridge.*", "$instance": ".*", "$link": ".*", "$__rate_interval": "1m"}


class World(NamedTuple):
    """A Prometheus that scrapes two processes, of which a test may kill one."""

    prometheus: Prometheus
    mortal: Server


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    program("prometheus")
    with own_folder("prometheus") as folder:
        ports = dict(zip(JOBS, free_ports(len(JOBS)), strict=True))
        processes = [
            Server(
                job, [sys.executable, "-m", "tests.support.metrics_process", str(port)],
                log=folder / f"{job}.log", cwd=ROOT, environment=os.environ, grace_s=5,
            )
            for job, port in ports.items()
        ]  # fmt: skip
        try:
            with running_prometheus(folder, [RULES], ports) as prometheus:
                poll_for(lambda: _scrapes(prometheus) >= 3, 120, "three scrapes", every=0.5)
                yield World(prometheus, processes[1])
        finally:
            for process in processes:
                process.kill()


def _scrapes(prometheus: Prometheus) -> float:
    result = prometheus.ask("query", query="count_over_time(up[1m]) and up == 1")["result"]
    return min(float(one["value"][1]) for one in result) if len(result) == len(JOBS) else 0.0


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [(panel["title"], target["expr"]) for panel in found for target in panel.get("targets", [])]


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_every_rule_loads_and_evaluates(world: World) -> None:
    def settled() -> list[dict[str, Any]]:
        rules = world.prometheus.rules()
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    found = poll_for(settled, 60, "each rule to be evaluated")
    assert {rule["name"] for rule in found} == {rule["alert"] for rule in alerts()}
    assert {rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"} == {}


def test_every_metric_of_alerts_and_panels_is_scraped(world: World) -> None:
    names = set(world.prometheus.ask("label/__name__/values"))
    expressions = [rule["expr"] for rule in alerts()] + [expression for _, expression in panels()]
    used = {selector.metric for expression in expressions for selector in parse(expression).selectors}
    assert used - names == set()


def test_every_panel_shows_a_series(world: World) -> None:
    for title, expression in panels():
        query = filled(expression)
        # A scrape that a busy machine delays hides all series until the next one.
        poll_for(lambda q=query: world.prometheus.ask("query", query=q)["result"], 30, f"a series of {title}: {query}")  # type: ignore[misc]


def test_the_variables_of_the_dashboard_find_values(world: World) -> None:
    for label, metric in (("job", "build_info"), ("instance", "build_info"), ("link", "ingest_connected")):
        found = world.prometheus.ask(f"label/{label}/values", **{"match[]": f"pulsebridge_{metric}"})
        assert found, label


def test_the_death_of_the_process_starts_an_alert(world: World) -> None:
    def down() -> list[str]:
        (rule,) = [rule for rule in world.prometheus.rules() if rule["name"] == "PulsebridgeDown"]
        return [alert["state"] for alert in rule["alerts"]]

    assert down() == []
    world.mortal.kill()
    assert poll_for(down, 60, "the alert", every=0.3) == ["pending"]
