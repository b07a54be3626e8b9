"""STATE of the host application (specification, chapters 4.4.6 and 5.2): one process at a time says that the host is online.

The steps of a process, for each MQTT broker of the settings:

1. *ownership*: the exclusive producer of a topic in Pulsar, which one process can have; others wait for it.
2. *proof*: a record through that producer, because Pulsar's client reports a lost ownership only on a write.
3. *connect*: with a will that says offline at the time of the CONNECT, and a clean session. The client id is that of the
   host, so the broker closes the connection of a former owner, and publishes its will.
4. *subscribe* to its own STATE, and then *birth*: online, with the time of the will.
5. A STATE that says offline, such as the will of a former owner, is answered by a birth.
6. The subscription is repeated every ten seconds, and the broker sends the STATE that it retains: it may have stored two in
   another order than it delivered them.

A process that stops, or that cannot prove its ownership, publishes offline before the DISCONNECT. If it has a successor,
that one answers by step 5.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from bridge.backoff import backoff_s
from bridge.contract import partition_name
from bridge.errors import ConfigError, FencedError, TransientError
from bridge.mqtt.client import Link
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription, Will
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient, our_errors
from bridge.pulsar.provisioning import create_topic
from bridge.pulsar.provisioning_plan import TopicNeed
from bridge.pulsar.sending import Receipts, close_quietly, owners_producer
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from bridge.threads import start_thread
from sparkplug import NAMESPACE

__all__ = ["Host", "State", "connection", "host_problem", "state_payload", "state_topic"]

HOSTS_TOPIC: Final = "sparkplug-host-"
_PROOF_S: Final = 10.0
_RETRY_S: Final = (0.5, 15.0)
_ASK_S: Final = 1.0
_ASK_AGAIN_S: Final = 10.0
log = structlog.get_logger("sparkplug")


def state_topic(host_id: str) -> str:
    """Return the MQTT topic of a host's STATE."""
    return f"{NAMESPACE}/STATE/{host_id}"


def state_payload(at_ms: int, *, online: bool) -> bytes:
    """Return the payload of a STATE: UTF-8 JSON of two keys."""
    return json.dumps({"online": online, "timestamp": at_ms}, separators=(",", ":")).encode()


def host_problem(host_id: str) -> str | None:
    """Return why a text is not a host id, None if it is one."""
    if not host_id or any(c in "/+#\0" for c in host_id) or not host_id.isprintable() or len(host_id.encode()) > 200:
        return "give 1 to 200 bytes of printable text without / + #"
    return None


class State(LinkHandler):
    """STATE on one connection, from the CONNACK to its end. It decides what is published, the link sends it."""

    def __init__(self, host_id: str, at_ms: int) -> None:
        """``at_ms`` is the time of the CONNECT, which will and birth have in common."""
        self.topic = state_topic(host_id)
        self.will = Will(self.topic, state_payload(at_ms, online=False), retain=True)
        self.lost: Disconnected | None = None
        self.online = False
        """Whether the broker has confirmed a birth."""
        self._birth = state_payload(at_ms, online=True)
        self._born = self._subscribed = False
        self._link: Any = None

    def attach(self, link: Any) -> None:
        """Use a link, or what has its methods ``publish``, ``subscribe`` and ``acknowledge``."""
        self._link = link

    def on_connected(self, event: Connected) -> None:
        """Subscribe to the host's own STATE before anything is published."""
        self.ask()

    def ask(self) -> None:
        """Subscribe, so that the broker sends the STATE that it retains (MQTT-3.8.4-3)."""
        self._link.subscribe([Subscription(self.topic, 1, retain_handling=0)])

    def on_subscribed(self, codes: list[int]) -> None:
        """Publish the birth, once. Raises ConfigError if the broker refuses the subscription."""
        if any(code >= 0x80 for code in codes):
            raise ConfigError(
                f"the MQTT broker refuses the subscription to {self.topic}",
                remedy="allow this user to read and write it",
            )
        if not self._subscribed:
            self._subscribed = True
            self._publish_birth()

    def on_message(self, message: Message) -> None:
        """Answer a STATE that says offline by a birth (tck-id-message-flow-hid-sparkplug-state-message-delivered)."""
        self._link.acknowledge([message.mid], self._link.epoch)
        if message.topic == self.topic and self._born and says_offline(message.payload):
            self._publish_birth()

    def on_disconnected(self, event: Disconnected) -> None:
        """Note the end: the next connection needs another will."""
        self.lost = event
        self.online = False

    def die(self, confirmed: Callable[[], None]) -> None:
        """Publish offline, with the current time."""
        at_ms = time.time_ns() // 1_000_000
        self.online = self._born = False
        self._link.publish(
            self.topic, state_payload(at_ms, online=False), qos=1, retain=True, confirmed=lambda code: confirmed()
        )

    def _publish_birth(self) -> None:
        self._born = True
        self._link.publish(self.topic, self._birth, qos=1, retain=True, confirmed=self._confirmed)

    def _confirmed(self, code: int) -> None:
        if code >= 0x80:
            raise ConfigError(
                f"the MQTT broker refuses {self.topic} with code {code:#x}",
                remedy="allow this user to write it, retained",
            )
        self.online = True


