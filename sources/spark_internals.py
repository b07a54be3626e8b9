"""The only module that uses undocumented parts of Spark; a test covers each Spark version.

Without it queries would run, but slower (listeners, rows in the planner), and no checkpoint could be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.streaming import StreamingQueryListener

from bridge.errors import ConfigError, ContractError, TransientError
from sources.offsets import Offset

__all__ = ["CheckpointState", "Event", "JsonListener", "Progress", "offsets_in", "prefetching", "read_checkpoint"]

# --- listeners ---


class Progress(NamedTuple):
    """A progress in the form that the listeners here read."""

    json: str


class Event(NamedTuple):
    """The argument of ``onQueryProgress``."""

    progress: Progress


class JsonListener(StreamingQueryListener):
    """A listener whose ``onQueryProgress`` gets an event with ``progress.json`` only, as Spark's JVM writes it.

    pyspark requests each figure of a progress separately from the JVM, for each listener. A query with state needs
    several hundred requests: with small batches as much work as the batches.
    """

    @property
    def _jlistener(self) -> Any:
        """The listener's JVM object, which ``addListener`` looks up. It is pyspark's own if pyspark's parts differ from
        those of Spark 4.0 to 4.2.
        """
        if "_jlistenerobj" not in self.__dict__:
            try:
                self._jlistenerobj = _face(self)
            except (ImportError, AttributeError, TypeError):
                return super()._jlistener
        return self._jlistenerobj


def _face(listener: StreamingQueryListener) -> Any:
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import JStreamingQueryListener

    class Calls(JStreamingQueryListener):
        def onQueryProgress(self, jevent: Any) -> None:
            self.pylistener.onQueryProgress(Event(Progress(jevent.progress().json())))  # type: ignore[arg-type]

    jvm: Any = SparkContext._jvm
    return jvm.PythonStreamingQueryListenerWrapper(Calls(listener))


# --- rows in the planner ---


@cache
def prefetching() -> type | None:
    """Return the reader class that gives Spark rows together with partitions, None without one.

    Spark does so for readers made by ``simpleStreamReader``. It stores the rows in its block manager, from which
    retried tasks and tasks on other executors read them. It recognizes such a reader by its class
    (``partitions_func`` in ``pyspark/sql/streaming/python_streaming_source_runner.py``), and then calls ``getCache``.
    """
    try:
        internal = import_module("pyspark.sql.datasource_internal")
    except ImportError:
        return None
    found = getattr(internal, "_SimpleStreamReaderWrapper", None)
    return found if isinstance(found, type) and hasattr(found, "getCache") else None


# --- the checkpoint of a query ---


@dataclass(frozen=True)
class CheckpointState:
    """The last batches of a query.

    Spark's own files are only read: Spark writes ``offsets/N`` before batch N runs, and ``commits/N`` after its sink
    has it.
    """

    committed: int | None
    """The last batch that its sink has, None if there is none."""
    planned: int
    """The last batch with a range. Above ``committed``, the next start reruns it with the same range."""
    offsets: tuple[Offset, ...]
    """Where the planned batch ends, for each source of this kind in the query."""
    begin: tuple[Offset, ...]
    """Where it begins; empty for batch 0, which begins at the subscription's position."""

    @property
    def unfinished(self) -> bool:
        """Whether a batch was planned and not committed."""
        return self.committed is None or self.planned > self.committed


def read_checkpoint(folder: str) -> CheckpointState:
    """Read a query's checkpoint folder. It may be on any file system of Arrow (s3://, gs://, hdfs://, abfs://).

    Raises ConfigError if it is not a checkpoint of this source, ContractError for unreadable offsets. Raises
    TransientError if the file system is unreachable.
    """
    names, read = _file_system(folder)
    batches = sorted(int(name) for name in names("offsets") if name.isdigit())
    if not batches:
        raise ConfigError(
            f"{folder} has no offsets: it is not a checkpoint, or its query has not planned a batch yet",
            remedy="give the folder of checkpointLocation",
        )
    planned = batches[-1]
    commits = [int(name) for name in names("commits") if name.isdigit()]
    stops = offsets_in(read(f"offsets/{planned}"))
    if not stops:
        raise ConfigError(
            f"{folder} belongs to a query that does not read format pulsebridge",
            remedy="give the checkpointLocation of a query that does",
        )
    begin = offsets_in(read(f"offsets/{planned - 1}")) if planned - 1 in batches else ()
    return CheckpointState(max(commits, default=None), planned, stops, begin)


def offsets_in(text: str) -> tuple[Offset, ...]:
    """Return this source's offsets in a file of the offset log, in source order.

    The first lines are Spark's version and its own settings; then each source has a line, ``-`` without data. Lines
    of other sources are skipped. Raises ContractError for an offset of ours of another version.
    """
    found = []
    for line in text.splitlines()[1:]:
        body = _json_of(line)
        if body is not None and "t" in body and "cluster" in body:
            found.append(Offset.from_json(body))
    return tuple(found)


def _json_of(line: str) -> dict[str, Any] | None:
    # Named sources (version 2 of the log) have their name before the JSON.
    _, brace, rest = line.partition("{")
    if not brace:
        return None
    try:
        body = json.loads(brace + rest)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _file_system(folder: str) -> tuple[Callable[[str], list[str]], Callable[[str], str]]:
    """Return functions that list a sub-folder and read a file."""
    if "://" not in folder:
        base = Path(folder).expanduser()
        return lambda name: _listed(base / name), lambda name: (base / name).read_text(encoding="utf-8")
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(folder)
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"the checkpoint {folder} cannot be reached: {e}",
            remedy="give a path, or s3://, gs://, hdfs:// …",
        ) from e

    def names(name: str) -> list[str]:
        selector = fs.FileSelector(f"{path}/{name}", allow_not_found=True)
        return [info.base_name for info in _reached(lambda: system.get_file_info(selector))]

    def read(name: str) -> str:
        with system.open_input_stream(f"{path}/{name}") as stream:
            return bytes(stream.read()).decode()

    return names, lambda name: str(_reached(lambda: read(name)))


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _reached(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except UnicodeDecodeError as e:
        raise ContractError("the checkpoint's offsets are not text") from e
    except OSError as e:
        raise TransientError(f"the checkpoint cannot be read: {e}") from e
