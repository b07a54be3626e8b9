"""A query into bronze whose planner, workers, driver and Pulsar are killed while a writer publishes, and the account."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import psutil
import pulsar

from bridge.settings import PulsarSettings, Settings, StreamingSettings
from pulsebridge.local.stack import LocalStack
from streaming.reading import MESSAGE_COLUMNS
from streaming.tables import table_of
from tests.support.pulsar_topics import KINDS, TestTopic
from tests.support.reading_back import read_back
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

__all__ = ["Account", "SourceWorld", "Writer", "query_of", "source_world"]

Victim = Literal["planner", "worker", "driver", "pulsar"]
VICTIMS: Final[tuple[Victim, ...]] = ("planner", "worker", "driver", "pulsar")
_WEIGHTS: Final = (4, 4, 1, 1)
"""A driver and a Pulsar take a quarter of a minute to come back."""
_COMMANDS: Final = {"planner": "python_streaming_source_runner", "worker": "pyspark.worker"}
_BURST: Final = 6000
"""More entries than a batch from the hot tail may have: the workers read them."""

Place = tuple[int, int, int, int]
"""Partition, ledger, entry, index in the batch."""


def query_of(spark: SparkSession, settings: Settings, options: dict[str, str]) -> DataStreamWriter:
    """Return the writer of the query into the table, by Delta's own sink: what is tested is the source."""
    columns = ",".join(MESSAGE_COLUMNS)
    rows = spark.readStream.format("pulsebridge").options(**options, columns=columns).load()
    root = settings.streaming.root
    return (
        rows.writeStream.format("delta")
        .queryName("bronze")
        .option("checkpointLocation", f"{root}/checkpoints/bronze")
        .option("path", table_of("bronze", settings.streaming).where)
    )


