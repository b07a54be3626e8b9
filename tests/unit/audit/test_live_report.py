"""The command's result: exit codes, lines, metrics; without servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.settings import Settings
from bridge.settings.rules import TopicRule
from pulsebridge.audit.live.findings import Finding, Hop, Kind, Report, when
from pulsebridge.audit.live.joins import TableSide
from pulsebridge.audit.live.log import NumberFields, has_value
from pulsebridge.audit.live.metrics import write_metrics
from pulsebridge.audit.live.run import DueTables, table_sides


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "soon"], "'soon' is not a time"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "not before its end"),
        (["--set", "streaming.schema_name=main.plant"], "add --spark"),
    ],
)
def test_wrong_use_ends_with_code_2_and_one_line(words: list[str], says: str) -> None:
    program = "from pulsebridge.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "audit", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_all_findings_are_counted_and_the_first_are_named() -> None:
    report = Report(0, 1, most=2)
    for n in range(5):
        report.add(Finding(Hop.BRONZE, Kind.MISSING, "d", n, str(n)))
    assert [f.message for f in report.found] == ["0", "1"]
    assert report.as_dict()["counts"] == [{"hop": Hop.BRONZE, "kind": Kind.MISSING, "count": 5}]
    assert not report.clean
    assert report.as_dict()["findings"][0]["time"] == when(0) == "1970-01-01T00:00:00.000Z"


def test_the_metrics_replace_those_of_the_last_audit(tmp_path: Path) -> None:
    path = tmp_path / "pulsebridge.prom"
    report = Report(0, 1, read={"Pulsar": 7})
    report.add(Finding(Hop.BRONZE, Kind.MISSING, "d", 0, "m"))
    write_metrics(path, report, 12.5)
    assert 'pulsebridge_audit_findings{hop="Pulsar → bronze",kind="missing"} 1.0' in path.read_text("utf-8")
    write_metrics(path, Report(0, 1, read={"Pulsar": 8}), 13.5)
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines == ['pulsebridge_audit_messages{record="Pulsar"} 8.0', "pulsebridge_audit_run_timestamp_seconds 13.5"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_route_names_the_devices_own_number() -> None:
    fields = NumberFields(
        [
            TopicRule(name="json", filter="a/+device", sequence="{json:$.head.n}"),
            TopicRule(name="user", filter="b/+device", sequence="{user:n}"),
            TopicRule(name="none", filter="c/+device"),
        ]
    )
    assert "json" in fields
    assert "none" not in fields
    assert fields.number("json", b'{"head":{"n":17}}', {}) == 17
    assert fields.number("user", b"", {"mqtt.user": '[["n","4"]]'}) == 4
    for rule, payload, properties in (
        ("json", b"{}", {}), ("json", b'{"head":{"n":"x"}}', {}), ("user", b"", {}), ("user", b"", {"mqtt.user": "["}),
        ("none", b"{}", {}), ("", b"{}", {}),
    ):  # fmt: skip
        assert fields.number(rule, payload, properties) is None


def test_messages_that_may_give_no_row_are_not_due() -> None:
    tables = [
        {"name": "all", "decoding": {"filter": "a/#", "fields": "n bigint"}},
        {"name": "some", "keys": [], "decoding": {"filter": "a/#", "fields": "n bigint", "where": "n > 1"}},
    ]
    read = Settings.model_validate({"streaming": {"tables": tables}})
    sides = {side.name: side for side in table_sides(read)}
    assert sides.keys() == {"all", "some", "readings"}
    due = DueTables(read)

    def due_of(topic: str, side: TableSide) -> int:
        return int.from_bytes(due[topic], "little") >> side.bit & 1

    assert {name for name, side in sides.items() if due_of("a/b", side)} == {"all", "readings"}
    assert {name for name, side in sides.items() if due_of("b", side)} == {"readings"}
    assert due[""] == b""
    assert not any(side.keyed for side in sides.values())
    routes = [{"name": "r", "filter": "a/#", "reading_id": "{json:$.id}"}]
    read = Settings.model_validate({"streaming": {"tables": tables}, "ingest": {"routes": routes}})
    assert {side.name for side in table_sides(read) if side.keyed} == {"all", "readings"}


def test_any_number_of_tables_may_be_due() -> None:
    tables = [{"name": f"t{n}", "decoding": {"filter": f"a/{n % 2}", "fields": "n bigint"}} for n in range(70)]
    read = Settings.model_validate({"streaming": {"tables": tables}})
    due = int.from_bytes(DueTables(read)["a/1"], "little")
    assert {side.name for side in table_sides(read) if due >> side.bit & 1} == {
        "readings",
        *(f"t{n}" for n in range(1, 70, 2)),
    }


@pytest.mark.parametrize("payload", [b"", b" ", b"{}", b"[]", b"null", b'{"a": null, "b": [{}]}'])
def test_a_payload_without_a_value_needs_no_row(payload: bytes) -> None:
    assert not has_value(payload)


@pytest.mark.parametrize(
    "payload", [b"1", b"on", b'{"a":1}', b'{"a": null, "b": 0}', b'{"a": null', b"\xff", b"[" * 9999 + b"null"]
)
def test_a_payload_with_a_value_or_a_fault_needs_one(payload: bytes) -> None:
    assert has_value(payload)
