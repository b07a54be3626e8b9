"""Joins commands with their receipts: one row per command, in batch or as a stream.

A row has the command's last state and its times. A command is identified by its id and its device: to push, one id for
several devices is several commands.

The last receipt in a command's partition counts, where Pulsar keeps the order of a device's receipts. ``duplicate``
reports another copy of the command, so it counts only without another receipt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from bridge.contract import RECEIPT_COLUMNS, REMARKS
from bridge.errors import ContractError
from sinks.columns import COMMAND_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

__all__ = ["by_group", "latest", "with_receipts"]

_KEPT: Final = tuple(
    (name, "bigint" if kind == "timestamp" else kind)
    for name, kind in COMMAND_COLUMNS
    if name not in ("command_id", "emitted_at", "payload")
)
_RECEIPT_FIELDS: Final = (
    ("state", "string"), ("reason", "string"), ("position", "string"), ("attempts", "int"),
    ("pushed_at", "bigint"), ("confirmed_at", "bigint"),
)  # fmt: skip
_ORDER: Final = (
    ("settles", "boolean"),
    ("ledger_id", "bigint"),
    ("entry_id", "bigint"),
    ("batch_index", "int"),
)
"""Fields that order the receipts of a command."""
_TIMES: Final = ("expires_at", "pushed_at", "confirmed_at")
"""They are µs since the epoch until the last step, because JSON would keep only ms."""
_NEEDED: Final = {
    "commands": ("command_id",),
    "receipts": ("value", "ledger_id", "entry_id", "batch_index"),
}


def with_receipts(
    commands: DataFrame,
    receipts: DataFrame,
    *,
    within_s: float = 3600.0,
    mode: Literal["append", "update"] = "append",
) -> DataFrame:
    """Return one row for each command, joined with its last receipt.

    A row has the command's columns but the payload. It has ``state``, ``reason``, ``position``, ``attempts``,
    ``pushed_at`` and ``confirmed_at`` of its last receipt; and its numbers of ``copies`` and ``receipts``.

    ``commands`` has the columns of ``pulsebridge_commands``, each command once or several times. ``receipts`` is the
    topic command-receipts as ``format("pulsebridge")`` reads it. One id for several devices is several commands, and so
    several rows. Without a column ``device`` only the id counts. ``state`` is null without a receipt: the command is
    in flight, or its device is offline. A command that ``pulsebridge resend`` repeated has the state of the
    last of its copies, ``ID~2`` and so on. Copies that are among the commands have their own rows as well.

    Both may be streams. Then commands need ``emitted_at``. A command is kept until both streams contain one that is
    emitted ``within_s`` seconds later, so either may be slower. With the output mode ``append`` its row is emitted
    then, once; with ``update`` at each change until then. The stream ignores later receipts; a batch includes them. If
    ``spark.sql.streaming.noDataMicroBatches.enabled`` is false, a row waits for the next batch with data.
    ``spark.sql.streaming.multipleWatermarkPolicy`` must be ``min``, Spark's default.

    Raises ContractError if a column is missing, or if one is a stream and the other is not.
    """
    _check(commands, receipts)
    sides = [_of_commands(commands), _of_receipts(receipts, by_device="device" in commands.columns)]
    if commands.isStreaming:
        # One watermark for both would follow the faster side, and drop late rows of the slower.
        sides = [side.withWatermark("emitted_at", f"{within_s} seconds") for side in sides]
    both = sides[0].unionByName(sides[1], allowMissingColumns=True)
    return _shown(_followed(both, mode) if commands.isStreaming else _grouped(both))


def by_group(receipts: DataFrame) -> DataFrame:
    """Return the number of devices in each ``state`` by command to a group, in batch.

    Its columns are ``group``, ``group_command_id``, ``state`` and ``devices``. The receipt ``expanded`` of the group
    command has the expected number (``members``), without devices that joined later. If ``pulsebridge resend``
    repeated a member's command, the member counts once, by the last copy.

    ``receipts`` is the topic command-receipts as ``format("pulsebridge")`` reads it.
    """
    from pyspark.sql import functions as F

    of_devices = _parsed(receipts).where("r.device != '' AND (r.group != '' OR r.resend_of LIKE 'g-%')")
    own, first = F.col("r.command_id"), F.col("r.resend_of")
    whose = _struct((name, F.col(f"r.{name}")) for name in ("group", "group_command_id"))
    # A resent copy counts for the member's first command. It may be a plain command, without the group.
    last = of_devices.groupBy(F.when(first != "", first).otherwise(own).alias("first"), "r.device").agg(
        F.max(F.when(F.col("r.group") != "", whose)).alias("of"),
        F.max_by("r.state", _order()).alias("state"),
    )
    named = last.where("of IS NOT NULL")
    return named.groupBy("of.group", "of.group_command_id", "state").agg(F.count("*").alias("devices"))


def _parsed(receipts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    schema = ", ".join(f"`{name}` {kind}" for name, kind in RECEIPT_COLUMNS)
    return receipts.select(F.from_json(F.col("value").cast("string"), schema).alias("r"), *_NEEDED["receipts"][1:])


def _order() -> Column:
    from pyspark.sql import functions as F

    position = [(name, F.col(name)) for name, _ in _ORDER[1:]]
    return _struct([(_ORDER[0][0], ~F.col("r.state").isin(*REMARKS)), *position])


def _struct(fields: Iterable[tuple[str, Column]]) -> Column:
    """Return a struct of these fields. Spark 4.0 sometimes drops the alias of an expression in ``struct``."""
    from pyspark.sql import functions as F

    return F.named_struct(*(part for name, value in fields for part in (F.lit(name), value)))


def _check(commands: DataFrame, receipts: DataFrame) -> None:
    for name, frame in (("commands", commands), ("receipts", receipts)):
        needed = [*_NEEDED[name], *(["emitted_at"] if frame.isStreaming and name == "commands" else [])]
        missing = [column for column in needed if column not in frame.columns]
        if missing:
            raise ContractError(
                f"with_receipts: {name} have no column {', '.join(missing)}",
                remedy="commands: the columns of pulsebridge_commands, a stream with emitted_at; receipts: those that "
                'format("pulsebridge") reads of the topic command-receipts',
            )
    if commands.isStreaming != receipts.isStreaming:
        raise ContractError(
            "with_receipts: commands and receipts must both be streams, or neither",
            remedy="use readStream for both, or read for both",
        )


def _of_commands(commands: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    def column(name: str, kind: str) -> Column:
        if name not in commands.columns:
            return F.lit(None).cast(kind)
        return F.unix_micros(name) if name in _TIMES else F.col(name)

    emitted = (F.col("emitted_at") if "emitted_at" in commands.columns else F.lit(None)).cast("timestamp")
    command = _struct((name, column(name, kind)) for name, kind in _KEPT)
    return commands.select(
        "command_id",
        _whose(F.col("device") if "device" in commands.columns else F.lit(None)),
        F.when(F.unix_micros(emitted) > 0, emitted).alias("emitted_at"),  # the sink ignores earlier times
        command.alias("command"),
    )


def _whose(device: Column) -> Column:
    """Return the device as a part of a command's identity. It is empty for a group command, as in its receipts."""
    from pyspark.sql import functions as F

    return F.coalesce(device.cast("string"), F.lit("")).alias("whose")