class Writer:
    """Publishes to every partition, batched and one by one, and keeps the receipts. Pulsar's client sends again what has
    none, for ever: then a message is in the topic twice, at two places.
    """

    def __init__(self, topic: TestTopic, rate: int) -> None:
        self.receipts: dict[Place, bytes] = {}
        self.sent = 0
        self.burst = threading.Event()
        """Set: publish a burst once."""
        self._rate = rate
        self._ended = threading.Event()
        self._refused: list[Any] = []
        self._producers = [
            (number, topic.client.create_producer(
                topic.partition(number), send_timeout_millis=0, block_if_queue_full=True, **KINDS[kind]
            ))
            for number in range(topic.count)
            for kind in ("batched", "unbatched")
        ]  # fmt: skip
        self._thread = threading.Thread(target=self._write, name="writer")
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait for the receipt of all that was sent."""
        self._ended.set()
        poll_for(lambda: not self._thread.is_alive(), 120, "the writer to end")
        for _, producer in self._producers:
            producer.flush()
            producer.close()
        assert not self._refused, self._refused[:3]
        poll_for(lambda: len(self.receipts) == self.sent, 30, "a receipt for each message")

    def _write(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(0.01):
            due = int((time.monotonic() - begin) * self._rate)
            if self.burst.is_set():
                self.burst.clear()
                due, begin = self.sent + _BURST, begin - _BURST / self._rate
            for _ in range(self.sent, due):
                number, producer = self._producers[self.sent % len(self._producers)]
                payload = b"%d %s" % (self.sent, bytes(self.sent % 200))
                producer.send_async(payload, partial(self._receipt, number, payload))
                self.sent += 1

    def _receipt(self, partition: int, payload: bytes, result: Any, place: Any) -> None:
        if result != pulsar.Result.Ok:
            self._refused.append(result)
        else:
            self.receipts[partition, place.ledger_id(), place.entry_id(), _index(place)] = payload


class Account(NamedTuple):
    """What the table has beside what Pulsar has, and what the writer knows to be there."""

    rows: int
    twice: list[Place]
    """Places of messages that are in the table more than once."""
    missing: list[Place]
    """In Pulsar, not in the table, or there with another payload."""
    strange: list[Place]
    """In the table, not in Pulsar."""
    lost: list[Place]
    """The writer has a receipt for it, and Pulsar has it no more."""
    repeated: int
    """Messages that the writer sent again, and that Pulsar has twice."""

    def faults(self) -> str:
        """Return what is wrong, empty where each message is in the table exactly once."""
        lists = {
            "twice": self.twice,
            "missing": self.missing,
            "not in Pulsar": self.strange,
            "lost": self.lost,
        }
        return "; ".join(f"{len(of)} {what}, first {of[:3]}" for what, of in lists.items() if of)


class SourceWorld:
    """A topic with its writer, a table, and a driver that is started again when it was killed."""

    def __init__(
        self, stack: LocalStack, pulsar_settings: PulsarSettings, topic: TestTopic, folder: Path, hot: bool
    ) -> None:
        self.stack = stack
        self.topic = topic
        self.settings = Settings(pulsar=pulsar_settings, streaming=StreamingSettings(root=str(folder / "lakehouse")))
        self.options = topic.options(predefinedSubscription="chaos", startingOffsets="earliest")
        if not hot:
            self.options["hotTailBytes"] = "0"
        self.kills: Counter[Victim] = Counter()
        self._folder = folder
        self._drivers: list[subprocess.Popen[bytes]] = []

    # --- the driver ---

    def start(self) -> None:
        """Start a driver and wait until its query runs."""
        place = self._folder / f"driver-{len(self._drivers)}"
        place.mkdir()
        given = json.dumps({"settings": self.settings.model_dump_json(), "options": self.options, "folder": str(place)})
        with (place / "log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.source_driver", given],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._drivers.append(driver)
        poll_for(lambda: (place / "jvm").exists() or driver.poll() is not None, 120, "the driver's query")
        assert driver.poll() is None, self.log()

    def log(self) -> str:
        """Return the end of what the last driver printed."""
        return (self._folder / f"driver-{len(self._drivers) - 1}/log").read_text()[-3000:]

    def failures(self) -> int:
        """Return how often a query failed and its driver started it again."""
        logs = self._folder.glob("driver-*/log")
        return sum(log.read_text(errors="replace").count("the query failed:") for log in logs)

    def close(self) -> None:
        """Kill every driver, with all that it started."""
        for driver in self._drivers:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        self._drivers.clear()

    def _jvm(self) -> psutil.Process:
        place = self._folder / f"driver-{len(self._drivers) - 1}/jvm"
        return psutil.Process(int(place.read_text()))

    # --- kills ---

    def at_random(self, seconds: float, chance: random.Random, writer: Writer, say: Callable[[str], None]) -> None:
        """Kill one after the other, each at a random moment after a random number of batches, until the time is over.

        It begins with the first batch.
        """
        self._wait(1, 120)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if chance.random() < 0.3:
                writer.burst.set()
            wanted = self.batches() + chance.randrange(6)
            self._wait(wanted, min(left, 20))
            threading.Event().wait(chance.uniform(0, 1))  # the moment in a batch: nothing is waited for
            victim = chance.choices(VICTIMS, _WEIGHTS)[0]
            killed = self._kill(victim, chance.uniform(0, 3))
            self.kills[victim] += killed
            say(f"{left:5.0f} s left, {self.batches()} batches: {victim}" + ("" if killed else ": there is none"))

    def _wait(self, batches: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        poll_for(lambda: self.batches() >= batches or time.monotonic() > until, seconds + 30, "batches")

    def batches(self) -> int:
        """Return how many batches are committed. Raises AssertionError if the driver has ended by itself."""
        assert not self._drivers or self._drivers[-1].poll() is None, f"the driver ended: {self.log()}"
        names = (self._folder / "lakehouse/checkpoints/bronze/commits").glob("[0-9]*")
        return max((int(of.name) + 1 for of in names), default=0)

    def _kill(self, victim: Victim, away_s: float) -> bool:
        """Kill with -9 and start again what Spark does not. Returns whether there was a process to kill."""
        if victim == "pulsar":
            self.stack.kill("pulsar")
            threading.Event().wait(away_s)
            self.stack.restart("pulsar")
            return True
        jvm = self._jvm()
        if victim == "driver":
            jvm.kill()
            self.start()
            return True
        found = [p for p in jvm.children(recursive=True) if _COMMANDS[victim] in _command(p)]
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(found)

    # --- the account ---

    def finish(self, spark: SparkSession) -> None:
        """Kill the last driver and read the rest, to the present end."""
        self.close()
        failed: list[str] = []

        def ended() -> bool:
            query = query_of(spark, self.settings, self.options).trigger(availableNow=True).start()
            try:
                poll_for(lambda: not query.isActive, 120, "the query to end")
            finally:
                query.stop()
            failed.append(str(query.exception()))
            return query.exception() is None

        # On a busy machine Spark does not wait long enough for a Python process.
        assert ended() or ended() or ended(), failed

    def account(self, spark: SparkSession, receipts: dict[Place, bytes]) -> Account:
        """Compare the table with the topic and the receipts, message by message."""
        held = {
            (number, of.ledger_id(), of.entry_id(), _index(of)): message.data()
            for number, message in read_back(self.topic.settings, self.topic.name)
            for of in [message.message_id()]
        }
        table = table_of("bronze", self.settings.streaming).read(spark)
        names = ("partition", "ledger_id", "entry_id", "batch_index", "payload")
        read = table.select(*names).toArrow().to_pydict()
        places = Counter(zip(*(read[name] for name in names[:-1]), strict=True))
        kept = dict(zip(zip(*(read[name] for name in names[:-1]), strict=True), read["payload"], strict=True))
        return Account(
            rows=places.total(),
            twice=[place for place, count in places.items() if count > 1],
            missing=[place for place, payload in held.items() if kept.get(place) != payload],
            strange=[place for place in kept if place not in held],
            lost=[place for place, payload in receipts.items() if held.get(place) != payload],
            repeated=len(held) - len(set(held.values())),
        )


@contextmanager
def source_world(stack: LocalStack, topic: TestTopic, folder: Path, *, hot: bool) -> Iterator[SourceWorld]:
    """A world whose drivers are killed in the end."""
    made = SourceWorld(stack, topic.settings, topic, folder, hot)
    try:
        yield made
    finally:
        made.close()


def _index(place: Any) -> int:
    return max(0, int(place.batch_index()))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
