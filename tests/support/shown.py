"""Looking for secrets: the forms in which an option carries one, and all that Spark shows of what it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SECRETS", "TOKEN", "checkpointed", "events", "executions", "plans", "streamed"]

TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
SECRETS = {
    "option": {"pulsar.client.token": "s3cr3t-of-option"},
    "params": {
        "pulsar.client.authPluginClassName": TOKEN, "pulsar.client.authParams": "token:s3cr3t-of-params",
        "pulsar.admin.authPluginClassName": TOKEN, "pulsar.admin.authParams": "token:s3cr3t-of-params",
    },
    "map": {
        "pulsar.client.authPluginClassName": TOKEN,
        "pulsar.client.authParamMap": json.dumps({"token": "s3cr3t-of-map"}),
    },
}  # fmt: skip


def plans(execution: Any, jvm: Any) -> str:
    """Everything that Spark shows of a query that it can run."""
    shown = [execution.toString(), execution.stringWithStats()]
    shown += [getattr(execution, of)().toJSON() for of in ("logical", "analyzed", "optimizedPlan", "executedPlan")]
    modes = jvm.org.apache.spark.sql.execution.ExplainMode
    for mode in ("simple", "extended", "formatted", "cost", "codegen"):
        shown.append(execution.explainString(modes.fromString(mode)))
    return "\n".join(shown)


def events(spark: SparkSession, marker: str) -> str:
    """The session's event log, once it records that the query of this description has ended."""
    folder = Path(urlsplit(spark.conf.get("spark.eventLog.dir") or "").path)

    def complete_log() -> str | None:
        text = "".join(log.read_text(encoding="utf-8") for log in folder.rglob("*") if log.is_file())
        lines = [line for line in text.splitlines() if marker in line]
        return text if any("SparkListenerJobStart" in line for line in lines) else None

    return str(poll_for(complete_log, 60, "the event log"))


def executions(spark: SparkSession) -> str:
    """What Spark's own pages show of every action of the session, its plans among them."""
    store = spark._jsparkSession.sharedState().statusStore()
    found = store.executionsList()
    shown = []
    for number in range(found.size()):
        one = found.apply(number)
        shown += [
            one.description(),
            one.details(),
            one.physicalPlanDescription(),
            one.modifiedConfigs().toString(),
        ]
    return "\n".join(shown)


def streamed(query: Any, jvm: Any) -> str:
    """What a streaming query shows: its last plans, ``explain()``, its progress and its status."""
    shown = plans(query._jsq.streamingQuery().lastExecution(), jvm) + query._jsq.explainInternal(True)
    return str(shown + "".join(progress.json for progress in query.recentProgress) + str(query.status))


def checkpointed(folder: Path) -> str:
    """The content of a checkpoint."""
    return "".join(file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())