def _of_receipts(receipts: DataFrame, *, by_device: bool) -> DataFrame:
    from pyspark.sql import functions as F

    read = _parsed(receipts)

    def value(name: str) -> Column:
        micros = F.col(f"r.{name}_us") if name in _TIMES else F.col(f"r.{name}")
        return F.when(micros > 0, micros) if name in _TIMES else micros

    emitted, own, first = F.col("r.emitted_at_us"), F.col("r.command_id"), F.col("r.resend_of")
    # The receipt of a resent command counts for the first command, too.
    ids = F.when(first != "", F.array(own, first)).otherwise(F.array(own))
    return read.where("r.command_id IS NOT NULL").select(
        F.explode(ids).alias("command_id"),
        _whose(F.col("r.device") if by_device else F.lit(None)),
        F.when(emitted > 0, F.timestamp_micros(emitted)).alias("emitted_at"),
        _struct((name, value(name)) for name, _ in _RECEIPT_FIELDS).alias("receipt"),
        _order().alias("order"),
    )


def _grouped(both: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return both.groupBy("command_id", "whose").agg(
        F.max(F.when(F.col("command").isNotNull(), F.col("emitted_at"))).alias("emitted_at"),
        F.first("command", ignorenulls=True).alias("command"),
        F.max_by("receipt", "order").alias("receipt"),
        F.count("command").alias("copies"),
        F.count("receipt").alias("receipts"),
    )


def _followed(both: DataFrame, mode: Literal["append", "update"]) -> DataFrame:
    from pyspark.sql import functions as F

    def struct(columns: Iterable[tuple[str, str]]) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in columns)

    rows = both.select(
        "command_id",
        "whose",
        "emitted_at",
        F.coalesce(F.unix_micros("emitted_at"), F.lit(0)).alias("emitted_us"),
        F.to_json("command").alias("command"),
        F.to_json("receipt").alias("receipt"),
        F.to_json("order").alias("order"),
    )
    found = rows.groupBy("command_id", "whose").applyInPandasWithState(
        latest(final=mode == "append"),
        outputStructType="command_id string, emitted_us bigint, command string, receipt string, copies bigint, receipts bigint",
        stateStructType="seen string",
        outputMode=mode,
        timeoutConf="EventTimeTimeout",
    )
    return found.select(
        "command_id",
        F.timestamp_micros("emitted_us").alias("emitted_at"),
        F.from_json("command", struct(_KEPT)).alias("command"),
        F.from_json("receipt", struct(_RECEIPT_FIELDS)).alias("receipt"),
        "copies",
        "receipts",
    )


