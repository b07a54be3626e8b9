"""Commands beside their receipts: one row per command, with its last state and its times, in batch or as a stream.

A command is its id and its device: push takes one id for several devices for as many commands.

It decides which of a command's receipts counts: the last one in its partition, where Pulsar keeps a device's receipts
in order, but never ``duplicate``, which tells of another copy of the command, as long as there is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from bridge.contract import COMMAND_COLUMNS, RECEIPT_COLUMNS
from bridge.errors import ContractError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

__all__ = ["by_group", "latest", "with_receipts"]

_KEPT: Final = tuple(
    (name, "bigint" if kind == "timestamp" else kind)
    for name, kind in COMMAND_COLUMNS
    if name not in ("command_id", "emitted_at", "payload")
)
_TOLD: Final = (
    ("state", "string"), ("reason", "string"), ("position", "string"), ("attempts", "int"),
    ("pushed_at", "bigint"), ("confirmed_at", "bigint"),
)  # fmt: skip
_ORDER: Final = (
    ("settles", "boolean"),
    ("ledger_id", "bigint"),
    ("entry_id", "bigint"),
    ("batch_index", "int"),
)
"""What makes one receipt later than another."""
_TIMES: Final = ("expires_at", "pushed_at", "confirmed_at")
"""They are µs since the epoch until the last step: JSON would keep ms."""
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
    """Return a row for each command: its columns but the payload; ``state``, ``reason``, ``position``, ``attempts``,
    ``pushed_at`` and ``confirmed_at`` of its last receipt; and how many ``copies`` and ``receipts`` of it there are.

    ``commands`` has the columns of ``pulsebridge_commands``, each command once or several times; ``receipts`` is the
    topic command-receipts as ``format("pulsebridge")`` reads it. One id for several devices is as many commands, as it
    is to push, and so as many rows; without a column ``device`` the id alone counts. Without a receipt ``state`` is null:
    the command is under way, or its device is away. A command that ``pulsebridge commands resend`` sent again has the state of the last
    of its copies, ``ID~2`` and so on; where these stand among the commands they have rows of their own as well.

    Both may be streams. Then commands need ``emitted_at``, and a command is followed until both have told of one that is
    emitted ``within_s`` seconds later, so that neither has to keep pace with the other: with the output mode ``append``
    its row comes then, once; with ``update`` whenever it has changed until then. A receipt that comes later is not seen
    by the stream; a batch sees it. Where ``spark.sql.streaming.noDataMicroBatches.enabled`` is false a row waits for the
    next batch that has data, and ``spark.sql.streaming.multipleWatermarkPolicy`` is to be ``min``, as Spark has it.

    Raises ContractError when a column is missing, or when one is a stream and the other is not.
    """
    _check(commands, receipts)
    sides = [_of_commands(commands), _of_receipts(receipts, by_device="device" in commands.columns)]
    if commands.isStreaming:
        # On each side: one for both would follow the faster one, and drop what is late beside that.
        sides = [side.withWatermark("emitted_at", f"{within_s} seconds") for side in sides]
    both = sides[0].unionByName(sides[1], allowMissingColumns=True)
    return _shown(_followed(both, mode) if commands.isStreaming else _grouped(both))


def by_group(receipts: DataFrame) -> DataFrame:
    """Return how many devices are in which ``state`` for each command to a group: the columns ``group``,
    ``group_command_id``, ``state`` and ``devices``. The receipt ``expanded`` of the group command itself says how many
    there are to be (``members``), not counting who joined later. A member to which ``pulsebridge commands resend`` sent
    its command again counts once, by the last of the copies.

    ``receipts`` is the topic command-receipts as ``format("pulsebridge")`` reads it, in batch.
    """
    from pyspark.sql import functions as F

    told = _parsed(receipts).where("r.device != '' AND (r.group != '' OR r.resend_of LIKE 'g-%')")
    own, first = F.col("r.command_id"), F.col("r.resend_of")
    whose = _struct((name, F.col(f"r.{name}")) for name in ("group", "group_command_id"))
    # A copy that sends a member's command again counts for that one; it may be a plain command, without the group.
    last = told.groupBy(F.when(first != "", first).otherwise(own).alias("first"), "r.device").agg(
        F.max(F.when(F.col("r.group") != "", whose)).alias("of"),
        F.max_by("r.state", _place()).alias("state"),
    )
    named = last.where("of IS NOT NULL")
    return named.groupBy("of.group", "of.group_command_id", "state").agg(F.count("*").alias("devices"))


def _parsed(receipts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    schema = ", ".join(f"`{name}` {kind}" for name, kind in RECEIPT_COLUMNS)
    return receipts.select(F.from_json(F.col("value").cast("string"), schema).alias("r"), *_NEEDED["receipts"][1:])


def _place() -> Column:
    from pyspark.sql import functions as F

    places = [(name, F.col(name)) for name, _ in _ORDER[1:]]
    return _struct([(_ORDER[0][0], F.col("r.state") != "duplicate"), *places])


def _struct(fields: Iterable[tuple[str, Column]]) -> Column:
    """Return a struct of these fields. Spark 4.0 forgets the alias of an expression in ``struct``, here and there."""
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
            "with_receipts: commands and receipts are to be both streams, or both not",
            remedy="use readStream for both, or read",
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
        F.when(F.unix_micros(emitted) > 0, emitted).alias("emitted_at"),  # the sink knows none before
        command.alias("command"),
    )


def _whose(device: Column) -> Column:
    """Return the device as a part of a command's identity; empty for a command to a group, as in its receipts."""
    from pyspark.sql import functions as F

    return F.coalesce(device.cast("string"), F.lit("")).alias("whose")


