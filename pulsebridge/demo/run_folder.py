"""The folder of one run: its plan, its events, and the records for the audit.

::

    manifest.json       the plan with the expected results
    settings.yaml       the settings of all processes of the run
    rules.yaml          the alert rules in force
    gx/                 the project of Great Expectations, with its Data Docs
    devices/            the devices' journals
    events.jsonl        stages, kills and restarts
    pulsar.jsonl.gz     Pulsar's messages at the end, read by the bare client
    lakehouse/          the Delta tables and checkpoints
    logs/               a log of each process
    audit.json, report.html
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bridge.errors import ConfigError
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.journal import json_lines, read_journals
from pulsebridge.audit.pulsar import read_dump, read_live
from pulsebridge.audit.records import Emitted, ReceiptRow, Records, Stored
from pulsebridge.audit.rules import calls_of, load_rules
from pulsebridge.audit.tables import read_table, table_folders
from pulsebridge.audit.verdict import Verdict, audit

__all__ = ["RunFolder"]

MANIFEST_VERSION: Final = 2


class RunFolder:
    """Paths in the folder of a run, and its small files."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.manifest_file = self.root / "manifest.json"
        self.settings_file = self.root / "settings.yaml"
        self.rules_file = self.root / "rules.yaml"
        self.expectations = self.root / "gx"
        self.devices = self.root / "devices"
        self.events_file = self.root / "events.jsonl"
        self.dump_file = self.root / "pulsar.jsonl.gz"
        self.lakehouse = self.root / "lakehouse"
        self.logs = self.root / "logs"
        self.audit_file = self.root / "audit.json"
        self.report_file = self.root / "report.html"

    def create(self) -> None:
        """Create the empty folder, so that an earlier run's tables and journals are not counted."""
        if self.manifest_file.exists():
            shutil.rmtree(self.root)
        for folder in (self.devices, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def write_manifest(self, body: Mapping[str, Any]) -> None:
        """Write the manifest. It exists before anything starts, so that an interrupted run is recognised."""
        text = json.dumps({"v": MANIFEST_VERSION, **body}, indent=2)
        self.manifest_file.write_text(text + "\n", encoding="utf-8")

    def manifest(self) -> dict[str, Any]:
        """Read the manifest. Raises ConfigError if the folder is not one of a run."""
        try:
            body: dict[str, Any] = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.root} is not the folder of a run: it has no manifest.json",
                remedy="name the folder that the demo printed",
            ) from None
        except ValueError as e:
            raise ConfigError(f"{self.manifest_file} is not JSON: {e}", remedy="repeat the demo") from e
        if body.get("v") != MANIFEST_VERSION:
            raise ConfigError(
                f"{self.manifest_file} has version {body.get('v')!r}, this release reads {MANIFEST_VERSION}",
                remedy="audit it with the release that created it",
            )
        return body

    def note(self, event: str, **fields: Any) -> None:
        """Append an event, with the current time."""
        line = {"e": event, "us": time.time_ns() // 1000, **fields}
        with self.events_file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Append an event with the block's duration."""
        began = time.monotonic()
        yield
        self.note("stage", name=name, s=round(time.monotonic() - began, 3))

    def records(self, pulsar: PulsarSettings | None = None) -> Records:
        """Read all records of the run. ``pulsar``: read Pulsar now instead of the demo's dump.

        Raises ConfigError if the folder is not one of a run or lacks the dump, TransientError without Pulsar.
        """
        plan = self.manifest()["plan"]
        if pulsar is None and not self.dump_file.exists() and self.devices.exists():
            raise ConfigError(
                f"{self.dump_file} does not exist: the run ended before Pulsar was read",
                remedy="use --live while its servers are up, or repeat the demo",
            )
        rows = list(read_live(pulsar) if pulsar else read_dump(self.dump_file) if self.devices.exists() else ())
        published, acks, received = read_journals(self.devices)
        return Records(
            published,
            acks,
            received,
            **{name: read_table(folder) for name, folder in table_folders(self.lakehouse).items()},
            stored=tuple(row for row in rows if isinstance(row, Stored)),
            emitted=tuple(row for row in rows if isinstance(row, Emitted)),
            receipts=tuple(row for row in rows if isinstance(row, ReceiptRow)),
            calls=calls_of(load_rules(self.rules_file), published),
            expected={name: int(plan.get(name, 0)) for name in ("readings", "faults", "commands")},
        )

    def audit(self, pulsar: PulsarSettings | None = None) -> Verdict:
        """Audit the run. Raises the same errors as ``records``."""
        events = json_lines(self.events_file) if self.events_file.exists() else ()
        return audit(self.records(pulsar), events)
