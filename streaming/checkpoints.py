"""What a query keeps beside Spark's own checkpoint: who runs it, its identity in Delta's log, each batch's recipe.

The recipe (decoders, suite, limits) by which a batch was judged is stored before the batch's first write. When a
driver dies between two tables and its rules are edited meanwhile, the batch is judged again by the recipe that it
began with, so that each row is in exactly one table (H18). Spark's own files are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from bridge.errors import ContractError, TerminalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint", "CheckpointLock", "recipe_hash", "watermark_in"]

_OURS: Final = "pulsebridge"
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_INTENTS: Final = ("intent", "intent.next")
"""The second is written first, and counts where the first was not written to its end."""
_KEPT_BATCHES: Final = 100
"""As many as Spark itself keeps of its logs (spark.sql.streaming.minBatchesToRetain)."""


def recipe_hash(recipe: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a recipe in canonical JSON."""
    return hashlib.sha256(_canonical(recipe).encode()).hexdigest()


def watermark_in(text: str) -> int:
    """Return the watermark of a batch, in ms since the epoch, from its file in Spark's offset log; 0 without one yet.

    Raises ContractError when the file is not written as Spark writes it.
    """
    lines = text.split("\n")
    try:
        return int(json.loads(lines[1])["batchWatermarkMs"])
    except (ValueError, LookupError, TypeError, OverflowError) as e:
        raise ContractError(f"Spark's offset log names no watermark: {text[:80]!r}") from e


def _canonical(recipe: Mapping[str, Any]) -> str:
    return json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Checkpoint:
    """Our files in a query's checkpoint folder, on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.folder = folder
        self._jvm: Any = spark.sparkContext._jvm
        base: Any = self._path("app_id")
        self._fs: Any = base.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._app_id = ""

    def app_id(self) -> str:
        """Return the name under which this query's batches stand in Delta's log; made once per checkpoint."""
        if not self._app_id:
            self._app_id = self._read("app_id").strip()
        if not self._app_id:
            found = f"pulsebridge-{uuid.uuid4()}"
            self._write("app_id", found)
            self._app_id = found
        return self._app_id

    def begun(self, batch_id: int) -> dict[str, Any] | None:
        """Return the recipe that a batch began with, None when it has not begun.

        A record that was not written to its end counts as none: then nothing of the batch was written either.
        """
        known = self._read(f"batches/{batch_id}").strip()
        if not _HASH.fullmatch(known):
            return None
        text = self._read(f"recipes/{known}.json")
        if hashlib.sha256(text.encode()).hexdigest() != known:
            raise TerminalError(
                f"{self.folder}/{_OURS}/recipes/{known}.json is gone or was changed, batch {batch_id} needs it",
                remedy="put the file back: it is the copy of the rules that the batch began with",
            )
        stored: dict[str, Any] = json.loads(text)
        return stored

    def begin(self, batch_id: int, recipe: Mapping[str, Any]) -> None:
        """Store the recipe of a batch that has not begun, before its first write."""
        text, name = _canonical(recipe), recipe_hash(recipe)
        if self._read(f"recipes/{name}.json") != text:
            self._write(f"recipes/{name}.json", text)
        self._write(f"batches/{batch_id}", name)
        if batch_id >= _KEPT_BATCHES:
            self._fs.delete(self._path(f"batches/{batch_id - _KEPT_BATCHES}"), False)

    def intend(self, body: Mapping[str, Any]) -> None:
        """Store what somebody is about to do beside the query, before the first write; one at a time.

        What stood there before stays until this one is written to its end: it may still be owed.
        """
        text = _canonical(body)
        for name in _INTENTS[::-1]:
            self._write(name, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
        self._fs.delete(self._path(_INTENTS[1]), False)

    def intent(self) -> dict[str, Any] | None:
        """Return what was begun and not ended, None where there is nothing.

        A record that was not written to its end counts as none: nothing was written after it either.
        """
        for record in _INTENTS:
            name, _, text = self._read(record).partition("\n")
            if hashlib.sha256(text.encode()).hexdigest() == name:
                found: dict[str, Any] = json.loads(text)
                return found
        return None

    def settle(self) -> None:
        """Forget what was begun: it is done."""
        for name in _INTENTS[::-1]:
            self._fs.delete(self._path(name), False)

    def begin_at(self, version: int) -> None:
        """Store the version of its table at which the query begins while it has no offsets."""
        self._write("first_version", str(version))

    def first_version(self) -> int | None:
        """Return that version, None where none is stored."""
        text = self._read("first_version").strip()
        return int(text) if text.isdecimal() else None

    def spark_text(self, name: str) -> str:
        """Return a file of Spark's own, by its name below the folder; empty where it is not there."""
        return self._text(self._spark_path(name))

    def set_aside(self, name: str, below: str) -> None:
        """Move a file or folder of Spark's own into a folder of ours. Nothing is done where it is not there."""
        found = self._spark_path(name)
        if self._fs.exists(found):
            self._fs.mkdirs(self._path(below))
            self._fs.rename(found, self._path(f"{below}/{name}"))

    def watermark_ms(self, batch_id: int) -> int:
        """Return the watermark that Spark fixed for a batch before it ran, in ms since the epoch.

        A batch that is run again has the same one: Spark writes it with the batch's offsets.
        """
        return watermark_in(self.spark_text(f"offsets/{batch_id}"))

    def _spark_path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{name}")

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{_OURS}/{name}")

    def _read(self, name: str) -> str:
        return self._text(self._path(name))

    def _text(self, path: Any) -> str:
        if not self._fs.exists(path):
            return ""
        stream = self._fs.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _write(self, name: str, text: str) -> None:
        stream = self._fs.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


