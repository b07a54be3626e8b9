"""The folder of one run: where everything is, the manifest written before the start, the events written meanwhile.

::

    manifest.json       the plan (what to expect) and where the servers and tables are
    settings.yaml       what every process of the run was started with
    rules.yaml          a copy of the decoders and alert rules in force
    devices/            the devices' own journals, and fleet.json, their counts
    events.jsonl        stages, kills, restarts, one line each, as they happened
    progress.jsonl      counts about twice a second
    pulsar.jsonl.gz     what Pulsar held at the end, read by the bare client
    lakehouse/          the Delta tables and checkpoints
    logs/               one log per process
    audit.json, report.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bridge.errors import ConfigError

__all__ = ["RunFolder"]

MANIFEST_VERSION: Final = 1


class RunFolder:
    """Paths in the folder of a run, and its small files."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.manifest_file = self.root / "manifest.json"
        self.settings_file = self.root / "settings.yaml"
        self.rules_file = self.root / "rules.yaml"
        self.devices = self.root / "devices"
        self.events_file = self.root / "events.jsonl"
        self.progress_file = self.root / "progress.jsonl"
        self.lakehouse = self.root / "lakehouse"
        self.logs = self.root / "logs"
        self.go_file = self.root / "devices" / ".go"
        self.audit_file = self.root / "audit.json"
        self.report_file = self.root / "report.html"

    def write_manifest(self, body: Mapping[str, Any]) -> None:
        """Write the manifest. It is there before anything starts, so that a run cut short shows as short."""
        self.root.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"v": MANIFEST_VERSION, **body}, indent=2, default=str)
        self.manifest_file.write_text(text + "\n", encoding="utf-8")

    def manifest(self) -> dict[str, Any]:
        """Read the manifest. Raises ConfigError when the folder is not one of a run."""
        try:
            body: dict[str, Any] = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.root} holds no run: there is no manifest.json",
                remedy="give the folder that the demo printed",
            ) from None
        except ValueError as e:
            raise ConfigError(f"{self.manifest_file} is not JSON: {e}", remedy="run the demo again") from e
        if body.get("v") != MANIFEST_VERSION:
            raise ConfigError(
                f"{self.manifest_file} has version {body.get('v')!r}, this reads {MANIFEST_VERSION}",
                remedy="audit it with the Pulsebridge that made it",
            )
        return body

    def append(self, file: Path, **fields: Any) -> None:
        """Append one line to the events or the progress file."""
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n")

    def lines(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the whole lines of the events or the progress file; none when there is no such file."""
        if not file.exists():
            return
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
