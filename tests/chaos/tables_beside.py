"""Bronze and a typed table beside hostile devices: one job that must neither end nor start a query again, and what it stored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import yaml

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings
from tests.support.delta_rows import delta_rows
from tests.support.waiting import patient, poll_for

__all__ = ["TablesBeside"]

_AGAIN: Final = "flow failed and is restarted"


class TablesBeside:
    """``pulsebridge stream`` over the topics of ingest, in a process of its own."""

    def __init__(self, pulsar: PulsarSettings, root: str, topics: tuple[str, ...], folder: Path) -> None:
        """``root`` is the level above all MQTT topics; ``topics`` are local names, which are made where they lack."""
        self._pulsar, self._topics = pulsar, topics
        self.log = folder / "stream.log"
        self._tables = folder / "tables"
        self._config = folder / "stream.yaml"
        decoding = [
            {"filter": f"{root}/+/x", "format": "raw", "fields": "text string", "id": "text"},
            {
                "filter": f"{root}/named/#",
                "fields": "id string, ts string, value double",
                "id": "$.id",
                "time": "$.ts",
            },
            {
                "filter": f"{root}/+/y",
                "format": "cbor",
                "fields": "ts string, value double",
                "time": "$.ts",
                "ignored": ["pad"],
                "max_size": "5MiB",
            },
        ]
        settings = {
            "pulsar": pulsar.model_dump(mode="json", exclude_defaults=True),
            "streaming": {
                "root": str(self._tables),
                "topics": list(topics),
                "built_in": ["bronze"],
                "tables": [{"name": "typed", "keys": ["device", "_id"], "decoding": decoding}],
            },
            "metrics": {"port": 0},
        }
        self._config.write_text(yaml.safe_dump(settings), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for its first rows."""
        with PulsarAdmin(self._pulsar, timeout_s=30) as admin:
            for topic in self._topics:
                admin.create_partitioned(self._pulsar.readings_topic(topic), self._pulsar.partitions)
        command = [
            sys.executable,
            "-c",
            "from pulsebridge.cli.app import main; main()",
            "stream",
            "-c",
            str(self._config),
        ]
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        poll_for(lambda: self.rows("typed") or self.interruptions(), 180, "the first rows in the table", every=1)
        assert not self.interruptions(), self.interruptions()

    def interruptions(self) -> list[str]:
        """Return what was interrupted so far."""
        output = self.log.read_text(errors="replace")
        found = []
        if self._process is None or self._process.poll() is not None:
            found.append(f"the job ended by itself: {json.dumps(output[-3000:])}")
        if _AGAIN in output:
            found.append(f"{output.count(_AGAIN)} times a flow failed and was started again")
        return found

    def account(self, confirmed: list[int]) -> list[str]:
        """Wait until every message is in a table, and return the errors; ``confirmed``: messages sent per device."""
        wanted = {f"d{device:03d}#{n}" for device, count in enumerate(confirmed) for n in range(count)}

        def all_in_tables() -> bool:
            broken = self.interruptions()
            assert not broken, broken
            rows = self.rows("bronze")
            return rows >= self._stored() and self.rows("typed") + self.rows("quarantine") >= rows

        poll_for(all_in_tables, 300, "every message in the table or in quarantine", every=2)
        found = Counter(v for v in self._column("typed", "_id") if v in wanted)
        missing = wanted - found.keys()
        twice = [name for name, count in found.items() if count > 1]
        problems = [f"{len(missing)} readings are not in the table: {sorted(missing)[:5]}"] * bool(missing)
        return problems + [f"{len(twice)} readings are twice in the table: {twice[:5]}"] * bool(twice)

    def text(self) -> str:
        """Return how many rows the tables have."""
        return ", ".join(f"{name} {self.rows(name)}" for name in ("bronze", "typed", "quarantine"))

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patient(60))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _stored(self) -> int:
        with PulsarAdmin(self._pulsar, timeout_s=30) as admin:
            return sum(
                admin.stats(f"{self._pulsar.readings_topic(topic)}-partition-{n}")["msgInCounter"]
                for topic in self._topics
                for n in range(self._pulsar.partitions)
            )

    def rows(self, table: str) -> int:
        """Return how many rows a table has, 0 before it is made."""
        return len(delta_rows(self._tables / table, "device"))

    def _column(self, table: str, column: str) -> list[str]:
        return [row[column] for row in delta_rows(self._tables / table, column)]
