"""Ingest, an MQTT broker and Pulsar that are killed while a fleet publishes, and the account of it at the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pulsar
import yaml

from bridge.settings import LogSettings, MetricsSettings, PulsarSettings
from bridge.settings.ingest import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill, paging_lines, tell_missing
from tests.support.cluster import disturb
from tests.support.fleet import Fleet
from tests.support.ingest import ingest_settings
from tests.support.ledger import Ledger, read_ledger
from tests.support.stack import mqtt_settings, provisioned
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import patient, poll_for

__all__ = ["TOPIC", "VICTIMS", "Victim", "World", "world"]

Victim = Literal["worker", "mqtt", "pulsar"]
VICTIMS: tuple[Victim, ...] = ("worker", "mqtt", "pulsar")
TOPIC = "chaos"


class World:
    """One ingest worker behind a proxy that can cut its connection; ``kills`` counts who was killed."""

    def __init__(
        self,
        stack: LocalStack,
        folder: Path,
        proxy: TcpProxy,
        *,
        protocol: str = "3.1.1",
        rules: Callable[[str], tuple[TopicRule, ...]] = lambda root: (),
        resume_topic: Callable[[str], str | None] = lambda root: None,
        metrics_port: int = 0,
        pulsar_settings: PulsarSettings | None = None,
        client_id: str | None = None,
    ) -> None:
        """``rules`` come before the one for the fleet; like ``resume_topic`` they are made for the level above all topics."""
        self.stack = stack
        self.proxy = proxy
        self.pulsar = pulsar_settings or provisioned(stack)
        self.kills: dict[Victim, int] = dict.fromkeys(VICTIMS, 0)
        self.times: list[Kill] = []
        session = {} if client_id is None else {"client_id": client_id}
        mqtt = mqtt_settings(
            stack, protocol=protocol, port=proxy.port, keep_alive="5s", reconnect_max="500ms", **session
        )
        self.root = mqtt.client_id
        rule = TopicRule(name="chaos", filter=f"{self.root}/+device/x", topic=TOPIC, device="{device}")
        made = ingest_settings(
            mqtt,
            self.pulsar,
            routes=(*rules(self.root), rule),
            limits={"in_flight": 500},
            resume_topic=resume_topic(self.root),
        )
        own = {"log": LogSettings(format="json"), "metrics": MetricsSettings(port=metrics_port)}
        self.settings = made.model_copy(update=own)
        self.log = folder / "ingest.log"
        self._config = folder / "ingest.yaml"
        self._config.write_text(
            yaml.safe_dump(self.settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def fleet(self, *, devices: int, rate: float, confirmed: Sequence[int] = ()) -> Fleet:
        """Devices straight at the MQTT broker, not through the proxy."""
        host, port = self.stack.mqtt_host, self.stack.mqtt_port
        return Fleet(host, port, self.root, devices=devices, rate=rate, confirmed=confirmed)

    # --- the worker ---

    def start(self, *, kill_at: str = "", kill: Victim = "worker", stop_at: str = "") -> None:
        """Start the worker and wait until it has its subscriptions. At ``stop_at`` it stops until SIGCONT."""
        environment = os.environ | {"PULSEBRIDGE_KILL_AT": kill_at or stop_at, "PYTHONFAULTHANDLER": "1"}
        if stop_at:
            environment["PULSEBRIDGE_KILL_SIGNAL"] = "STOP"
        if kill != "worker":
            environment["PULSEBRIDGE_KILL_PID"] = str(self.stack.pids[kill])
        before = self._subscribed()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from pulsebridge.cli.app import main; main()",
                    "ingest",
                    "-c",
                    str(self._config),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        process = self.process
        poll_for(lambda: self._subscribed() > before or process.poll() is not None, 300, "ingest's subscription")

    def _subscribed(self) -> int:
        return self.log.read_bytes().count(b"subscribed at the MQTT broker") if self.log.exists() else 0

    def kill_worker(self) -> None:
        """Kill it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end_worker(self) -> None:
        """Let it drain and end."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(patient(60)) == 0, self.log.read_text()[-3000:]

    def end_or_kill(self) -> None:
        """Make room for another worker, whatever this one does."""
        if self.process is not None and self.process.poll() is None:
            self.kill_worker()

    # --- kills ---

    def kill(self, victim: Victim, chance: random.Random | None = None) -> str:
        """Kill one of the three with -9 and start it again; of a cluster, disturb one part. Returns what it was."""
        self.kills[victim] += 1
        at, what = time.time(), str(victim)
        if victim == "worker":
            self.kill_worker()
            self.start()
        elif victim == "pulsar" and self.stack.cluster is not None:
            what = disturb(
                self.stack.cluster, self.pulsar, self.pulsar.readings_topic(TOPIC), chance or random.Random()
            )
        else:
            self.stack.kill(victim)
            self.stack.restart(victim)
        self.times.append(Kill(what, at, time.time()))
        return what

    def kill_at(self, point: str, passage: int, victim: Victim) -> None:
        """Start a worker that kills at a named point, wait until it has, and start again who was killed."""
        before = self.log.read_bytes().count(b"connected to the MQTT broker") if self.log.exists() else 0
        self.start(kill_at=f"{point}:{passage}", kill=victim)
        assert self.process is not None
        process = self.process
        gone = (lambda: process.poll() is not None) if victim == "worker" else (lambda: victim not in self.stack.pids)
        cuts = 0

        def killed() -> bool:
            nonlocal cuts
            made = self.log.read_bytes().count(b"connected to the MQTT broker") - before
            if point == "ingest_in_reconnect" and made > cuts:  # once for each: not in the middle of a handshake
                cuts = made
                self.proxy.cut()
            return gone()

        try:
            poll_for(killed, 300, f"{victim} killed at {point}")
        except AssertionError as e:
            raise AssertionError(f"{e}; ingest's log ends:\n{self.log.read_text()[-4000:]}") from e
        self.kills[victim] += 1
        at = time.time()
        if victim == "worker":
            assert process.returncode == -signal.SIGKILL, self.log.read_text()[-3000:]
        else:
            self.stack.restart(victim)
        self.times.append(Kill(victim, at, time.time()))

    def at_random(self, seconds: float, chance: random.Random, say: Callable[[str], None]) -> None:
        """Kill one after the other, each after a random pause, until the time is over."""
        pause = threading.Event()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pause.wait(min(left, chance.uniform(1, 8)))  # how long they live: nothing is waited for
            weights = (3, 1, 1) if self.stack.cluster is None else (1, 1, 3)
            victim = chance.choices(VICTIMS, weights)[0]
            say(f"{left:5.0f} s left, disturbed: {self.kill(victim, chance)}")

    # --- the account ---

    def _connections(self) -> list[float]:
        lines = [json.loads(s) for s in self.log.read_text().splitlines() if s.startswith("{")]
        return sorted(
            datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00")).timestamp() * 1000
            for line in lines
            if line["event"] == "connected to the MQTT broker"
        )

    def account(self, fleet: Fleet) -> Ledger:
        """Wait until all that the broker has acknowledged is in Pulsar, then compare."""
        fleet.stop()

        def ledger() -> Ledger:
            return read_ledger(
                self.pulsar,
                TOPIC,
                fleet.confirmed,
                repeated=fleet.repeated,
                connections=self._connections,
            )

        found: list[Ledger] = []

        def whole() -> bool:
            try:
                found[:] = [ledger()]
            except pulsar.PulsarException:  # it was killed a moment ago, and loads its topics
                return False
            return not found[0].missing

        try:
            poll_for(whole, 180, "all that was acknowledged", every=2.0)
        except AssertionError as e:
            evidence = "the topic could not be read"
            if found:
                evidence = f"{found[0].text()}\n{self._evidence(fleet, found[0].missing, whole)}"
            raise AssertionError(f"{evidence}\n{e}") from e
        return found[0]

    def _evidence(self, fleet: Fleet, missing: list[str], whole: Callable[[], bool]) -> str:
        """Report missing messages; those that a new connection or broker delivers are delayed, not lost."""
        evidence = [tell_missing(fleet, missing, self.times, partitions=self.pulsar.partitions)]
        for what, act in (
            ("a new connection of ingest", self.proxy.cut),
            ("a restart of the MQTT broker", lambda: self.kill("mqtt")),
        ):
            act()
            came = True
            try:
                poll_for(whole, 30, f"what {what} brings", every=2.0)
            except AssertionError:
                came = False
            evidence.append(f"{what} {'brought all of it' if came else 'did not bring it'}")
            if came:
                break
        evidence.append(paging_lines(self.stack.data_dir / "mqtt/logs/mqtt.log"))
        evidence.append("\n".join(s[:300] for s in self.log.read_text().splitlines() if '"warning"' in s)[-6000:])
        return "\n".join(evidence)


@contextmanager
def world(stack: LocalStack, folder: Path, **more: Any) -> Iterator[World]:
    """A world whose worker is killed at the end if it still runs."""
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy:
        made = World(stack, folder, proxy, **more)
        try:
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.kill_worker()
