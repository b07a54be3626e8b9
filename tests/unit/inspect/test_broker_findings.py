"""The reports of ``pulsebridge check --broker``, and the page that is made of them."""

from __future__ import annotations

import json

from bridge.inspect.broker.check import BrokerFinding, BrokerReport
from pulsebridge.output.broker_check import lines_of, report_json
from tests.brokers.page import PAGE, RESULTS, page, page_of
from tests.brokers.servers import BROKERS

REPORT = BrokerReport(
    "mqtt",
    "broker:1883",
    (
        BrokerFinding("versions", "ok", "connect", "accepts 5"),
        BrokerFinding("queue", "note", "publish", "drops | some", ("ingest: raise the limit",)),
        BrokerFinding("retained", "not tried", "retain", "denied\x1b[31m", ("allow it",)),
    ),
)


def test_only_a_failure_makes_a_report_not_ok() -> None:
    assert REPORT.ok
    failed = BrokerFinding("QoS", "failed", "publish", "QoS 1: not delivered")
    assert not BrokerReport("mqtt", "broker:1883", (*REPORT.findings, failed)).ok


def test_lines_name_what_was_tried_what_happened_and_what_follows() -> None:
    lines = lines_of(REPORT)
    assert lines[:3] == ["MQTT broker broker:1883 (mqtt)", "ok         versions: connect", "           accepts 5"]
    assert lines[5] == "           → ingest: raise the limit"
    assert all(line.isprintable() for line in lines)


def test_the_page_has_a_column_and_a_section_for_each_broker() -> None:
    report = json.loads(json.dumps(report_json(REPORT)))
    fewer = report | {"findings": report["findings"][:1]}
    lines = page_of(
        [
            {"title": "One {}", "version": "1.0", "setup": "its defaults", "report": report},
            {"title": "Two {}", "version": "2.0", "setup": "in memory", "report": fewer},
        ]
    )
    assert lines[0] == "|  | One 1.0 | Two 2.0 |"
    assert lines[2:5] == ["| versions | ok | ok |", "| queue | note | – |", "| retained | – | – |"]
    assert lines[5:] == [
        "",
        "## One 1.0",
        "",
        "Configuration: its defaults.",
        "",
        "- queue: drops | some",
        "  - ingest: raise the limit",
        "- retained: denied\x1b[31m",
        "",
        "## Two 2.0",
        "",
        "Configuration: in memory.",
        "",
    ]


def test_the_page_of_the_documentation_is_that_of_the_stored_results() -> None:
    assert {file.stem for file in RESULTS.glob("*.json")} <= set(BROKERS)
    assert PAGE.read_text(encoding="utf-8") == page(list(BROKERS))