def latest(*, final: bool) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return the function that Spark calls on executors for each command of a micro-batch.

    Its input is the command's new rows. After the watermark has passed the command, Spark calls it a last time. With
    ``final`` it emits a row only then.
    """

    def call(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        seen: dict[str, Any] = {
            "command": None,
            "emitted": 0,
            "at": 0,
            "receipt": None,
            "order": [],
            "copies": 0,
            "receipts": 0,
        }
        if state.exists:
            seen = json.loads(state.get[0])
        ended = state.hasTimedOut
        if ended:
            state.remove()
        else:
            for chunk in chunks:
                for row in chunk.itertuples(index=False):
                    _take(seen, row)
            state.update((json.dumps(seen),))
            # Rows that are not late may be at the watermark itself, and a time-out must be after it.
            state.setTimeoutTimestamp(max(seen["at"] // 1000, state.getCurrentWatermarkMs()) + 1)
        if seen["command"] is not None and ended == final:
            found = pd.DataFrame(
                {
                    "command_id": [key[0]],
                    **{name: [seen[name]] for name in ("command", "receipt", "copies", "receipts")},
                }
            )
            # pandas makes a float of a nullable number, and a float loses microseconds.
            found.insert(1, "emitted_us", pd.array([seen["emitted"] or None], dtype="Int64"))
            yield found

    return call


def _take(seen: dict[str, Any], row: Any) -> None:
    seen["at"] = max(seen["at"], int(row.emitted_us))
    if isinstance(row.command, str):
        seen["command"] = seen["command"] or row.command
        seen["emitted"] = max(seen["emitted"], int(row.emitted_us))
        seen["copies"] += 1
    if isinstance(row.receipt, str):
        seen["receipts"] += 1
        fields = json.loads(row.order)
        order = [fields[name] for name, _ in _ORDER]
        if order >= seen["order"]:
            seen["receipt"], seen["order"] = row.receipt, order


def _shown(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    def column(parent: str, name: str) -> Column:
        value = F.col(f"{parent}.{name}")
        return (F.timestamp_micros(value) if name in _TIMES else value).alias(name)

    return found.where("command IS NOT NULL").select(
        "command_id",
        "emitted_at",
        *(column("command", name) for name, _ in _KEPT),
        *(column("receipt", name) for name, _ in _RECEIPT_FIELDS),
        "copies",
        "receipts",
    )
