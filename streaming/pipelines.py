"""Decorators that declare a pipeline: tables, views, flows and commands. ``from streaming import pipelines as dp``.

Decorators and arguments are named as in Spark's Declarative Pipelines (``pyspark.pipelines``), so that a migration
changes only imports. Additions of this runtime have defaults: ``keys``, ``suite``, ``schema_evolution``, ``trigger_s``.

A declared table is created with comments, clustering and properties. It automatically has a checkpoint, exactly-once
writes, its suite, its quarantine, metrics, ``--only`` and deletion of a device. The built-in tables are declared by the
same decorators (``streaming.built_in``). The functions are called when the job starts, on the driver. They return lazy
frames, read by ``messages``, ``read`` and ``read_stream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bridge.settings.tables import Decoding

__all__ = [
    "DEVICES",
    "Declared",
    "Flow",
    "Pipeline",
    "append_flow",
    "commands",
    "create_auto_cdc_flow",
    "create_streaming_table",
    "declaring",
    "decoded",
    "materialized_view",
    "messages",
    "read",
    "read_stream",
    "running",
    "table",
    "temporary_view",
]

Query = Callable[[], "DataFrame"]
Kind = Literal["append", "view", "cdc", "commands"]
Evolution = Literal["rescue", "add_columns", "fail"]
DEVICES: Final = "(devices)"
"""Target of the flows of commands, which have no table."""


@dataclass(frozen=True)
class Declared:
    """A table of the pipeline, as declared."""

    name: str
    comment: str = ""
    schema: Any = None
    """StructType or DDL; None: the schema of its flows."""
    cluster_by: tuple[str, ...] = ()
    partition_cols: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """Columns whose combination is unique: a row with an existing key is left out."""
    suite: str | None = None
    """Name of the suite of Great Expectations that splits rows from quarantine."""
    schema_evolution: Evolution = "rescue"
    device_column: str | None = "device"
    """The column that names the device, for its deletion; None: the table has no device."""


@dataclass(frozen=True)
class Flow:
    """A source of rows for a table, or of commands for devices."""

    name: str
    target: str
    query: Query
    kind: Kind = "append"
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger_s: float | None = None
    """Seconds between micro-batches; None: ``interval`` of ``streaming.trigger``, of commands ``commands_interval``."""
    keys: tuple[str, ...] = ()
    within: tuple[str, str] | None = None
    sequence_by: str | None = None


@dataclass
class Pipeline:
    """All declarations, in order."""

    tables: dict[str, Declared] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    views: dict[str, Query] = field(default_factory=dict)

    def add_table(self, declared: Declared) -> None:
        """Add a table. Raises ConfigError if its name is in use."""
        if declared.name in self.tables or declared.name in self.views:
            raise ConfigError(
                f"two tables are named {declared.name!r}",
                remedy="rename one of them, or make it a flow",
            )
        self.tables[declared.name] = declared

    def add_flow(self, flow: Flow) -> None:
        """Add a flow. Raises ConfigError if its name is in use."""
        if flow.name in self.flows:
            raise ConfigError(f"two flows are named {flow.name!r}", remedy="rename one of them")
        self.flows[flow.name] = flow

    def check(self) -> None:
        """Raise ConfigError for a flow into an undeclared table, or a table without a flow."""
        for flow in self.flows.values():
            if flow.kind != "commands" and flow.target not in self.tables:
                raise ConfigError(
                    f"flow {flow.name!r}: table {flow.target!r} does not exist",
                    remedy=f"declare it with create_streaming_table({flow.target!r}), or correct the name",
                )
        filled = [flow.target for flow in self.flows.values()]
        for name, declared in self.tables.items():
            if declared.keys and filled.count(name) > 1:
                raise ConfigError(
                    f"table {name!r} has keys and {filled.count(name)} flows, which do not see each other's rows",
                    remedy="fill it by one flow, from a union of frames",
                )
            if name not in filled:
                raise ConfigError(f"table {name!r} has no flow", remedy=f"add one with @append_flow(target={name!r})")

    def flows_of(self, table: str) -> list[Flow]:
        """Return the flows into a table."""
        return [f for f in self.flows.values() if f.target == table]


_declaring: ContextVar[Pipeline | None] = ContextVar("declaring", default=None)
_running: ContextVar[Any] = ContextVar("running", default=None)


@contextmanager
def declaring(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Collect in ``pipeline`` the declarations within the block."""
    token = _declaring.set(pipeline)
    try:
        yield pipeline
    finally:
        _declaring.reset(token)


