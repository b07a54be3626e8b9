"""What Spark does not publish and the source uses: the one module that does so, with a test for each Spark version.

Without it queries would run, but slower (listeners, rows that the planner has) or unseen (what a checkpoint says).
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
    """A progress as its listeners here read it."""

    json: str


class Event(NamedTuple):
    """What ``onQueryProgress`` is given."""

    progress: Progress


class JsonListener(StreamingQueryListener):
    """A listener whose ``onQueryProgress`` is given an event that has ``progress.json`` only, as Spark's JVM writes it.

    pyspark asks the JVM for each figure of a progress by itself before it calls a listener, several hundred times for a
    query with state, and again for each listener: with small batches that was as much work as the batches.
    """

    @property
    def _jlistener(self) -> Any:
        """The listener's face for the JVM, where ``addListener`` looks for it; pyspark's own where that is made of other
        parts than those of Spark 4.0 to 4.2.
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


# --- rows that the planner has ---


@cache
def prefetching() -> type | None:
    """Return the class of the readers from which Spark takes rows together with its partitions, None where it has none.

    Spark does this for readers made by ``simpleStreamReader``: it keeps the rows in its block manager, and a task of another
    executor, or one that is tried again, takes them from there. It knows such a reader by a class of its own
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

    Spark's own files are read and never written: ``offsets/N`` is written before batch N runs, ``commits/N`` after its
    sink has it.
    """

    committed: int | None
    """The last batch that its sink has, None when there is none."""
    planned: int
    """The last batch with a range. Above ``committed`` it runs again, with the same range, at the next start."""
    offsets: tuple[Offset, ...]
    """Where the planned batch ends, for each source of this kind in the query."""
    begin: tuple[Offset, ...]
    """Where it begins; empty for batch 0, which begins at the subscription's position."""

    @property
    def unfinished(self) -> bool:
        """Whether a batch was planned and not committed."""
        return self.committed is None or self.planned > self.committed


def read_checkpoint(folder: str) -> CheckpointState:
    """Read a query's checkpoint folder, local or on any file system that Arrow reaches (s3://, gs://, hdfs://, abfs://).

    Raises ConfigError when it is none, or holds nothing of this source, ContractError for offsets that this release
    cannot read, TransientError when the file system cannot be reached.
    """
    names, read = _file_system(folder)
    batches = sorted(int(name) for name in names("offsets") if name.isdigit())
    if not batches:
        raise ConfigError(
            f"{folder} holds no offsets: it is no checkpoint, or its query has not planned a batch yet",
            remedy="give the folder of checkpointLocation",
        )
    planned = batches[-1]
    commits = [int(name) for name in names("commits") if name.isdigit()]
    ends = offsets_in(read(f"offsets/{planned}"))
    if not ends:
        raise ConfigError(
            f"{folder} belongs to a query that does not read format pulsebridge",
            remedy="give the checkpointLocation of a query that does",
        )
    begin = offsets_in(read(f"offsets/{planned - 1}")) if planned - 1 in batches else ()
    return CheckpointState(max(commits, default=None), planned, ends, begin)


def offsets_in(text: str) -> tuple[Offset, ...]:
    """Return the offsets of this source in one file of the offset log, in the order of the query's sources.

    The first lines are Spark's version and its own settings; then each source has a line, ``-`` while it has no
    data. What is not ours is passed over. Raises ContractError for an offset of another version of ours.
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
    """Return how the names in a sub-folder are listed and how a file is read."""
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
        raise ContractError("the checkpoint's offsets are no text") from e
    except OSError as e:
        raise TransientError(f"the checkpoint cannot be read: {e}") from e
