"""Catalogue of all metrics of Pulsebridge, read from their code, for people and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from bridge.contract import RECEIPT_STATES
from bridge.health import Health
from bridge.intake.metrics import IngestMetrics, LinkMetrics, SessionMetrics
from bridge.metrics import HealthCollector
from bridge.mop_metrics import MopCollector, Traffic
from bridge.push.metrics import PushMetrics
from pulsebridge.audit.live.findings import Report
from pulsebridge.audit.live.metrics import AuditMetrics
from sources.metrics import SourceMetrics
from sources.stream_metrics import Figures, StreamMetrics

__all__ = ["Family", "catalogue", "populate", "table"]


class Family(NamedTuple):
    """One metric with its name in queries; a histogram adds ``_bucket``, ``_sum`` and ``_count``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def populate(registry: CollectorRegistry) -> None:
    """Register a sample of each metric of ingest, push, the Spark jobs and the audit, without those of the health."""
    ingest = IngestMetrics(registry)
    LinkMetrics("name", ingest)
    SessionMetrics("name", ingest)
    push = PushMetrics(registry)
    push.partition(0).lag(0)
    push.partition(0).link_up("name", False)
    push.counters["receipts"].labels(RECEIPT_STATES[0])
    push.counters["group_commands"].labels(RECEIPT_STATES[0])
    push.counters["resume_answers"].labels("resumed")
    SourceMetrics(registry).query("name")
    stream = StreamMetrics(registry)
    stream.validated("name", 1, 0)
    stream.progressed("name", Figures(1, 0.0, {"phase": 0.0}, 0, 0, 0.0, 0))
    AuditMetrics(registry).take(Report(0, 1, counts={("hop", "kind"): 1}, read={"record": 1}), 0.0)


def catalogue(*, mop: bool = True) -> list[Family]:
    """Return all families by name; with ``mop``, those of the MoP proxy's design come last."""
    registry = CollectorRegistry()
    populate(registry)
    registry.register(HealthCollector(Health()))
    found = sorted(_families(registry))
    if mop:
        names = CollectorRegistry()
        traffic = Traffic()
        traffic.add("link", "mqtt:1883", "pulsar:6650", 1, 1)
        names.register(MopCollector(lambda: {"mqtt:1883": 1}, traffic))
        found += sorted(_families(names))
    return found


def _families(registry: CollectorRegistry) -> Iterable[Family]:
    for metric in registry.collect():
        samples = [s for s in metric.samples if not s.name.endswith("_created")]
        labels = sorted({name for s in samples for name in s.labels} - {"le"})
        name = metric.name if metric.type == "histogram" else samples[0].name
        kind = "gauge" if metric.type == "info" else metric.type
        yield Family(name, kind, tuple(labels), metric.documentation)


def table(families: Iterable[Family]) -> str:
    """Return the families as a Markdown table."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{f.name}` | {f.kind} | {', '.join(f'`{label}`' for label in f.labels) or '–'} | {f.text} |"
        for f in families
    ]
    return "\n".join(rows) + "\n"