@contextmanager
def running(reader: Any) -> Iterator[None]:
    """Make ``messages``, ``read`` and ``read_stream`` use ``reader`` within the block."""
    token = _running.set(reader)
    try:
        yield
    finally:
        _running.reset(token)


def _pipeline() -> Pipeline:
    found = _declaring.get()
    if found is None:
        raise ConfigError(
            "a table is declared outside of a pipeline",
            remedy="name the module in streaming.modules and run `pulsebridge stream`",
        )
    return found


def _reader() -> Any:
    found = _running.get()
    if found is None:  # in a notebook, or in Spark's own pipelines
        from streaming.reading import Reader

        return Reader.of_session()
    return found


def table(
    query_function: Query | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: Any = None,
    keys: Sequence[str] = (),
    suite: str | None = None,
    schema_evolution: Evolution = "rescue",
    device_column: str | None = "device",
    trigger_s: float | None = None,
) -> Callable[..., Any]:
    """Declare a streaming table and the flow that fills it. The decorated function returns a streaming frame.

    ``keys``: columns that identify a row; a row with an existing key is left out (without keys: no look-up). ``suite``:
    rows that fail one of its critical expectations go to quarantine. ``schema_evolution``: the handling of undeclared
    payload fields: as JSON in ``_rescued_data``, as columns of the table, or by an error that stops the job.
    ``device_column``: where ``pulsebridge tables forget`` finds the device. ``trigger_s``: seconds between
    micro-batches. The others are as in ``pyspark.pipelines.table``.

    Raises ConfigError if the name is in use.
    """

    def declare(function: Query) -> Query:
        called = name or function.__name__
        create_streaming_table(
            called,
            comment=comment or (function.__doc__ or "").strip().partition("\n")[0],
            table_properties=table_properties,
            partition_cols=partition_cols,
            cluster_by=cluster_by,
            schema=schema,
            keys=keys,
            suite=suite,
            schema_evolution=schema_evolution,
            device_column=device_column,
        )
        _pipeline().add_flow(Flow(called, called, function, spark_conf=spark_conf or {}, trigger_s=trigger_s))
        return function

    return declare if query_function is None else declare(query_function)


def create_streaming_table(
    name: str,
    *,
    comment: str | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: Any = None,
    keys: Sequence[str] = (),
    suite: str | None = None,
    schema_evolution: Evolution = "rescue",
    device_column: str | None = "device",
) -> None:
    """Declare a streaming table that flows fill (``append_flow``, ``create_auto_cdc_flow``); see ``table``."""
    _pipeline().add_table(
        Declared(
            name,
            comment or "",
            schema,
            tuple(cluster_by or ()),
            tuple(partition_cols or ()),
            dict(table_properties or {}),
            tuple(keys),
            suite,
            schema_evolution,
            device_column,
        )
    )


def append_flow(
    *,
    target: str,
    name: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    trigger_s: float | None = None,
) -> Callable[[Query], Query]:
    """Declare a further flow into a table. The decorated function returns a streaming frame of its columns."""

    def declare(function: Query) -> Query:
        _pipeline().add_flow(
            Flow(name or function.__name__, target, function, spark_conf=spark_conf or {}, trigger_s=trigger_s)
        )
        return function

    return declare


