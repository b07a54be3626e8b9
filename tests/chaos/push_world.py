"""Push workers, an MQTT broker and Pulsar that are killed while devices come and go, and the account at the end.

Two workers at a time, so that one takes over when the other dies or stands still. Commands come in bursts of ten to one
device; how many of these begin in a second is the rate. The way back are the devices' answers: a command without the
answer of its own device in its receipt counts as a violation.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pulsar
import yaml

from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC, Receipt, partition_name
from bridge.contract.commands import Command, encode_command
from bridge.contract.partitioning import partition_of
from bridge.inspect.instances import look_at_instances
from bridge.settings import LogSettings, PulsarSettings, Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill
from tests.chaos.push_account import TimedReceipt, Verdict, verdict_of
from tests.support.cluster import disturb
from tests.support.device_fleet import FleetSpec, command_topic, device_name, status_topic
from tests.support.device_processes import DeviceProcesses, device_processes
from tests.support.merging import merged
from tests.support.push import provision, push_settings
from tests.support.reading_back import quiet, read_back
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import patient, poll_for

__all__ = ["PUSH_POINTS", "VICTIMS", "PushWorld", "Victim", "Writer", "push_world"]

Victim = Literal["worker", "mqtt", "pulsar"]
VICTIMS: Final[tuple[Victim, ...]] = ("worker", "mqtt", "pulsar")
PUSH_POINTS: Final = (
    "after_puback",
    "after_answer",
    "after_cursor",
    "after_receipt",
    "after_segment",
    "after_takeover",
    "after_pull",
)
"""After PUBACK and after the answer, before the cursor is stored; between cursor and ack, of live and of parked commands;
in a takeover; while waking."""

_BURST: Final = 10
_PARTITIONS: Final = 4


class Writer:
    """Writes commands in bursts on a thread, with Pulsar's own client, and notes what Pulsar has acknowledged.

    One producer for each partition keeps the order through Pulsar's restarts; what it sends again may be stored twice.
    """

    def __init__(self, settings: Settings, root: str, *, devices: int, rate: float, seed: int) -> None:
        self._settings = settings
        self._root = root
        self._devices = devices
        self._period = _BURST / rate
        self._chance = random.Random(seed)
        self._next = [0] * devices
        self.acknowledged: dict[int, list[float]] = defaultdict(list)
        self.places: deque[tuple[int, int, int, int]] = deque(maxlen=200)
        """Partition, ledger, entry and index of the last ones: what a device that forges answers guesses at best."""
        self._failed: list[object] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    @property
    def written(self) -> int:
        """How many were handed to the client."""
        return sum(self._next)

    @property
    def stored(self) -> int:
        """How many Pulsar has acknowledged."""
        return sum(len(times) for times in self.acknowledged.values())

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until Pulsar has all of it."""
        self._stopping.set()
        self._thread.join(patient(120))
        assert not self._thread.is_alive(), "Pulsar does not acknowledge what was written"
        assert not self._failed, self._failed[:3]

    def _run(self) -> None:
        settings = self._settings.pulsar
        client = pulsar.Client(settings.service_url, logger=quiet())
        topic = settings.system_topic(COMMANDS_TOPIC)
        producers = [
            client.create_producer(
                partition_name(topic, partition),
                send_timeout_millis=0,
                batching_enabled=True,
                batching_max_publish_delay_ms=2,
                block_if_queue_full=True,
                max_pending_messages=50_000,
            )
            for partition in range(settings.command_partitions)
        ]
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._period * self._chance.uniform(0, 2), time.monotonic() - 1)
            device = self._chance.randrange(self._devices)
            for _ in range(_BURST):
                self._write(producers, device)
        poll_for(lambda: self.stored + len(self._failed) == self.written, 110, "all commands stored")
        client.close()

    def _write(self, producers: list[pulsar.Producer], device: int) -> None:
        number = self._next[device]
        self._next[device] += 1
        name = device_name(device)
        command = Command(
            f"{name}-{number}",
            name,
            command_topic(self._root, device),
            f"{number}".encode(),
            emitted_at_us=time.time_ns() // 1000,
        )

        def answered(result: object, found: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self.acknowledged[device].append(time.time())
                self.places.append((partition, found.ledger_id(), found.entry_id(), found.batch_index()))
            else:
                self._failed.append(result)

        partition = partition_of(name, len(producers))
        producers[partition].send_async(
            command.payload, answered, partition_key=name, properties=encode_command(command)
        )


class _Worker:
    def __init__(self, number: int, config: Path, folder: Path, kill_at: str = "", kill_pid: int | None = None) -> None:
        self.log = folder / f"push-{number}.log"
        environment = os.environ | {"PULSEBRIDGE_KILL_AT": kill_at, "PYTHONFAULTHANDLER": "1"}
        if kill_pid is not None:
            environment["PULSEBRIDGE_KILL_PID"] = str(kill_pid)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "push", "-c", str(config)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class PushWorld:
    """Everything that is killed. ``kills`` counts at random, ``points`` at named points; ``times`` has them all."""

    def __init__(
        self,
        stack: LocalStack,
        folder: Path,
        *,
        devices: int,
        rate: float,
        seed: int,
        old_share: float,
        pulsar_settings: PulsarSettings | None = None,
        root: str | None = None,
        port: int | None = None,
        other: LocalStack | None = None,
        **push: object,
    ) -> None:
        """``old_share`` of the devices use MQTT 3.1.1: then commands name their positions in their topics.

        ``root`` is the level above all topics, ``port`` that of a proxy before the MQTT broker; ``other`` has a second MQTT
        broker, between which and the first devices change; ``push`` are further settings of that section.
        """
        self.stack = stack
        self._old_share = old_share
        self._folder = folder
        self.pulsar: PulsarSettings = pulsar_settings or provisioned(stack)
        self.kills: Counter[str] = Counter()
        self.points: Counter[tuple[str, str]] = Counter()
        self.times: list[Kill] = []
        mqtt = mqtt_settings(stack, keep_alive="5s", reconnect_max="500ms", port=port or stack.mqtt_port)
        self.root = root or mqtt.client_id
        own: dict[str, object] = {
            "command_partitions": _PARTITIONS,
            "confirm": "device",
            "position_in": "topic" if old_share else "properties",
            "presence": {"rules": (PresenceRule(filter=status_topic(self.root, "+device")),)},
            "answers": {"topic": f"{self.root}/answers", "timeout": "10s"},
            "offline": {"probe_min": "5s", "probe_max": "20s"},
        }
        settings = push_settings(self.pulsar, mqtt, **merged(own, push))
        self.settings = settings.model_copy(update={"log": LogSettings(format="json")})
        self._other = other
        if other is not None:
            links = [{"name": "near"}, {"name": "far", "host": other.mqtt_host, "port": other.mqtt_port}]
            ingest = IngestSettings(links=links)  # type: ignore[arg-type]
            self.settings = self.settings.model_copy(update={"ingest": ingest})
        provision(self.settings)
        self._config = folder / "push.yaml"
        self._config.write_text(
            yaml.safe_dump(self.settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8"
        )
        self.writer = Writer(self.settings, self.root, devices=devices, rate=rate, seed=seed)
        self._workers: list[_Worker] = []
        self._started = 0

    def spec(self, *, devices: int, seed: int, present_s: float, away_s: float) -> FleetSpec:
        """Return the fleet of this world: a quarter has persistent sessions, unless the devices change brokers, where each
        would leave a session behind.
        """
        other = self._other
        return FleetSpec(
            self.stack.mqtt_host,
            self.stack.mqtt_port,
            self.root,
            first=0,
            count=devices,
            seed=seed,
            present_s=present_s,
            away_s=away_s,
            old_share=self._old_share,
            persistent_share=0.25 if other is None else 0.0,
            others=() if other is None else ((other.mqtt_host, other.mqtt_port),),
        )

    # --- workers ---

    def start(self, kill_at: str = "", kill_pid: int | None = None) -> _Worker:
        """Start one more worker."""
        self._started += 1
        made = _Worker(self._started, self._config, self._folder, kill_at, kill_pid)
        self._workers.append(made)
        return made

    def fill(self) -> None:
        """Have two workers run, whatever became of the former ones."""
        self._workers = [one for one in self._workers if one.running]
        while len(self._workers) < 2:
            self.start()

    def owned(self) -> None:
        """Wait until each partition has an owner among the workers."""
        poll_for(lambda: self._owners() is not None, 120, "an owner of each partition")

    def shared(self) -> None:
        """Wait until both workers have their share: what is handed over in the middle of a burst gets receipts again."""

        def sizes() -> list[int]:
            found = look_at_instances(self.settings).push
            return sorted(len(one.partitions) for one in found if one.state == "running")

        even = [_PARTITIONS // 2] * 2
        poll_for(lambda: sizes() == even, 120, "even shares of two workers", every=0.5)

    def _owners(self) -> list[_Worker] | None:
        found = [one for one in self._workers if one.running and "partition is ours" in one.text()]
        return found or None

    def end(self) -> None:
        """Kill what still runs, without an account."""
        for one in self._workers:
            if one.running:
                one.process.send_signal(signal.SIGCONT)
                one.kill()

    def drain(self) -> None:
        """Let all workers end as they should; one of which the interpreter only starts would end by the signal."""
        for one in self._workers:
            poll_for(lambda one=one: self._waits(one), 60, "a worker that has begun")  # type: ignore[misc]
            one.process.terminate()
        for one in self._workers:
            code = one.process.wait(patient(60))
            assert code == 0, f"push ended with {code}:\n{one.text()[-3000:]}"

    # --- kills ---

    def kill(self, victim: Victim | Literal["frozen"], chance: random.Random, *, still_s: float = 25.0) -> None:
        """Kill one with -9 and start it again, or stop a worker for at most ``still_s``."""
        self.kills[victim] += 1
        at = time.time()
        if victim == "worker":
            chance.choice(self._workers).kill()
            self.fill()
        elif victim == "frozen":
            one = chance.choice(self._workers)
            one.process.send_signal(signal.SIGSTOP)
            threading.Event().wait(chance.uniform(2, still_s))  # how long it is stopped: this waits for no condition
            one.process.send_signal(signal.SIGCONT)
        elif victim == "pulsar" and self.stack.cluster is not None:
            disturb(self.stack.cluster, self.pulsar, self.pulsar.system_topic(COMMANDS_TOPIC), chance)
        else:
            self.stack.kill(victim)
            self.stack.restart(victim)
        self.times.append(Kill(victim, at, time.time()))
        self.check()

    def check(self) -> None:
        """Raise AssertionError when a worker has ended by itself."""
        for one in self._workers:
            assert one.running, f"push ended with {one.process.returncode}:\n{one.text()[-3000:]}"

    def kill_at(self, point: str, victim: Victim, passages: tuple[int, ...]) -> None:
        """Kill at a named point, once for each of ``passages``.

        A worker that is to kill waits as the standby until the former owner is killed. So each time is a takeover too.
        """
        if victim == "worker":
            self._workers_at(point, passages)
            return
        for passage in passages:
            armed = self.start(f"{point}:{passage}", self.stack.pids[victim])
            poll_for(lambda one=armed: self._waits(one), 60, "a standby")  # type: ignore[misc]
            self._kill_others(armed)
            self._await(lambda: victim not in self.stack.pids, f"{victim} killed at {point}", armed)
            at = time.time()
            self.stack.restart(victim)
            self._noted(victim, point, at)
            self.fill()

    def _workers_at(self, point: str, passages: tuple[int, ...]) -> None:
        for passage in passages:
            armed = self.start(f"{point}:{passage}")
            poll_for(lambda one=armed: self._waits(one), 60, "a standby")  # type: ignore[misc]
            self._kill_others(armed)
            self._await(lambda one=armed: not one.running, f"a worker killed at {point}", armed)  # type: ignore[misc]
            assert armed.process.returncode == -signal.SIGKILL, armed.text()[-3000:]
            self._noted("worker", point, time.time())
            self.fill()
            self.owned()

    def _waits(self, one: _Worker) -> bool:
        """Whether it has started: push logs nothing on standby, but its threads exist."""
        assert one.running, one.text()[-3000:]
        with Path(f"/proc/{one.process.pid}/status").open() as status:
            threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
        return threads > _PARTITIONS

    def _kill_others(self, armed: _Worker) -> None:
        for one in self._workers:
            if one is not armed and one.running:
                at = time.time()
                one.kill()
                self.times.append(Kill("worker", at, time.time()))
        self._workers = [armed]

    def _await(self, done: Callable[[], bool], what: str, armed: _Worker) -> None:
        try:
            poll_for(done, 120, what)
        except AssertionError as e:
            raise AssertionError(f"{e}; its log ends:\n{armed.text()[-4000:]}") from e

    def _noted(self, victim: Victim, point: str, at: float) -> None:
        self.points[victim, point] += 1
        self.times.append(Kill(victim, at, time.time()))

    def at_random(self, seconds: float, chance: random.Random, say: Callable[[str], None]) -> None:
        """Kill one after the other, each after a random pause, until the time is over: first each at least three times."""
        pause = threading.Event()
        end = time.monotonic() + seconds
        plan: list[Victim | Literal["frozen"]] = ["worker", "mqtt", "pulsar", "frozen"] * 3
        chance.shuffle(plan)
        while (left := end - time.monotonic()) > 0:
            pause.wait(min(left, chance.uniform(1, 8)))  # how long they live: nothing is waited for
            weights = (4, 2, 1, 2) if self.stack.cluster is None else (2, 1, 5, 1)
            victim = plan.pop() if plan else chance.choices((*VICTIMS, "frozen"), weights)[0]
            say(f"{left:5.0f} s left: {victim}; {self.writer.stored} written")
            self.kill(victim, chance)  # type: ignore[arg-type]

    def roam(self, seconds: float, chance: random.Random | None, say: Callable[[str], None]) -> None:
        """Have devices change brokers for this time. With ``chance`` a worker, or the second broker, is killed or frozen now and
        then.
        """
        pause, end = threading.Event(), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pause.wait(min(left, 10.0 if chance is None else chance.uniform(1, 10)))  # nothing is waited for
            self.check()
            if chance is None:
                continue
            victim = chance.choice(("worker", "frozen", "broker", "frozen broker"))
            say(f"{left:5.0f} s left: {victim}; {self.writer.stored} written")
            if victim in ("worker", "frozen"):
                self.kill(victim, chance, still_s=8)  # type: ignore[arg-type]
            else:
                self._stop_other(chance.uniform(1, 10), victim)

    def _stop_other(self, seconds: float, how: str) -> None:
        assert self._other is not None
        self.kills[how] += 1
        began = time.time()
        if how == "broker":
            self._other.kill("mqtt")
            threading.Event().wait(seconds)  # how long it is dead: this waits for no condition
            self._other.restart("mqtt")
        else:
            os.kill(self._other.pids["mqtt"], signal.SIGSTOP)
            threading.Event().wait(seconds)
            os.kill(self._other.pids["mqtt"], signal.SIGCONT)
        self.times.append(Kill("mqtt", began, time.time()))

    # --- the account ---

    def account(
        self,
        fleet: DeviceProcesses,
        *,
        patience_s: float = 60,
        say: Callable[[str], None] = lambda line: None,
    ) -> Verdict:
        """Stop writing, have all devices come, wait for each command and its receipt for as long as ever more of them
        come, and check the account.
        """
        self.fill()
        self.writer.stop()
        fleet.order("stay")
        fleet.all_there()
        began = time.monotonic()
        found = self._verdict(fleet)
        took = time.monotonic() - began

        def more_came() -> bool:
            nonlocal found
            self.check()
            before, found = found, self._verdict(fleet)
            return found.lacking < before.lacking

        while found.lacking:
            say(f"{time.monotonic() - began:.0f} s after the end {len(found.missing)} commands are on their way")
            try:
                poll_for(more_came, patience_s, "one more command at its device", every=max(2.0, 2 * took))
            except AssertionError as e:
                found.evidence[:0] = [str(e)[:3000], self._logs()]
                return found
        self.drain()
        found = self._verdict(fleet)
        if found.broken:
            found.evidence.insert(0, self._logs())
        return found

    def interruptions(self) -> list[Kill]:
        """Return when push lost an MQTT connection, be it without a kill: a machine that is overloaded answers no PINGREQ."""
        lines = (line for one in self._workers for line in one.text().splitlines() if '"MQTT is away' in line)
        times = [datetime.fromisoformat(json.loads(line)["timestamp"][:-1] + "+00:00").timestamp() for line in lines]
        return [Kill("mqtt", at, at) for at in times]

    def longest_way(self, fleet: DeviceProcesses, since: float, until: float) -> float:
        """Return the longest time, in s, from Pulsar to the device, of the commands that were stored from ``since`` to
        ``until`` (in s since the epoch); infinity while one has not arrived.
        """
        arrived: dict[tuple[int, int], float] = {}
        for event in fleet.events():
            if event.kind == "R":
                arrived.setdefault((event.device, int(event.number)), event.at / 1e6)
        return max(
            (
                arrived.get((device, number), math.inf) - at
                for device, times in self.writer.acknowledged.items()
                for number, at in enumerate(list(times))
                if since <= at < until
            ),
            default=0.0,
        )

    def _verdict(self, fleet: DeviceProcesses) -> Verdict:
        causes = [*self.times, *self.interruptions()]
        return verdict_of(self.writer.acknowledged, fleet.events(), self._receipts(), causes)

    def _receipts(self) -> dict[str, list[TimedReceipt]]:
        found: dict[str, list[TimedReceipt]] = defaultdict(list)
        for _, message in read_back(self.pulsar, self.pulsar.system_topic(RECEIPTS_TOPIC)):
            receipt = Receipt.decode(message.data())
            found[receipt.command_id].append(
                TimedReceipt(receipt.state, receipt.answer, message.publish_timestamp() / 1000)
            )
        for several in found.values():
            several.sort(key=lambda one: one.at)
        return found

    def _logs(self) -> str:
        lines = [
            f"{one.log.name}: {line[:300]}"
            for one in self._workers
            for line in one.text().splitlines()
            if '"warning"' in line or '"error"' in line
        ]
        return "\n".join(lines[-30:])


@contextmanager
def push_world(
    stack: LocalStack,
    folder: Path,
    *,
    devices: int,
    rate: float,
    seed: int,
    present_s: float,
    away_s: float,
    processes: int = 1,
    old_share: float = 0.25,
    **more: Any,
) -> Iterator[tuple[PushWorld, DeviceProcesses]]:
    """A world with online devices and a running writer of commands. ``old_share`` of the devices use MQTT 3.1.1;
    ``more`` is as for ``PushWorld``.
    """
    made = PushWorld(stack, folder, devices=devices, rate=rate, seed=seed, old_share=old_share, **more)
    spec = made.spec(devices=devices, seed=seed, present_s=present_s, away_s=away_s)
    try:
        made.fill()
        made.owned()
        made.shared()
        with device_processes(spec, folder, processes) as fleet:
            fleet.all_there(devices // 4)
            made.writer.start()
            yield made, fleet
    finally:
        made.end()
