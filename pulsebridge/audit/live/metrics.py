"""The result of an audit as metrics: a file in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pulsebridge.audit.live.findings import Report

__all__ = ["AuditMetrics", "write_metrics"]


class AuditMetrics:
    """The metrics of one audit. No device is a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._findings = Gauge(
            "pulsebridge_audit_findings",
            "Messages that the last audit found missing, repeated, reordered, altered or unexpected.",
            ["hop", "kind"],
            registry=registry,
        )
        self._messages = Gauge(
            "pulsebridge_audit_messages",
            "Messages of Pulsar and rows of tables that the last audit read.",
            ["record"],
            registry=registry,
        )
        self._run = Gauge(
            "pulsebridge_audit_run_timestamp_seconds",
            "Time of the last audit, since the epoch.",
            registry=registry,
        )

    def take(self, report: Report, at_s: float) -> None:
        """Take the report of an audit that began at ``at_s``, in seconds since the epoch."""
        self._run.set(at_s)
        for (hop, kind), count in report.counts.items():
            self._findings.labels(hop, kind).set(count)
        for record, count in report.read.items():
            self._messages.labels(record).set(count)


def write_metrics(path: Path, report: Report, at_s: float) -> None:
    """Write the file, completely or not at all. Raises OSError if its folder is not writable."""
    registry = CollectorRegistry()
    AuditMetrics(registry).take(report, at_s)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(generate_latest(registry))
    partial.chmod(0o644)
    partial.replace(path)
