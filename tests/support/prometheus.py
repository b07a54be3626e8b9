"""A Prometheus of a test's own on a loopback port, and promtool. The Debian package ``prometheus`` has both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsebridge.local.ports import free_ports
from pulsebridge.local.processes import Server, last_lines
from tests.support.waiting import patient, poll_for

__all__ = ["Prometheus", "program", "promtool", "running_prometheus"]


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; the test is skipped where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*arguments: str | Path) -> str:
    """Run promtool, and return its output. It must succeed."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patient(60), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


class Prometheus:
    """Asks the HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        """Return whether it serves queries."""
        try:
            with urllib.request.urlopen(f"{self._base}/-/ready", timeout=patient(10)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an answer. A query that Prometheus refuses is an AssertionError with its reason."""
        url = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=patient(10)) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                body = json.load(e)
        assert body["status"] == "success", f"{parameters}: {body.get('error')}"
        return body["data"]

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of all groups, with their health and their alerts."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(folder: Path, rules: Sequence[Path], targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run Prometheus with these rule files. It scrapes each job's loopback port, and evaluates, every five seconds."""
    command = program("prometheus")
    (port,) = free_ports(1)
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{number}"]}]} for name, number in targets.items()
    ]
    every = {"scrape_interval": "5s", "evaluation_interval": "5s", "scrape_timeout": "5s"}
    config = folder / "prometheus.yaml"
    content = {"global": every, "rule_files": [str(path) for path in rules], "scrape_configs": jobs}
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    server = Server(
        "prometheus",
        [
            command, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        log=folder / "prometheus.log", cwd=folder, environment=os.environ, grace_s=20,
    )  # fmt: skip
    try:
        found = Prometheus(port)
        poll_for(lambda: found.ready() or not server.alive(), 60, "Prometheus to be ready")
        assert server.alive(), last_lines(folder / "prometheus.log")
        yield found
    finally:
        server.stop()
