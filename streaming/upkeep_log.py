"""The log of upkeep: the requests, the processes that execute them, and the running jobs.

It is an append-only Delta table. Each event has the number after the last one, and Delta commits a number once. So all
processes see one order, and one process wins each step. A job enters the log before it starts a flow and leaves it
after its flows have ended. While a job is in the log, only this job executes requests. If the log stays unchanged for
long although a process waits, the processes in it are dead. The waiting process removes them.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import structlog

from streaming.tables import Table, create, struct_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Log", "Request", "Standing"]

_EVENT: Final = (
    "seq bigint, token string, at timestamp, event string COMMENT 'kind', id string COMMENT 'of the request', "
    "owner string COMMENT 'process', kind string, `table` string, arguments string COMMENT 'as JSON', message string"
)
_WRITER: Final = "pulsebridge-upkeep"
_log = structlog.get_logger("upkeep")


@dataclass(frozen=True)
class Request:
    """A request. ``state``: asked, staged, done or failed; ``owner``: the process that executes it, if any."""

    id: str
    kind: str = ""
    table: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: str = "asked"
    owner: str = ""
    message: str = ""

    @property
    def open(self) -> bool:
        """Whether it still has to be executed."""
        return self.state in ("asked", "staged")


@dataclass
class Standing:
    """State after the events, without Spark: the running jobs with their flows, and the requests."""

    seq: int = 0
    tokens: set[str] = field(default_factory=set)
    jobs: dict[str, list[str]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Standing:
        """Fold the rows of the table, in any order."""
        found = cls()
        for event in sorted(events, key=lambda e: int(e["seq"])):
            found._add(**event)
        return found

    def _add(self, seq: int, token: str, event: str, id: str = "", owner: str = "", kind: str = "", table: str = "",
             arguments: str = "{}", message: str = "", **_: Any) -> None:  # fmt: skip
        self.seq = seq
        self.tokens.add(token)
        known = self.requests.get(id, Request(id))
        if event == "asked":
            self.requests[id] = replace(known, kind=kind, table=table, arguments=json.loads(arguments))
        elif event == "taken":
            self.requests[id] = replace(known, owner=owner)
        elif event in ("staged", "done", "failed"):
            self.requests[id] = replace(known, state=event, message=message)
        elif event == "began":
            flows = json.loads(arguments)
            # Two jobs cannot run one flow, so the earlier one was killed.
            self._remove([job for job, its in self.jobs.items() if set(its) & set(flows)])
            self.jobs[owner] = flows
        elif event == "removed":
            self._remove(json.loads(arguments))

    def _remove(self, owners: Sequence[str]) -> None:
        self.jobs = {job: flows for job, flows in self.jobs.items() if job not in owners}
        for request in self.requests.values():
            if request.owner in owners:
                self.requests[request.id] = replace(request, owner="")

    @property
    def busy(self) -> list[Request]:
        """Requests that a process executes now."""
        return [r for r in self.requests.values() if r.open and r.owner]

    @property
    def next(self) -> Request | None:
        """The next request to execute: first one that may have changed tables."""
        waiting = [r for r in self.requests.values() if r.open and not r.owner]
        return min(waiting, key=lambda r: r.state != "staged", default=None)

    def free_for(self, owner: str) -> bool:
        """Whether this process may execute a request: no other does, and no other job runs."""
        return not self.busy and set(self.jobs) <= {owner}


class Log:
    """The table of the events. Any process may append to it."""

    def __init__(self, spark: SparkSession, table: Table, patience_s: float) -> None:
        self._spark = spark
        self.table = table
        self._patience_s = patience_s
        self._quiet = (-1, 0.0)
        self._lock = threading.Lock()
        self._made = False

    def read(self) -> Standing:
        """Return the current state. The table is created if it does not exist."""
        if not self._made:
            create(
                self._spark,
                self.table,
                struct_of(_EVENT),
                comment="Requests of `pulsebridge tables`, and the running jobs",
            )
            self._made = True
        rows = self.table.read(self._spark).collect()
        return Standing.of({k: v for k, v in row.asDict().items() if v is not None} for row in rows)

    def add(self, event: str, when: Callable[[Standing], bool] = lambda now: True, **fields: str) -> bool:
        """Append an event if ``when`` is true for the earlier events. Return whether it was appended."""
        token = uuid.uuid4().hex
        names = ("id", "owner", "kind", "table", "arguments", "message")
        with self._lock:
            while when(now := self.read()):
                row = (now.seq + 1, token, datetime.now(timezone.utc), event, *map(fields.get, names))
                try:
                    # Delta ignores a known number: then another process was first.
                    self.table.append(self._spark.createDataFrame([row], struct_of(_EVENT)), (_WRITER, now.seq + 1))
                except Exception as e:
                    if "Concurrent" not in str(e):
                        raise
                if token in self.read().tokens:
                    return True
        return False

    def forget_arguments(self) -> None:
        """Delete the arguments of finished requests, because they may name a deleted device."""
        settled = ", ".join(f"'{r.id}'" for r in self.read().requests.values() if r.kind and not r.open)
        if settled:
            statement = f"DELETE FROM {self.table.sql} WHERE event = 'asked' AND id IN ({settled})"
            with self._lock:
                self.table.change(self._spark, statement)

    def remove_if_dead(self, now: Standing) -> None:
        """Wait a moment. Remove the processes in the log if it has not changed for long."""
        if now.seq != self._quiet[0]:
            self._quiet = (now.seq, time.monotonic())
        elif time.monotonic() - self._quiet[1] > self._patience_s:
            owners = [*now.jobs, *(r.owner for r in now.busy)]
            _log.warning(
                "processes without a sign of life are removed from the log. Action: check that they have ended",
                processes=owners,
            )
            self.add("removed", lambda then: then.seq == now.seq, arguments=json.dumps(owners))
        time.sleep(min(1.0, self._patience_s))
