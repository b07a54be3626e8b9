"""The world of the orders of Spark: one driver for all cells, and a topic, tables and commands of its own for each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from bridge.contract import COMMANDS_TOPIC
from bridge.contract.commands import decode_command
from bridge.settings import Settings, StreamingSettings
from pulsebridge.local.stack import LocalStack
from streaming.reading import MESSAGE_COLUMNS
from tests.crashes.cells import Cell
from tests.crashes.spark_driver import BAD
from tests.crashes.strike import Outcome, ordered, resume, strike
from tests.support.delta_rows import delta_rows
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.push import provision, read_topic
from tests.support.reading_back import read_back
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

__all__ = ["SparkWorld"]

_DEVICES: Final = 4
_EACH: Final = 16
_ENTRIES: Final = 8
"""Most entries of a batch, so that a cell has many."""
_FLOWS: Final = {"source": "numbers", "task": "numbers", "table": "numbers", "sink": "commands"}
_COMMAND_REPEATED: Final = "command stored again with its task under the same id, which push delivers once"


class SparkWorld:
    """A driver that runs a flow for each cell, and is started again when it was killed."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._drivers = 0
        self._cells = 0
        self._lines = 0
        self._driver: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """Kill the driver, with all that it started."""
        if self._driver is not None:
            resume(self._driver.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            with suppress(BrokenPipeError):  # what it did not read
                self._driver.communicate()
            self._driver = None

    def run(self, cell: Cell, chance: random.Random) -> Outcome:
        """Run a cell: half of the messages are published before the kill, the others after it."""
        self._cells += 1
        pulsar = provisioned(self._stack, partitions=2)
        root = self._folder / f"lakehouse-{self._cells}"
        settings = Settings(
            pulsar=pulsar.model_copy(update={"command_partitions": 1}),
            streaming=StreamingSettings(root=str(root), trigger={"interval": "200ms", "commands_interval": "200ms"}),
        )
        provision(settings)
        with topic_of(settings.pulsar, partitions=2) as topic:
            options = topic.options(
                predefinedSubscription="q", startingOffsets="earliest", maxEntriesPerTrigger=str(_ENTRIES),
                columns=",".join(MESSAGE_COLUMNS), hotTailBytes="0" if cell.order == "task" else "1000000",
            )  # fmt: skip
            given = {"settings": settings.model_dump_json(exclude_defaults=True), "options": options}
            given["flow"] = _FLOWS[cell.order]
            publish(topic, range(_EACH // 2))
            passage = 1 if "first" in cell.point else chance.randint(1, 3)
            self._order({**given, "kill_at": f"{cell.point}:{passage}"})
            driver = self._running()
            try:
                strike(cell, self._stack, pulsar, topic.partition(0), driver.pid, lambda one: self._victims(cell, one))
                if cell.component == "driver":
                    self.close()
                    self._order({**given, "kill_at": ""})
                publish(topic, range(_EACH // 2, _EACH))
                wanted = {f"d{device}-{number}" for device in range(_DEVICES) for number in range(_EACH)}
                if cell.order == "sink":
                    return self._commands(settings, wanted)
                return self._tables(root, wanted, topic)
            except AssertionError as e:
                raise AssertionError(f"{e}; the driver's log ends:\n{self._log()}") from e
            finally:
                try:
                    self._order({"flow": ""})
                except AssertionError:
                    self.close()

    def _tables(self, root: Path, wanted: set[str], topic: TestTopic) -> Outcome:
        found: Counter[str] = Counter()

        def whole() -> bool:
            good = [row["name"] for row in delta_rows(root / "numbers", "name")]
            bad = [bytes(row["payload"]).decode() for row in delta_rows(root / "quarantine", "payload")]
            assert all(int(name.rpartition("-")[2]) % BAD for name in good)
            found.clear()
            found.update([*good, *bad])
            return resume(self._running().pid) and wanted <= found.keys()

        with suppress(AssertionError):
            poll_for(whole, 60, "every message in the table or in quarantine", every=0.3)
        stored = Counter(message.data().decode() for _, message in read_back(topic.settings, topic.name))
        outcome = Outcome(len(wanted), lost=sorted(wanted - found.keys()))
        for name, count in found.items():
            if count > stored[name]:
                outcome.unexplained.append(f"{name} is {stored[name]} times in Pulsar and {count} times in the tables")
        if repeats := stored.total() - len(stored):
            outcome.repeats = {"message stored again by its writer, which had no receipt of Pulsar": repeats}
        return outcome

    def _commands(self, settings: Settings, wanted: set[str]) -> Outcome:
        found: list[str] = []

        def whole() -> bool:
            messages = read_topic(settings, COMMANDS_TOPIC)
            found[:] = [decode_command(message.properties(), message.data()).command_id for message in messages]
            return resume(self._running().pid) and wanted <= set(found)

        with suppress(AssertionError):
            poll_for(whole, 60, "every command in Pulsar", every=0.5)
        outcome = Outcome(len(wanted))
        for device in range(_DEVICES):
            numbers = [int(name.partition("-")[2]) for name in found if name.startswith(f"d{device}-")]
            ordered(outcome, f"d{device}", numbers, range(_EACH))
        if repeats := len(found) - len(set(found)):
            outcome.repeats = {_COMMAND_REPEATED: repeats}
        return outcome

    # --- the driver ---

    def _running(self) -> subprocess.Popen[str]:
        if self._driver is None:
            self._drivers += 1
            place = self._folder / f"driver-{self._drivers}"
            place.mkdir()
            with (self._folder / f"driver-{self._drivers}.log").open("wb") as log:
                self._driver = subprocess.Popen(
                    [sys.executable, "-m", "tests.crashes.spark_driver", str(place)],
                    stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True,
                    env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"},
                )  # fmt: skip
        assert self._driver.poll() is None, f"the driver ended: {self._log()}"
        return self._driver

    def _order(self, given: dict[str, object]) -> None:
        """Have the driver stop the former flow and run another one; what still stands at a point continues."""
        self._lines += 1
        driver = self._running()
        assert driver.stdin is not None
        print(json.dumps({**given, "number": self._lines}), file=driver.stdin, flush=True)
        done = self._folder / f"driver-{self._drivers}/done"

        def changed() -> bool:
            if done.exists() and done.read_text() == str(self._lines):
                return True
            resume(self._running().pid)
            return False

        poll_for(changed, 90, "the driver to change its flow")

    def _log(self) -> str:
        return (self._folder / f"driver-{self._drivers}.log").read_text(errors="replace")[-1500:]

    def _victims(self, cell: Cell, at_point: psutil.Process) -> list[psutil.Process]:
        """Return the processes of a component of Spark; planner and Python worker are those that reach the points."""
        if cell.component in ("planner", "python_worker"):
            return [at_point]
        driver = psutil.Process(self._running().pid)
        jvms = [one for one in driver.children(recursive=True) if "java" in one.name()]
        executors = [one for one in jvms if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
        return executors if cell.component == "executor" else [driver, *(one for one in jvms if one not in executors)]


def publish(topic: TestTopic, numbers: range) -> None:
    """Publish these numbers of each device, each message an entry of its own; a device has one partition."""
    for device in range(_DEVICES):
        payloads = [f"d{device}-{number}".encode() for number in numbers]
        topic.publish(payloads, "unbatched", device % 2, partition_key=f"d{device}")