class CheckpointLock:
    """Holds a checkpoint folder for one driver. The kernel frees it when the driver's JVM ends, however it ends.

    Only local folders are locked; on an object store Spark itself stops the second query, at its first commit.
    ``name``: what is held of it, the whole for its query, or something that one at a time does beside the query.
    ``by``: what the holder does, for whoever is refused meanwhile.
    """

    def __init__(self, spark: SparkSession, folder: str, name: str = "running", by: str = "") -> None:
        self.folder = folder
        self._name = name
        self._by = by
        self._jvm: Any = spark.sparkContext._jvm
        self._file: Any = None

    def acquire(self, wait_s: float = 5.0) -> None:
        """Take the folder. Raises TerminalError when another driver holds it for longer than ``wait_s`` seconds."""
        if "://" in self.folder:
            return
        os.makedirs(f"{self.folder}/{_OURS}", exist_ok=True)  # noqa: PTH103 — a Spark path, kept as text
        name = f"{self.folder}/{_OURS}/{self._name}"
        deadline = time.monotonic() + wait_s
        # The JVM holds the lock, not Python: it is the JVM that goes on writing when Python alone was killed.
        self._file = self._jvm.java.io.RandomAccessFile(name, "rw")
        while not self._try():
            if time.monotonic() > deadline:
                holder = self._file.readLine() or "another driver"
                self._file.close()
                self._file = None
                raise self._refused(holder)
            time.sleep(0.2)
        pid = self._jvm.java.lang.ProcessHandle.current().pid()
        self._file.setLength(0)
        by = f"{self._by}, " if self._by else ""
        self._file.writeBytes(f"{by}pid {pid} on {socket.gethostname()}\n")

    def ended(self) -> bool:
        """Return whether the driver that took the folder last has ended, or no driver ever took it; False where that is
        not known, as on an object store or another machine. Takes nothing.
        """
        if "://" in self.folder:
            return False
        try:
            text = Path(f"{self.folder}/{_OURS}/{self._name}").read_text("utf-8")
        except OSError:
            return True
        found = re.search(r"pid (\d+) on (\S+)", text)
        return found is not None and found[2] == socket.gethostname() and not psutil.pid_exists(int(found[1]))

    def _refused(self, holder: str) -> TerminalError:
        return TerminalError(
            f"checkpoint {self.folder} is in use by {holder}",
            remedy="stop that driver, or give this one a streaming.root of its own",
        )

    def _try(self) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            return self._file.getChannel().tryLock() is not None
        except Py4JJavaError as e:
            if "OverlappingFileLockException" in str(e.java_exception):
                return False  # held within this very JVM
            raise

    def release(self) -> None:
        """Give the folder back."""
        if self._file is not None:
            self._file.close()
            self._file = None
