"""The demo as its users run it: the whole way on real servers, with its kills, its audit and its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pulsebridge.demo.run_folder import RunFolder
from tests.support.tampering import trials, unnoticed
from tests.support.waiting import patient, poll_for

PULSEBRIDGE = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()"]

pytestmark = [pytest.mark.e2e, pytest.mark.stack, pytest.mark.spark, pytest.mark.long]


def pulsebridge(*arguments: str) -> subprocess.CompletedProcess[str]:
    patience = {"PULSEBRIDGE_LOCAL__START_TIMEOUT": f"{patient(120)}s"}
    return subprocess.run(
        [*PULSEBRIDGE, *arguments],
        capture_output=True,
        text=True,
        timeout=patient(600),
        env=os.environ | patience,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A quick demo with its kills, run once for the tests below: its folder and its output."""
    out = tmp_path_factory.mktemp("demo") / "run"
    done = pulsebridge("demo", "--quick", "--chaos", "spark", "--out", str(out))
    logs = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in out.glob("logs/*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return out, done


@pytest.mark.chaos
@pytest.mark.timeout(660)
def test_nothing_is_lost_while_ingest_push_and_spark_are_killed(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = demo
    verdict = json.loads((out / "audit.json").read_text())
    plan = json.loads((out / "manifest.json").read_text())["plan"]
    numbers = {n["name"]: n["value"] for n in verdict["numbers"]}
    assert verdict["passed"]
    assert sorted(k["target"] for k in verdict["kills"]) == ["ingest", "push", "spark"]
    assert numbers["real readings published"] == plan["readings"] > 1500
    assert numbers["in measurements or quarantine"] == numbers["acknowledged"] == plan["readings"] + plan["faults"]
    assert numbers["commands received"] == numbers["commands emitted"] == plan["commands"] > 0
    for none in ("missing", "duplicates in measurements", "duplicates in bronze", "out of order per device",
                 "commands missing", "commands out of order"):  # fmt: skip
        assert numbers[none] == 0, none


@pytest.mark.timeout(660)
def test_the_demo_says_where_other_devices_may_publish_and_how_to_go_on(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, done = demo
    output = " ".join(done.stdout.split())
    assert "your own MQTT devices may publish too: 127.0.0.1:" in output
    assert "The audit passed" in output
    assert output.count("pulsebridge audit") == 1
    assert (out / "report.html").stat().st_size > 500_000


@pytest.mark.timeout(660)
def test_the_audit_of_the_run_names_every_tampered_record(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = demo
    records = RunFolder(out).records()
    assert unnoticed(records) == []
    assert len(trials(records)) == 27
    done = pulsebridge("audit", str(out), "--json")
    assert json.loads(done.stdout)["passed"]
    assert done.returncode == 0


@pytest.mark.timeout(660)
def test_the_audit_fails_when_a_journal_is_cut(
    demo: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    import shutil

    out, _ = demo
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    journal = copy / "devices" / "cgm-001.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: len(lines) // 2]))
    done = pulsebridge("audit", str(copy), "--json")
    assert done.returncode == 1
    verdict = json.loads(done.stdout)
    assert not verdict["passed"]
    assert "short" in {f["kind"] for f in verdict["failing"]}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as out:
        running = subprocess.Popen(
            [*PULSEBRIDGE, "demo", "--quick", "--out", str(tmp_path / "run")],
            stdout=out, stderr=out, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    children: dict[int, psutil.Process] = {}

    def started() -> bool:
        assert running.poll() is None, log.read_text()
        children.update((p.pid, p) for p in psutil.Process(running.pid).children(recursive=True))
        return any("SparkSubmit" in " ".join(_command(p)) for p in children.values())

    poll_for(started, timeout=200, what="the start of the demo's Spark job")
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=patient(90)) == 130
    _gone, alive = psutil.wait_procs(children.values(), timeout=patient(20))
    assert [_command(p) for p in alive] == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_empty_folder_and_an_empty_run_fail(tmp_path: Path) -> None:
    refused = pulsebridge("audit", str(tmp_path))
    assert refused.returncode == 2
    assert "no manifest.json" in refused.stderr
    manifest = {"v": 2, "plan": {"readings": 100, "faults": 0, "commands": 1}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "rules.yaml").write_text("alerts: []\n")
    empty = pulsebridge("audit", str(tmp_path), "--json")
    assert empty.returncode == 1
    assert {f["hop"] for f in json.loads(empty.stdout)["failing"]} == {"the run"}
