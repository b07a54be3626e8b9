"""Commands to edge nodes and devices from rows with metric names, and requests for births."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sparkplug import NAMESPACE
from sparkplug.payloads import REBIRTH, command
from sparkplug.values import NUMBERS
from streaming import pipelines as dp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["commands", "declare_rebirths"]

_KEPT: Final = ("command_id", "device", "expires_at", "emitted_at", "link")
"""Columns of the sink that rows of commands may have."""
_MADE: Final = "struct<payload: binary, problem: string>"


def commands(rows: DataFrame) -> DataFrame:
    """Return the commands that write metrics, for ``dp.commands``: an NCMD, or a DCMD for a row with a ``device_id``.

    ``rows`` is a stream with the strings ``command_id``, ``device`` (``group/node``), ``metric`` and ``value``; null
    writes a null. ``device_id`` and ``datatype`` are optional, and so are ``expires_at``, ``emitted_at`` and ``link``.
    Alias and data type are those of the last birth in ``sparkplug_definitions``. A row whose metric is unknown, or whose
    value does not fit, goes to the dead letters, with the reason as its ``cause``.
    """
    from pyspark.sql import functions as F

    from sparkplug.tables import DEFINITIONS

    for name in ("device_id", "datatype"):
        if name not in rows.columns:
            rows = rows.withColumn(name, F.lit(None).cast("string"))
    born = dp.read(DEFINITIONS).selectExpr(
        "device AS _node", "device_id AS _device_id", "metric AS _metric", "alias AS _alias", "datatype AS _datatype"
    )
    rows = rows.withColumn("device_id", F.expr("nullif(device_id, '')"))
    on = F.expr("device = _node AND coalesce(device_id, '') = _device_id AND metric = _metric")
    # A broadcast keeps the order of a device's rows.
    rows = rows.join(F.broadcast(born), on, "left")
    # From type hints Spark would infer another kind of function.
    made = F.udf(lambda *given: _made(*given), _MADE)("metric", "value", F.coalesce("datatype", "_datatype"), "_alias")
    node = "split_part(device, '/', 1)", "split_part(device, '/', 2)"
    topic = (
        f"concat_ws('/', '{NAMESPACE}', {node[0]}, IF(device_id IS NULL, 'NCMD', 'DCMD'), {node[1]}, device_id) "
        "AS mqtt_topic"
    )
    kept = [name for name in _KEPT if name in rows.columns]
    return rows.withColumn("_made", made).selectExpr(*kept, topic, "_made.payload", "_made.problem AS cause")


def _made(metric: str | None, value: str | None, datatype: str | None, alias: Decimal | None) -> dict[str, Any]:
    """Return a command's payload, or why it has none."""
    if metric is None:
        return {"problem": "sparkplug: metric is null"}
    if datatype is None:
        datatype = "Boolean" if metric == REBIRTH else None
    if datatype not in NUMBERS:
        return {"problem": f"sparkplug: metric {metric!r}: no birth defines its data type, and no row names one"[:300]}
    try:
        number = None if alias is None else int(alias)
        return {"payload": command(time.time_ns() // 1_000_000, metric, value, NUMBERS[datatype], number)}
    except ValueError as e:
        return {"problem": f"sparkplug: metric {metric!r}: {e}"[:300]}


def declare_rebirths(every_s: float) -> None:
    """Declare the requests for births that are due by ``sparkplug_events``. One that waits for ``every_s`` expires."""

    @dp.commands(name="sparkplug_rebirths")
    def rebirths() -> DataFrame:
        from pyspark.sql import functions as F

        from sparkplug.tables import EVENTS

        rows = dp.read_stream(EVENTS).where("event = 'rebirth'")
        rows = rows.selectExpr(
            "substr(sha2(concat('sparkplug rebirth', to_json(_position)), 256), 1, 32) AS command_id",
            "device",
            f"concat_ws('/', '{NAMESPACE}', group_id, 'NCMD', edge_node_id) AS mqtt_topic",
            f"arrival_time + make_dt_interval(0, 0, 0, {every_s}) AS expires_at",
            "concat('sparkplug rebirth: ', detail) AS cause",
        )
        # Old gaps, of a first start or a rebuild, need no birth any more.
        rows = rows.where("expires_at > current_timestamp()")
        return rows.withColumn("payload", F.udf(_rebirth, "binary")())


def _rebirth() -> bytes:
    return command(time.time_ns() // 1_000_000, REBIRTH, "true", NUMBERS["Boolean"])
