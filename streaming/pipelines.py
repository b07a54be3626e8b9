"""What a pipeline declares: tables, views, flows and commands. ``from streaming import pipelines as dp``.

Decorators and arguments are named as in Spark's Declarative Pipelines (``pyspark.pipelines``), so that moving there is
a matter of imports. What this runtime adds has a default: ``keys``, ``suite``, ``schema_evolution``, ``trigger_s``.

A declared table gets by itself: creation with comments, clustering and properties; a checkpoint; exactly-once writes;
its suite and its quarantine; metrics; ``--only``; deletion of a device. The built-in tables are declared by the same
decorators (``streaming.built_in``). The functions are called when the job starts, on the driver: they return lazy
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
"""Target of the flows of commands, where others have a table."""


@dataclass(frozen=True)
class Declared:
    """A table of the pipeline, as it was declared."""

    name: str
    comment: str = ""
    schema: Any = None
    """StructType or DDL; None: that of what its flows give."""
    cluster_by: tuple[str, ...] = ()
    partition_cols: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """Columns of which a combination is there once: a row whose key is there already is left out."""
    suite: str | None = None
    """Name of the suite of Great Expectations that splits rows from quarantine."""
    schema_evolution: Evolution = "rescue"
    device_column: str | None = "device"
    """The column that names the device, for its deletion; None: the table knows of no device."""


@dataclass(frozen=True)
class Flow:
    """What brings rows into a table, or commands to devices."""

    name: str
    target: str
    query: Query
    kind: Kind = "append"
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger_s: float | None = None
    """Seconds between micro-batches; None: ``streaming.trigger_s``, of commands ``streaming.commands_trigger_s``."""
    keys: tuple[str, ...] = ()
    within: tuple[str, str] | None = None
    sequence_by: str | None = None


@dataclass
class Pipeline:
    """All that was declared, in its order."""

    tables: dict[str, Declared] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    views: dict[str, Query] = field(default_factory=dict)

    def add_table(self, declared: Declared) -> None:
        """Add a table. Raises ConfigError where its name is taken."""
        if declared.name in self.tables or declared.name in self.views:
            raise ConfigError(
                f"two tables are named {declared.name!r}",
                remedy="give one of them another name, or make it a flow",
            )
        self.tables[declared.name] = declared

    def add_flow(self, flow: Flow) -> None:
        """Add a flow. Raises ConfigError where its name is taken."""
        if flow.name in self.flows:
            raise ConfigError(f"two flows are named {flow.name!r}", remedy="give one of them another name")
        self.flows[flow.name] = flow

    def check(self) -> None:
        """Raise ConfigError for a flow into an undeclared table, or a table that no flow fills."""
        for flow in self.flows.values():
            if flow.kind != "commands" and flow.target not in self.tables:
                raise ConfigError(
                    f"flow {flow.name!r}: there is no table {flow.target!r}",
                    remedy=f"declare it by create_streaming_table({flow.target!r}), or correct the name",
                )
        filled = [flow.target for flow in self.flows.values()]
        for name, declared in self.tables.items():
            if declared.keys and filled.count(name) > 1:
                raise ConfigError(
                    f"table {name!r} has keys and {filled.count(name)} flows, which do not see each other's rows",
                    remedy="let one flow fill it, from a union of frames",
                )
            if name not in filled:
                raise ConfigError(f"table {name!r} has no flow", remedy=f"add one by @append_flow(target={name!r})")

    def flows_of(self, table: str) -> list[Flow]:
        """Return the flows into a table."""
        return [f for f in self.flows.values() if f.target == table]


_declaring: ContextVar[Pipeline | None] = ContextVar("declaring", default=None)
_running: ContextVar[Any] = ContextVar("running", default=None)


@contextmanager
def declaring(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Collect in ``pipeline`` what the decorators declare within."""
    token = _declaring.set(pipeline)
    try:
        yield pipeline
    finally:
        _declaring.reset(token)


@contextmanager
def running(reader: Any) -> Iterator[None]:
    """Let ``messages``, ``read`` and ``read_stream`` ask ``reader`` within."""
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
    """Declare a streaming table and the flow that fills it: the decorated function returns a streaming frame.

    ``keys``: columns that identify a row; one whose key is there already is left out (without: nothing is looked up).
    ``suite``: rows that fail one of its critical expectations go to quarantine. ``schema_evolution``: what becomes of
    payload fields that the declaration does not know: JSON in ``_rescued_data``, columns of the table, or an error that
    stops the job. ``device_column``: where ``pulsebridge tables forget`` finds the device. ``trigger_s``: seconds between
    micro-batches. The others as in ``pyspark.pipelines.table``.

    Raises ConfigError where the name is taken.
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
    """Declare a further flow into a table: the decorated function returns a streaming frame of its columns."""

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
    """Declare a table that is always what the decorated function gives of the tables that it reads (``read``).

    ``keys``: the columns by which it groups. Whenever rows of a table that it reads come, change or go, the rows of
    the keys concerned are recomputed and merged, so that a late reading corrects its window. ``within``: a column of
    time and the longest span of it that one key covers, ``("event_time", "1 hour")``: no rows further away are read.
    Raises ConfigError without keys, or where the name is taken.
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
    """Declare a name for a frame that other functions read (``read``, ``read_stream``); nothing is stored."""

    def declare(function: Query) -> Query:
        called = name or function.__name__
        pipeline = _pipeline()
        if called in pipeline.tables or called in pipeline.views:
            raise ConfigError(f"two tables are named {called!r}", remedy="give one of them another name")
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
    """Declare the flow that keeps of each key the row of ``source`` with the greatest ``sequence_by``, an SQL expression
    (null is the least). An older row never overwrites a newer one, in whatever order they come.
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
    """Declare commands to devices: the decorated function returns a streaming frame with the columns of
    ``format("pulsebridge_commands")``. A device gets a ``command_id`` once, whatever is run again.
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
    """Return the stream of the MQTT messages whose topic a filter matches, decoded as ``declared`` says.

    ``fields`` is the DDL of the payload's fields, the others are those of ``streaming.decoding.Decoding``. Without any
    declaration the rows are the messages as they are (``bridge.contract.SOURCE_COLUMNS``). Outside of a job the
    subscription in Pulsar has the filter in its name: there a filter can be read once. Raises ConfigError for a
    declaration that will not do.
    """
    found: DataFrame = _reader().messages(filter, declared)
    return found


def decoded(decodings: Sequence[Decoding]) -> DataFrame:
    """Return the stream of the messages of several declarations, each decoded by the first whose filter matches."""
    found: DataFrame = _reader().decoded(decodings)
    return found


def read(name: str) -> DataFrame:
    """Return the rows of a table or view of the pipeline, or of any other table."""
    found: DataFrame = _reader().read(name)
    return found


def read_stream(name: str) -> DataFrame:
    """Return the stream of the rows that come into a table or view of the pipeline, or into any other table."""
    found: DataFrame = _reader().read_stream(name)
    return found
