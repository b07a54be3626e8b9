"""A process's endpoint as Prometheus and a supervisor see it: health, readiness and metrics over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import patient, poll_for

__all__ = ["Endpoint", "Sample"]


class Sample(NamedTuple):
    """One line of ``/metrics``."""

    name: str
    labels: dict[str, str]
    value: float


class Endpoint:
    """Asks ``/healthz``, ``/readyz`` and ``/metrics`` on a loopback port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=patient(10)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def asked(self, path: str) -> tuple[int, Any]:
        """Return status and JSON body."""
        status, body = self.get(path)
        return status, json.loads(body)

    @property
    def healthy(self) -> bool:
        return self.asked("/healthz")[0] == 200

    @property
    def missing(self) -> dict[str, str]:
        """What the process waits for; empty when it is ready."""
        status, body = self.asked("/readyz")
        found = {entry["part"]: entry["why"] for entry in body["missing"]}
        assert (status == 200) == (not found) == body["ready"], body
        return found

    def await_ready(self, timeout: float = 60) -> None:
        poll_for(lambda: self._listens() and not self.missing, timeout, "the process to be ready", every=0.1)

    def await_missing(self, part: str, why: str, timeout: float = 60) -> None:
        """Wait until the part is missing, with ``why`` in the reason. The process must stay healthy all the time."""

        def found() -> bool:
            assert self.healthy, self.asked("/healthz")
            missing = self.missing
            return part in missing and why in missing[part]

        poll_for(found, timeout, f"{part} to be missing: {why}", every=0.1)

    def _listens(self) -> bool:
        try:
            return self.get("/healthz")[0] == 200
        except urllib.error.URLError:
            return False

    def samples(self) -> list[Sample]:
        """Scrape all samples."""
        return [
            Sample(s.name, s.labels, s.value)
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for s in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels. At least one must be there."""
        found = self._found(name, labels)
        assert found, f"{name} {labels} is not shown"
        return sum(found)

    def total(self, name: str, **labels: str) -> float:
        """Return the same, 0 while there is none."""
        return sum(self._found(name, labels))

    def _found(self, name: str, labels: dict[str, str]) -> list[float]:
        return [s.value for s in self.samples() if s.name == name and labels.items() <= s.labels.items()]