def _of_receipts(receipts: DataFrame, *, by_device: bool) -> DataFrame:
    from pyspark.sql import functions as F

    read = _parsed(receipts)

    def told(name: str) -> Column:
        micros = F.col(f"r.{name}_us") if name in _TIMES else F.col(f"r.{name}")
        return F.when(micros > 0, micros) if name in _TIMES else micros

    emitted, own, first = F.col("r.emitted_at_us"), F.col("r.command_id"), F.col("r.resend_of")
    # What became of a command that was sent again became of the first one, too.
    ids = F.when(first != "", F.array(own, first)).otherwise(F.array(own))
    return read.where("r.command_id IS NOT NULL").select(
        F.explode(ids).alias("command_id"),
        _whose(F.col("r.device") if by_device else F.lit(None)),
        F.when(emitted > 0, F.timestamp_micros(emitted)).alias("emitted_at"),
        _struct((name, told(name)) for name, _ in _TOLD).alias("told"),
        _place().alias("place"),
    )


def _grouped(both: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return both.groupBy("command_id", "whose").agg(
        F.max(F.when(F.col("command").isNotNull(), F.col("emitted_at"))).alias("emitted_at"),
        F.first("command", ignorenulls=True).alias("command"),
        F.max_by("told", "place").alias("told"),
        F.count("command").alias("copies"),
        F.count("told").alias("receipts"),
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
        F.to_json("told").alias("told"),
        F.to_json("place").alias("place"),
    )
    found = rows.groupBy("command_id", "whose").applyInPandasWithState(
        latest(final=mode == "append"),
        outputStructType="command_id string, emitted_us bigint, command string, told string, copies bigint, receipts bigint",
        stateStructType="seen string",
        outputMode=mode,
        timeoutConf="EventTimeTimeout",
    )
    return found.select(
        "command_id",
        F.timestamp_micros("emitted_us").alias("emitted_at"),
        F.from_json("command", struct(_KEPT)).alias("command"),
        F.from_json("told", struct(_TOLD)).alias("told"),
        "copies",
        "receipts",
    )


def latest(*, final: bool) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each command of a micro-batch, on an executor, with its new rows, and
    once more when the watermark has passed the command. ``final``: a row comes only then.
    """

    def call(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        seen: dict[str, Any] = {
            "command": None,
            "emitted": 0,
            "at": 0,
            "told": None,
            "place": [],
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
            # Rows that are not late may stand at the watermark itself, and a time-out must lie behind it.
            state.setTimeoutTimestamp(max(seen["at"] // 1000, state.getCurrentWatermarkMs()) + 1)
        if seen["command"] is not None and ended == final:
            found = pd.DataFrame(
                {
                    "command_id": [key[0]],
                    **{name: [seen[name]] for name in ("command", "told", "copies", "receipts")},
                }
            )
            # A float, which pandas makes of a number that may be null, has not all microseconds.
            found.insert(1, "emitted_us", pd.array([seen["emitted"] or None], dtype="Int64"))
            yield found

    return call


def _take(seen: dict[str, Any], row: Any) -> None:
    seen["at"] = max(seen["at"], int(row.emitted_us))
    if isinstance(row.command, str):
        seen["command"] = seen["command"] or row.command
        seen["emitted"] = max(seen["emitted"], int(row.emitted_us))
        seen["copies"] += 1
    if isinstance(row.told, str):
        seen["receipts"] += 1
        told = json.loads(row.place)
        place = [told[name] for name, _ in _ORDER]
        if place >= seen["place"]:
            seen["told"], seen["place"] = row.told, place


def _shown(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    def column(parent: str, name: str) -> Column:
        value = F.col(f"{parent}.{name}")
        return (F.timestamp_micros(value) if name in _TIMES else value).alias(name)

    return found.where("command IS NOT NULL").select(
        "command_id",
        "emitted_at",
        *(column("command", name) for name, _ in _KEPT),
        *(column("told", name) for name, _ in _TOLD),
        "copies",
        "receipts",
    )