def materialized_view(
    query_function: Query | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: Any = None,
    keys: Sequence[str] = (),
    within: tuple[str, str] | None = None,
    suite: str | None = None,
    device_column: str | None = "device",
    trigger_s: float | None = None,
) -> Callable[..., Any]:
    """Declare a table that follows the decorated function's result on the tables that it reads.

    ``keys``: the columns by which it groups. After each change of a table that it reads, the rows of the affected keys
    are recomputed and merged. So a late reading corrects its window. ``within``: a column of time and
    the longest span of one key, ``("event_time", "1 hour")``: rows further off are not read.
    Raises ConfigError without keys, or if the name is in use.
    """

    def declare(function: Query) -> Query:
        called = name or function.__name__
        if not keys:
            raise ConfigError(f"view {called!r} has no keys", remedy="name the columns by which it groups: keys=[…]")
        create_streaming_table(
            called,
            comment=comment or (function.__doc__ or "").strip().partition("\n")[0],
            table_properties=table_properties,
            partition_cols=partition_cols,
            cluster_by=cluster_by,
            schema=schema,
            suite=suite,
            device_column=device_column,
        )
        _pipeline().add_flow(Flow(called, called, function, "view", spark_conf or {}, trigger_s, tuple(keys), within))
        return function

    return declare if query_function is None else declare(query_function)


def temporary_view(query_function: Query | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Declare a name for a frame that other functions read (``read``, ``read_stream``). It stores nothing."""

    def declare(function: Query) -> Query:
        called = name or function.__name__
        pipeline = _pipeline()
        if called in pipeline.tables or called in pipeline.views:
            raise ConfigError(f"two tables are named {called!r}", remedy="rename one of them")
        pipeline.views[called] = function
        return function

    return declare if query_function is None else declare(query_function)


def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: Sequence[str],
    sequence_by: str,
    *,
    name: str | None = None,
    trigger_s: float | None = None,
) -> None:
    """Declare the flow that keeps each key's row of ``source`` with the greatest ``sequence_by``. This is an SQL
    expression; null is the least. An older row never overwrites a newer one, in any order of arrival.
    """
    _pipeline().add_flow(
        Flow(
            name or target,
            target,
            lambda: read_stream(source),
            "cdc",
            trigger_s=trigger_s,
            keys=tuple(keys),
            sequence_by=sequence_by,
        )
    )


def commands(
    query_function: Query | None = None,
    *,
    name: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    trigger_s: float | None = None,
) -> Callable[..., Any]:
    """Declare commands to devices. The decorated function returns a streaming frame with the columns of
    ``format("pulsebridge_commands")``. A device gets a ``command_id`` once, also if a batch is repeated.
    """

    def declare(function: Query) -> Query:
        _pipeline().add_flow(
            Flow(
                name or function.__name__, DEVICES, function, "commands", spark_conf or {}, trigger_s
            )
        )  # fmt: skip
        return function

    return declare if query_function is None else declare(query_function)


def messages(filter: str = "#", **declared: Any) -> DataFrame:
    """Return the stream of the MQTT messages whose topic matches a filter, decoded as ``declared``.

    ``fields`` is the DDL of the payload's fields; the other arguments are those of ``streaming.decoding.Decoding``.
    Without a declaration the rows are the unchanged messages (``bridge.contract.SOURCE_COLUMNS``). Outside a job the
    filter is part of the subscription's name in Pulsar, so one reader can use a filter there. Raises ConfigError for an
    invalid declaration.
    """
    found: DataFrame = _reader().messages(filter, declared)
    return found


def decoded(decodings: Sequence[Decoding]) -> DataFrame:
    """Return the messages of several declarations as a stream. The first matching filter decodes a message."""
    found: DataFrame = _reader().decoded(decodings)
    return found


def read(name: str) -> DataFrame:
    """Return the rows of the pipeline's table or view, or of any other table."""
    found: DataFrame = _reader().read(name)
    return found


def read_stream(name: str) -> DataFrame:
    """Return the stream of new rows of a table or view, or any other table."""
    found: DataFrame = _reader().read_stream(name)
    return found
