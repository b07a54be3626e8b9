"""Reads the metrics endpoints of ingest, push and stream: links, partitions and queries.

An endpoint's answer is foreign: it is bounded in size and time, and unknown lines are left out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bridge.settings import Settings
from pulsebridge.ui.rows import age_text, clip, number_text
from streaming.tables import resolve_root

__all__ = ["Endpoint", "Endpoints", "checkpointed", "endpoint_urls", "link_rows", "query_rows"]

_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_ROWS: Final = 500

Row = dict[str, Any]
Samples = dict[str, dict[str, dict[str, float]]]
"""Value by label (``link``, ``query``), by the label's value, by metric; a histogram's buckets are left out."""


@dataclass(frozen=True)
class Endpoint:
    """The last answer of one endpoint."""

    url: str
    ready: bool = False
    missing: tuple[str, ...] = ()
    """What the process waits for, or why the endpoint does not answer."""
    samples: Samples = field(default_factory=dict)
    read_at: float = 0.0
    """Monotonic time of the answer, in seconds."""

    @property
    def tier(self) -> str:
        """The process behind it: ingest, push, stream, or empty if it does not answer."""
        tiers = {"link": "ingest", "partition": "push", "query": "stream"}
        return next((tier for label, tier in tiers.items() if label in self.samples), "")


def endpoint_urls(settings: Settings) -> tuple[str, ...]:
    """Return the endpoints to read: those of ``ui.endpoints``, else that of ``metrics``."""
    metrics = settings.metrics
    if settings.ui.endpoints or not metrics.port:
        return settings.ui.endpoints
    host = f"[{metrics.host}]" if ":" in metrics.host else metrics.host
    return (f"http://{host}:{metrics.port}",)


class Endpoints:
    """Reads the endpoints one after the other. Close it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def read(self) -> list[Endpoint]:
        """Return the current answer of each endpoint."""
        return [self._read(url) for url in self._urls]

    def _read(self, url: str) -> Endpoint:
        try:
            ready = self._client.get(f"{url}/readyz")
            found = ready.json().get("missing") or []
            missing = tuple(clip(f"{one['part']}: {one['why']}", 200) for one in found[:20])
            return Endpoint(
                url, ready.status_code == 200, missing, samples_of(self._text(f"{url}/metrics")), time.monotonic()
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as e:
            return Endpoint(url, False, (clip(f"it does not answer: {e or type(e).__name__}", 200),))

    def _text(self, url: str) -> str:
        deadline, body = time.monotonic() + _TIMEOUT_S, bytearray()
        with self._client.stream("GET", url) as answer:
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES or time.monotonic() > deadline:
                    raise ValueError("its metrics are too large or too slow")
        return body.decode("utf-8", "replace")


def samples_of(text: str) -> Samples:
    """Return the samples of ``pulsebridge_…`` with exactly one of the labels link, partition or query.

    Raises ValueError for text that is not in Prometheus' format.
    """
    found: Samples = defaultdict(lambda: defaultdict(dict))
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            (label, value), *more = [*one.labels.items(), ("", "")]
            if label in ("link", "partition", "query") and more == [("", "")] and one.name.startswith("pulsebridge_"):
                found[label][value][one.name.removeprefix("pulsebridge_")] = one.value
    return {label: dict(list(values.items())[:_MOST_ROWS]) for label, values in found.items()}


def link_rows(now: Iterable[Endpoint], before: Iterable[Endpoint]) -> list[Row]:
    """Return a row for each link of each ingest process. Rates are since the endpoints ``before``."""
    known = {one.url: one for one in before}
    rows = []
    for one in now:
        last = known.get(one.url)
        for link, values in one.samples.get("link", {}).items():
            old = last.samples.get("link", {}).get(link, {}) if last is not None else {}
            seconds = one.read_at - last.read_at if last is not None else 0.0
            name = "ingest_received_total"
            grown = values.get(name, 0.0) - old.get(name, 0.0)
            rows.append(
                {
                    "link": clip(link),
                    "process": one.url,
                    "connected": values.get("ingest_connected", 0.0) == 1.0,
                    "rate": f"{number_text(round(grown / seconds, 1))}/s" if old and seconds > 0 and grown >= 0 else "",
                    "in_flight": number_text(values.get("ingest_in_flight", 0.0)),
                    "lag": age_text(values.get("ingest_oldest_unacked_seconds", 0.0)),
                    "dead_letters": number_text(values.get("ingest_dead_letters_total", 0.0)),
                }
            )
    return rows


def query_rows(now: Iterable[Endpoint]) -> list[Row]:
    """Return a row for each Spark query, from the endpoint of its job."""
    rows = []
    for one in now:
        for query, values in sorted(one.samples.get("query", {}).items()):
            behind = values.get("source_behind_seconds")
            progress = values.get("stream_progress_age_seconds")
            rows.append(
                {
                    "query": clip(query),
                    "process": one.url,
                    "progress": "" if progress is None else f"{age_text(progress)} ago",
                    "behind": "" if behind is None else age_text(behind),
                    "entries": number_text(values.get("source_behind_entries", 0.0)) if behind is not None else "",
                    "rows": number_text(values.get("stream_rows_total", 0.0)),
                }
            )
    return rows


def checkpointed(root: str) -> list[Row]:
    """Return a row for each query with a checkpoint below a local root: its last batch, and the time of its commit."""
    rows: list[Row] = []
    folder = Path(resolve_root(root)) / "checkpoints"
    for query in sorted(folder.iterdir())[:_MOST_ROWS] if folder.is_dir() else []:
        try:
            batches = [int(one.name) for one in (query / "commits").iterdir() if one.name.isdecimal()]
            last = max(batches, default=-1)
            if last >= 0:
                ago = time.time() - (query / "commits" / str(last)).stat().st_mtime
                rows.append(
                    {"query": clip(query.name), "process": "checkpoint", "progress": f"{age_text(max(0.0, ago))} ago",
                     "behind": "", "entries": "", "rows": f"batch {last:,}"}
                )  # fmt: skip
        except OSError:  # Spark removes old files meanwhile
            continue
    return rows