def says_offline(payload: bytes) -> bool:
    """Whether a STATE says offline; whatever does not say online leaves edge nodes without their host."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return True
    return not (isinstance(found, dict) and found.get("online") is True)


def connection(settings: MqttSettings, state: State) -> Link:
    """Return the link of a STATE, in a clean session (tck-id-message-flow-phid-sparkplug-clean-session-50).

    Its client id is that of the host, so the MQTT broker closes the connection of another process.
    """
    host_id = state.topic.rpartition("/")[2]
    link = Link(settings, state, client_id=f"{settings.client_id}-host-{host_id}", persistent=False, will=state.will)
    state.attach(link)
    return link


class Host:
    """A process that is the host, or waits to be. ``stopping`` ends ``run``."""

    def __init__(self, settings: Settings, host_id: str, stopping: threading.Event) -> None:
        """Raises ConfigError for an invalid host id."""
        problem = host_problem(host_id)
        if problem is not None:
            raise ConfigError(f"host id {host_id!r}: {problem}", remedy="give another --id")
        self._settings = settings
        self._host_id = host_id
        self._stopping = stopping
        self._topic = settings.pulsar.system_topic(f"{HOSTS_TOPIC}{host_id.encode().hex()}")
        self.states: dict[str, State] = {}
        """The connections, by link."""
        self.waiting = False
        """Whether another process is the host."""

    @property
    def online(self) -> bool:
        """Whether each MQTT broker has confirmed that this process is the host."""
        links = self._settings.links()
        return set(self.states) == set(links) and all(state.online for state in self.states.values())

    def run(self) -> None:
        """Become the host as soon as no other process is, again and again, until stopped. Raises a TerminalError."""
        attempt, provisioned = 0, self._settings.pulsar.provision != "create"
        while not self._stopping.is_set():
            try:
                if not provisioned:
                    with PulsarAdmin(self._settings.pulsar) as admin:
                        admin.provision_namespaces()
                        create_topic(admin, TopicNeed(self._topic, 1, why="one Sparkplug host at a time"))
                    provisioned = True
                with PulsarClient(self._settings.pulsar) as client:
                    producer = owners_producer(client, partition_name(self._topic, 0), fence=False)
                    self.waiting, attempt = False, 0
                    self._own(producer)
                    close_quietly(producer)
            except FencedError:
                if not self.waiting:
                    log.info("another process is the host, this one waits", host=self._host_id)
                self.waiting, attempt = True, 0
            except TransientError as e:
                log.warning("Pulsar does not answer, the host is retried. Action: see Pulsar", why=e.what, shown=1)
                attempt += 1
            self._stopping.wait(_ASK_S if self.waiting else backoff_s(attempt, *_RETRY_S, random.random()))

    def _own(self, producer: Any) -> None:
        """Be the host until stopped, or until another process is. Raises FencedError or TransientError then."""
        owned, failures = threading.Event(), list[Exception]()
        owned.set()

        def prove() -> None:
            receipts, operation = Receipts(), f"proving the ownership of {self._topic}"
            with our_errors(operation):
                producer.send_async(b"", receipts.of(0), partition_key=self._host_id)
            if not receipts.wait(_PROOF_S):
                raise TransientError(f"{operation}: Pulsar does not answer")
            error = receipts.error(0, operation)
            if error is not None:
                raise error

        def failed(error: Exception) -> None:
            failures.append(error)
            owned.clear()

        prove()
        log.info("this process is the host", host=self._host_id)
        threads = [
            start_thread(f"sparkplug-{name}", partial(self._connections, name, settings, owned, prove), failed)
            for name, settings in self._settings.links().items()
        ]
        try:
            due = time.monotonic() + _PROOF_S
            while owned.is_set() and not self._stopping.wait(0.1):
                if time.monotonic() >= due:
                    prove()
                    due = time.monotonic() + _PROOF_S
        finally:
            owned.clear()
            for thread in threads:
                thread.join()
            self.states.clear()
        if failures:
            raise failures[0]

    def _connections(
        self, name: str, settings: MqttSettings, owned: threading.Event, prove: Callable[[], None]
    ) -> None:
        attempt = 0
        while owned.is_set():
            prove()
            state = State(self._host_id, time.time_ns() // 1_000_000)
            link = connection(settings, state)
            self.states[name] = state
            due = time.monotonic() + _ASK_AGAIN_S
            try:
                while owned.is_set() and state.lost is None:
                    link.turn(0.2)
                    if state.online and time.monotonic() >= due:
                        state.ask()
                        due = time.monotonic() + _ASK_AGAIN_S
                    attempt = 0 if state.online else attempt
                if state.online:
                    self._say_goodbye(state, link)
                link.disconnect()
            finally:
                link.close()
            if state.lost is not None:
                log.warning(
                    "no connection to the MQTT broker. Action: see the broker", link=name, why=state.lost.why, shown=1
                )
                self._stopping.wait(backoff_s(attempt, *_RETRY_S, random.random()))
                attempt += 1

    @staticmethod
    def _say_goodbye(state: State, link: Link) -> None:
        done = threading.Event()
        state.die(done.set)
        until = time.monotonic() + 5.0
        while not done.is_set() and state.lost is None and time.monotonic() < until:
            link.turn(0.2)
