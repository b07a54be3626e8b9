"""``pulsebridge audit`` as a process, against real servers, with tables that deltalake has written."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from bridge.settings.ingest import IngestSettings
from bridge.settings.streaming import StreamingSettings
from tests.support.ingest import IN_ORDER, device, rule_for, running_ingest, stored, wait_for
from tests.support.push import command, provision, push_settings, write_commands
from tests.support.reading_back import read_back
from tests.support.stack import mqtt_settings

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings, Settings
    from pulsebridge.local.stack import LocalStack

pytestmark = pytest.mark.stack


def write_bronze(settings: Settings) -> None:
    columns: dict[str, list[Any]] = {}
    topic = settings.pulsar.readings_topic("fleet")
    for number, message in read_back(settings.pulsar, topic):
        at = message.message_id()
        row = {
            "__topic": topic, "partition": number, "ledger_id": at.ledger_id(), "entry_id": at.entry_id(),
            "batch_index": max(0, at.batch_index()), "device": message.partition_key(),
            "stored_at": datetime.now(timezone.utc), "payload": message.data(),
        }  # fmt: skip
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    write_deltalake(f"{settings.streaming.root}/bronze", pa.table(columns))


def run(config: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    words = (
        "-c",
        "from pulsebridge.cli.app import main; main()",
        "audit",
        "-c",
        str(config),
        "--settle",
        "0",
        "--json",
    )
    done = subprocess.run([sys.executable, *words, *more], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_the_command_names_what_is_missing_and_its_exit_code_says_so(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    base = push_settings(namespaces, mqtt_settings(stack))
    route = rule_for(base.mqtt.client_id, sequence="{json:$.n}")
    settings = base.model_copy(
        update={
            "ingest": IngestSettings(routes=(route,)),
            "streaming": StreamingSettings(root=str(tmp_path / "lakehouse"), topics=("fleet",), built_in=("bronze",)),
        }
    )
    provision(settings)
    with running_ingest(settings), device(settings.mqtt, "sender", window=IN_ORDER) as client:
        for number in (1, 2, 3, 5):
            for name in ("d0", "d1"):
                body = json.dumps({"n": number if name == "d0" else min(number, 4)}).encode()
                client.publish(f"{settings.mqtt.client_id}/{name}/temp", body)
        assert client.flush()
        wait_for(namespaces, 8)
    write_bronze(settings)
    write_commands(settings, [command(settings, "d1", 1)])
    config, metrics = tmp_path / "audit.yaml", tmp_path / "audit.prom"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)), "utf-8")

    code, report, errors = run(config, "--metrics", str(metrics))
    assert code == 1, errors
    assert report["read"] == {"Pulsar": 8, "bronze": 8, "commands": 1, "receipts": 0}
    found = [(f["hop"], f["kind"], f["device"], f["message"]) for f in report["findings"]]
    assert found == [("device → Pulsar", "missing", "d0", "number 4")]
    assert 'pulsebridge_audit_findings{hop="device → Pulsar",kind="missing"} 1.0' in metrics.read_text("utf-8")

    DeltaTable(str(tmp_path / "lakehouse/bronze")).delete("device = 'd1'")
    with running_ingest(settings), device(settings.mqtt, "sender", window=IN_ORDER) as client:
        client.publish(f"{settings.mqtt.client_id}/d0/temp", b'{"n":4}')
        assert client.flush()
        wait_for(namespaces, 9)
    assert len(stored(namespaces, "fleet")) == 9
    code, report, errors = run(config)
    assert code == 1, errors
    counts = {(c["hop"], c["kind"]): c["count"] for c in report["counts"]}
    assert counts == {("device → Pulsar", "reordered"): 1, ("Pulsar → bronze", "missing"): 5}
    code, report, errors = run(config, "--until", "2020-01-01")
    assert (code, report["read"]["Pulsar"]) == (0, 0), errors
