"""A Pulsebridge installation from Python: its topics, tables, devices and commands. ``pulsebridge.connect()`` makes one.

What needs no Spark works with the core install. The rest starts a Spark session at its first use.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, overload

from bridge.contract import RECEIPT_COLUMNS, RECEIPTS_TOPIC
from bridge.errors import ConfigError, MissingExtraError, TransientError
from bridge.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from bridge.inspect.awaited import ReceiptsSince
    from bridge.pulsar.client import PulsarClient
    from bridge.routing.rules import CompiledRule
    from bridge.routing.templates import Template

__all__ = ["Connection", "Records", "Sent"]

_SHOWN: Final = 20
_BACKLOG: Final = 100_000
"""Most unacknowledged commands that ``devices`` reads."""
_SINCE_S: Final = 60.0
"""For so long, receipts are read from one position: to find the position costs a request for each partition."""


class Records(Sequence[dict[str, Any]]):
    """Records of one kind, a dictionary for each: ``records[0]["device"]``. A notebook displays the first 20 as a table."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._records = [dict(one) for one in records]

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Records:
        found = self._records[index]
        return Records(found) if isinstance(found, list) else found

    def __len__(self) -> int:
        return len(self._records)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the fields, in the order in which they first appear."""
        return tuple(dict.fromkeys(name for one in self._records for name in one))

    def to_pandas(self) -> pd.DataFrame:
        """Return the records as a pandas DataFrame. Raises MissingExtraError without pandas."""
        try:
            import pandas as pd
        except ModuleNotFoundError as e:
            raise MissingExtraError(
                "to_pandas() needs pandas, which is not installed", remedy='pip install "pulsebridge[spark]"'
            ) from e
        return pd.DataFrame(self._records, columns=list(self.columns))

    def __repr__(self) -> str:
        shown = "\n".join(map(str, self._records[:_SHOWN]))
        return f"{len(self)} records\n{shown}{self._more}" if self._records else "no records"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(one.get(name)))}</td>" for name in self.columns) + "</tr>"
            for one in self._records[:_SHOWN]
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{len(self)} records{self._more}</p>"
        )

    @property
    def _more(self) -> str:
        return f", of which {_SHOWN} are shown" if len(self) > _SHOWN else ""


def _cell(value: object) -> str:
    return "" if value is None else str(value)


class Sent:
    """Commands that Pulsar has stored. ``wait`` returns their receipts."""

    def __init__(self, commands: Records, since: ReceiptsSince) -> None:
        self.commands = commands
        """Id, and device or group, of each command."""
        self._since = since

    def wait(self, timeout_s: float = 60.0) -> Records:
        """Return the receipts of the commands, once each command has ended. ``timeout_s`` is in seconds.

        A command that failed has a receipt as well: ``state`` is the result, ``reason`` has the reason. The other fields
        are those of a receipt, with ``answer`` as text, and the times ``emitted``, ``pushed``, ``confirmed`` and
        ``answered`` in ISO 8601 (UTC), or None.

        A command to a group ends with its last member. Raises TransientError if some have not ended in time: the
        commands stay valid. Call ``wait`` again, or read ``receipts`` of the connection later.
        """
        from bridge.inspect.awaited import Awaited
        from pulsebridge.output.devices import receipt_json

        awaited = Awaited()
        for one in self.commands:
            awaited.add(one["command_id"], device=one["device"], group=one["group"])
        found = Records(receipt_json(receipt) for receipt in self._since.read(awaited, timeout_s))
        if awaited:
            raise TransientError(
                f"{len(awaited)} of {len(self.commands)} commands have no receipt after {timeout_s:g} s",
                remedy="is `pulsebridge push` running? An offline device gets its command when it reconnects; "
                "`pulsebridge commands show ID` shows where a command is",
            )
        return found

    def __repr__(self) -> str:
        return f"sent: {self.commands!r}"

    def _repr_html_(self) -> str:
        return self.commands._repr_html_()


class Connection:
    """The installation that some settings name. Each part connects at its first use. Close it, or use it in ``with``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client: PulsarClient | None = None
        self._spark: SparkSession | None = None
        self._since: tuple[float, ReceiptsSince] | None = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to Pulsar. The Spark session belongs to the process, and stays."""
        if self._client is not None:
            self._client.close()
        self._client = self._since = None

    @property
    def spark(self) -> SparkSession:
        """The Spark session: that of the notebook or of spark-submit, else a new one of this process, with Delta."""
        if self._spark is None:
            self._spark = session(self.settings)
        return self._spark

    # --- messages ---

    def read(self, topic: str, **options: object) -> DataFrame:
        """Return the messages that a topic has now. A batch query; ``options`` are those of ``format("pulsebridge")``.

        ``topic`` is the ``topic`` of a route (without routes the first level of the MQTT topic), or a full name. Several
        names are separated by commas. ``table("bronze").select("__topic").distinct()`` lists those with messages.

        The columns are those of ``bronze`` without ``stored_at``. ``payload`` is binary: cast it to string.
        ``startingTime`` and ``endingTime`` are in ms since 1970. Pulsar deletes old messages (``pulsar.retention``);
        ``bronze`` keeps them. Raises ConfigError for a topic that does not exist, with the names of those that do.
        """
        return self.spark.read.format("pulsebridge").options(**self._source(topic, options)).load()

    def stream(self, topic: str, *, name: str, **options: object) -> DataFrame:
        """Return the stream of a topic, from its first message on.

        The columns are those of ``read``. Start it with ``writeStream`` and a ``checkpointLocation``. Each query needs a
        name of its own. Keep name and checkpoint together: a used name with a new checkpoint is refused.

        Pulsar retains the messages that the query ``name`` has not read, also while it is stopped. If you no longer need
        the query, delete its name: `pulsebridge subscriptions delete`.

        Raises ConfigError as ``read``, unless ``waitingForNonExistedTopic="true"`` is among the options.
        """
        named = {"predefinedSubscription": name, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("pulsebridge").options(**self._source(topic, named)).load()

    def write(
        self, rows: DataFrame, topic: str, *, checkpoint: str | None = None, **options: object
    ) -> StreamingQuery | None:
        """Write rows to a topic as messages. The column ``value`` is the payload; ``format("pulsebridge")`` has others.

        ``topic`` is a name as in ``read``; it must exist. Rows of a stream need the folder ``checkpoint``; the query that writes them is
        returned. Rows of a batch are stored when the call returns None. Raises ConfigError without ``checkpoint``.
        """
        chosen = self._options(options) | {"topic": self._topic(topic)}
        if not rows.isStreaming:
            rows.write.format("pulsebridge").options(**chosen).mode("append").save()
            return None
        return self._start(rows, "pulsebridge", chosen, checkpoint)

    # --- commands ---

    @overload
    def send(self, device: str, payload: object, *, topic: str | None = None, **fields: object) -> Sent: ...
    @overload
    def send(self, device: DataFrame) -> Sent: ...
    def send(
        self, device: str | DataFrame, payload: object = None, *, topic: str | None = None, **fields: object
    ) -> Sent:
        """Send a command to a device, or the commands of a DataFrame. Returns when Pulsar has stored them.

        ``payload`` is bytes or text; anything else is sent as JSON. ``topic`` is the MQTT topic of the command; without
        it the ``command_topic`` of the routes counts. ``fields`` are those of a line of ``pulsebridge commands send``:
        ``command_id``, ``qos``, ``retain``, ``expires_in="2h"``, ``link``; or ``device=""`` and ``group="presses"``.

        A DataFrame of Spark, not of pandas, has the columns of ``format("pulsebridge_commands")``: at least
        ``command_id``, ``device`` and ``payload`` (binary). Without ``mqtt_topic`` the routes name it. There is no
        other argument then. A row that is not valid has no receipt: `pulsebridge dead-letters list` shows it.

        A device gets a ``command_id`` once: a new command needs a new id. Without one, ``send`` makes it. The name of a
        device is not checked: with ``push.confirm: broker`` a command to a wrong name is ``delivered``, and no
        device gets it.

        Raises ConfigError for an invalid command or an unknown topic,
        TransientError if Pulsar does not answer, TerminalError if push has never run.
        """
        if not isinstance(device, str):
            rows = self._checked_rows(device)
            if payload is not None or topic is not None or fields:
                raise ConfigError(
                    "send() got a DataFrame and other arguments", remedy="make them columns of the DataFrame"
                )
            since = self._receipts_since()
            return Sent(self._send_rows(rows), since)
        from bridge.pulsar.command_writer import CommandWriter
        from pulsebridge.command_lines import CommandSource

        group = fields.get("group")
        if topic is None:
            topic = "" if group else self.command_topic().replace(_DEVICE, device)
        given = {
            "mqtt_topic": topic,
            "payload": payload if isinstance(payload, bytes | str) else _as_json(payload),
            **({"device": device} if device else {}),
        }
        one = CommandSource(given, f"send-{uuid.uuid4().hex[:12]}", self.settings.max_name_bytes).named(fields)
        since = self._receipts_since()
        (stored,) = CommandWriter(self._pulsar).write([one])
        record = {
            "command_id": one.command_id,
            "device": getattr(one, "device", ""),
            "group": getattr(one, "group", ""),
        }
        return Sent(Records([{**record, "mqtt_topic": one.mqtt_topic, "position": stored.position}]), since)

    def command_topic(self) -> str:
        """Return the MQTT topic of commands to devices, with ``{device}`` in it. Raises ConfigError if the routes do not
        name exactly one.
        """
        from bridge.routing.rules import compile_rules

        rules, _ = compile_rules(self.settings.ingest, self.settings.pulsar)
        given = dict.fromkeys(_with_names(rule.command_topic) for rule in rules if rule.command_topic is not None)
        topics = {_of_device(rule) for rule in rules if rule.command_topic is not None}
        if len(topics) == 1 and (topic := topics.pop()) is not None:
            return topic
        raise ConfigError(
            f"the routes name no MQTT topics for commands, or several, or one that needs more than the device: "
            f"{', '.join(given) or 'none'}",
            remedy="give send() topic=, or the DataFrame a column mqtt_topic; or set command_topic of the routes "
            "(ingest.routes)",
        )

    def receipts(self) -> DataFrame:
        """Return all receipts that Pulsar has, as a DataFrame: a row for each, with state, reason and times.

        A command that waits has none. A command may have several, for example with the state ``duplicate``.
        ``sinks.receipts.with_receipts(commands, …)`` and ``by_group`` take them as they are.
        """
        rows = self.read(self.settings.pulsar.system_topic(RECEIPTS_TOPIC))  # first: it names a missing pyspark
        from pyspark.sql import functions as F

        schema = ", ".join(f"`{name}` {kind}" for name, kind in RECEIPT_COLUMNS)
        parsed = rows.withColumn("r", F.from_json(F.col("value").cast("string"), schema))
        fields = [
            F.when(F.col(f"r.{name}") > 0, F.timestamp_micros(f"r.{name}")).alias(name.removesuffix("_us"))
            if name.endswith("_us")
            else F.col(f"r.{name}")
            for name, _ in RECEIPT_COLUMNS
            if name != "v"
        ]
        return parsed.select(*fields, "value", "ledger_id", "entry_id", "batch_index")

    # --- devices and tables ---

    def devices(self, *, absent: bool = False, pending: bool = False, limit: int = 1000) -> Records:
        """Return presence and waiting commands of the devices, those with the most commands first. ``limit`` 0: all.

        ``absent``: only devices with parked commands or without a sign of life; ``pending``: only those with commands.

        A record has ``device``, ``partition``, ``presence`` (present, absent or unknown), ``last_seen``, ``link``,
        ``pending`` and ``parked`` (numbers of commands), ``oldest_pending`` and ``last_delivery``. Times are text in
        ISO 8601 (UTC), None if unknown. A device is listed if a route names it, or if it has had a command.

        Raises TransientError if Pulsar does not answer, TerminalError if push has never run.
        """
        from bridge.inspect.devices.reading import Budget, PushTopics
        from bridge.pulsar.admin import PulsarAdmin
        from pulsebridge.output.devices import overview_json
        from pulsebridge.output.overview import Overview, Selection

        now_us = time.time_ns() // 1000
        overview = Overview(Selection.of(self.settings, absent=absent, pending=pending), limit, now_us)
        with PulsarAdmin(self.settings.pulsar, timeout_s=30) as admin:
            overview.read(PushTopics(self._pulsar, admin), Budget(_BACKLOG))
        return Records(overview_json(overview, now_us, {})["devices"])

    def table(self, name: str, *, version: int | None = None, timestamp: str | None = None) -> DataFrame:
        """Return a Delta table of the pipeline: its rows now, in a version, or at a time (``2026-01-31 12:00:00``).

        ``name`` is a table such as ``readings``, ``quarantine`` or your own; ``catalog.schema.table``; or a path.
        ``quality_results`` needs a suite, ``alerts`` needs rules, and ``device_latest``, the newest value of each device
        and metric, needs its name in ``streaming.built_in``. ``DESCRIBE HISTORY`` lists the versions. ``timestamp`` is in
        the time zone of the Spark session, UTC by default.

        Raises ConfigError if the table does not exist, or for ``version`` together with ``timestamp``. A version that
        does not exist is an error of Spark.
        """
        from streaming.tables import table_of

        table = table_of(name, self.settings.streaming)
        if not table.exists(self.spark):
            raise ConfigError(
                f"the table {name} does not exist at {table.where}",
                remedy="check its name, and streaming.root (a relative one begins at the working directory) or "
                "streaming.schema_name; `pulsebridge stream` creates the tables",
            )
        if version is not None and timestamp is not None:
            raise ConfigError(f"version={version} and timestamp={timestamp!r}: give one of them")
        if version is not None:
            return self.spark.sql(f"SELECT * FROM {table.sql} VERSION AS OF {int(version)}")
        if timestamp is not None:
            from streaming.sql import literal

            return self.spark.sql(f"SELECT * FROM {table.sql} TIMESTAMP AS OF {literal(timestamp)}")
        return table.read(self.spark)

    # --- display ---

    def __repr__(self) -> str:
        return "\n".join(["Pulsebridge", *(f"  {name}: {value}" for name, value in self._facts())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self._facts())
        return f"<table><caption>Pulsebridge</caption>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        settings = self.settings
        return [
            ("Pulsar", settings.pulsar.service_url),
            ("MQTT", f"{settings.mqtt.host}:{settings.mqtt.port}"),
            ("topics", f"{settings.pulsar.tenant}/{settings.pulsar.namespace}"),
            ("tables", settings.streaming.schema_name or settings.streaming.root),
        ]

    # --- parts ---

    @property
    def _pulsar(self) -> PulsarClient:
        if self._client is None:
            from bridge.pulsar.client import PulsarClient

            self._client = PulsarClient(self.settings.pulsar)
        return self._client

    def _receipts_since(self) -> ReceiptsSince:
        from bridge.inspect.awaited import ReceiptsSince

        now = time.monotonic()
        if self._since is None or now - self._since[0] > _SINCE_S:
            self._since = now, ReceiptsSince(self._pulsar)
        return self._since[1]

    def _topic(self, name: str) -> str:
        return name if "/" in name else self.settings.pulsar.readings_topic(name)

    def _options(self, options: Mapping[str, object]) -> dict[str, Any]:
        from sources import connection_options

        return {**connection_options(self.settings.pulsar), **options}

    def _source(self, topics: str, options: Mapping[str, object]) -> dict[str, Any]:
        """Return the options that read topics. Raises ConfigError if one does not exist: Spark's own error is a
        traceback of its Python worker.
        """
        from pulsebridge.topics.existing import refuse_missing

        names = [self._topic(name.strip()) for name in topics.split(",")]
        elsewhere = {"admin.url", "service.url"} & set(options)
        if not elsewhere and str(options.get("waitingForNonExistedTopic", "")).lower() != "true":
            refuse_missing(names, self.settings.pulsar)
        return {**self._options(options), "topics": ",".join(names)}

    def _start(self, rows: DataFrame, name: str, options: dict[str, Any], checkpoint: str | None) -> StreamingQuery:
        if checkpoint is None:
            raise ConfigError("rows of a stream need a checkpoint", remedy="give checkpoint= and a folder or URI")
        return rows.writeStream.format(name).options(**options, checkpointLocation=checkpoint).start()

    @staticmethod
    def _checked_rows(rows: DataFrame) -> DataFrame:
        if not hasattr(rows, "isStreaming"):
            raise ConfigError(
                f"send() takes the name of a device or a DataFrame of Spark, not {type(rows).__name__}",
                remedy="`spark.createDataFrame(…)` makes one of rows or of pandas",
            )
        if rows.isStreaming:
            raise ConfigError(
                "send() needs the rows of a batch, and these are of a stream",
                remedy='write them with writeStream.format("pulsebridge_commands")',
            )
        return rows

    def _send_rows(self, rows: DataFrame) -> Records:
        from pyspark.sql import functions as F

        from sinks.options import sink_options

        if "mqtt_topic" not in rows.columns:
            topic = F.replace(F.lit(self.command_topic()), F.lit(_DEVICE), F.col("device"))
            rows = rows.withColumn("mqtt_topic", topic)
        rows = rows.persist()  # the ids that are awaited are those that are written
        try:
            options = sink_options(self.settings.pulsar, self.settings.max_name_bytes)
            rows.write.format("pulsebridge_commands").options(**options).mode("append").save()
            named = {n: F.col(n) if n in rows.columns else F.lit("") for n in ("command_id", "device", "group")}
            found = rows.select(*(F.coalesce(one, F.lit("")).alias(name) for name, one in named.items()))
            return Records(one.asDict() for one in found.toLocalIterator())
        finally:
            rows.unpersist()


_DEVICE: Final = "{device}"


def _as_json(payload: object) -> str:
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise ConfigError(
            f"the payload of send() cannot become JSON: {e}",
            remedy="give text, bytes, or a dict, list, number, bool or None of Python",
        ) from e


def _of_device(rule: CompiledRule) -> str | None:
    """Return the command topic of a route with ``{device}`` in it, None if it depends on more than the device's name."""
    if rule.command_topic is None or rule.device is None:
        return None
    text = _with_names(rule.command_topic).replace(_with_names(rule.device), "\0")
    return None if "{" in text else text.replace("\0", _DEVICE)


def _with_names(template: Template) -> str:
    return "".join(literal + (f"{{{name}}}" if name is not None else "") for literal, name in template.parts)


def session(settings: Settings) -> SparkSession:
    """Return the session that runs in this process, or a new one. Both know the formats.

    Raises MissingExtraError without pyspark.
    """
    from streaming.session import register, session_builder

    session_builder()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is None:
        from pulsebridge.spark_session import job_session

        return job_session(settings)
    register(running)
    return running
