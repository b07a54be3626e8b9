"""Small users of a link: a device for simulations and tests, a dial for checks."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from bridge.errors import DeniedError, PulsebridgeError, TransientError
from bridge.mqtt.client import Link, run
from bridge.mqtt.refusals import subscriber
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from bridge.settings.mqtt import MqttSettings

__all__ = ["DeviceClient", "probe", "try_subscribing"]


class DeviceClient(LinkHandler):
    """The MQTT client of a device: its own thread, reconnects for ever, resends unconfirmed publishes.

    ``publish`` is that of the link. Its confirmations and ``on_message`` run on the link's thread and must not block.
    Messages are acknowledged after ``on_message`` returned. Every method may be called from any thread.
    The client renews its subscriptions on each connection whose session the broker did not keep.
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        *,
        on_message: Callable[[Message], None] | None = None,
        persistent: bool = False,
        window: int = 1000,
    ) -> None:
        self.link = Link(settings, self, client_id=client_id, persistent=persistent, window=window)
        self.publish = self.link.publish
        self.connections = 0
        """How often a CONNACK accepted us."""
        self.last_loss: Disconnected | None = None
        self.failure: BaseException | None = None
        """The exception that stopped the thread."""
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{client_id}", daemon=True)
        self._stopping = threading.Event()
        self._deliver = on_message
        self._subscriptions: dict[str, Subscription] = {}
        self._fresh: list[Subscription] = []
        self._changed = threading.Condition()
        self._acks: list[int] = []
        self._granted = 0
        self._refusal: DeniedError | None = None

    # --- from any thread ---

    def connect(self, timeout: float = 10.0) -> None:
        """Start, and wait for the first CONNACK. Raises TransientError if there is none in time, DeniedError if the
        broker refuses us.
        """
        self._thread.start()
        if not self._wait(lambda: self.connections > 0 or self._denied() is not None, timeout) or (
            self.connections == 0
        ):
            self.close()
            denied = self._denied()
            if denied is not None:
                raise DeniedError(f"{self.link.client_id}: {denied.why}", remedy=denied.remedy)
            s = self.link.settings
            why = "no answer" if self.last_loss is None else self.last_loss.why
            raise TransientError(
                f"{self.link.client_id} got no MQTT connection to {s.host}:{s.port} in {timeout:g} s: {why}"
            )

    def subscribe(self, *filters: str, qos: int = 1, timeout: float = 10.0) -> None:
        """Subscribe and wait for SUBACK. Raises TransientError without an answer, DeniedError if refused."""
        with self._changed:
            target = len(self._subscriptions) + len([f for f in filters if f not in self._subscriptions])
            for one in filters:
                self._subscriptions[one] = Subscription(one, qos)
                self._fresh.append(self._subscriptions[one])
        self.link.wake()
        granted = self._wait(lambda: self._granted >= target or self._refusal is not None, timeout)
        if self._refusal is not None:
            raise self._refusal
        if not granted:
            raise TransientError(f"{self.link.client_id}: no SUBACK for {', '.join(filters)} in {timeout:g} s")

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until every publish is confirmed. Returns False at the time-out."""
        end = time.monotonic() + timeout
        while self.link.unconfirmed and self.failure is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.link.unconfirmed == 0

    def stop(self) -> None:
        """Request the end, without waiting for it."""
        self._stopping.set()
        self.link.wake()

    def close(self, timeout: float = 10.0) -> None:
        """Send DISCONNECT and wait for the thread. Unconfirmed publishes are dropped. Raises ``failure``."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> DeviceClient:
        self.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition() or self.failure is not None, timeout) and condition()

    def _denied(self) -> Disconnected | None:
        return None if self.last_loss is None or self.last_loss.remedy is None else self.last_loss

    # --- on the link's thread ---

    def _run(self) -> None:
        try:
            run(self.link, self._stopping.is_set)
        except BaseException as e:
            self.failure = e
            if not isinstance(e, PulsebridgeError):
                raise

    def on_connected(self, event: Connected) -> None:
        """Renew the subscriptions if the broker kept no session."""
        with self._changed:
            self.connections += 1
            if not event.session_present:
                self._granted = 0
                self._fresh = list(self._subscriptions.values())
            self._changed.notify_all()

    def on_disconnected(self, event: Disconnected) -> None:
        """Remember the reason; the link retries."""
        self._acks.clear()
        with self._changed:
            self.last_loss = event
            self._changed.notify_all()

    def on_subscribed(self, codes: list[int]) -> None:
        """Count the granted filters."""
        if any(code >= 0x80 for code in codes):
            with self._changed:
                self._refusal = DeniedError(
                    f"{self.link.client_id}: the broker refused a subscription, SUBACK codes {codes}",
                    remedy=f"allow {subscriber(self.link.settings, self.link.client_id)} to read it",
                )
                self._changed.notify_all()
            raise self._refusal
        with self._changed:
            self._granted += len(codes)
            self._changed.notify_all()

    def on_message(self, message: Message) -> None:
        """Deliver the message and note its acknowledgement."""
        if self._deliver is not None and not message.malformed:
            self._deliver(message)
        if message.mid:
            self._acks.append(message.mid)

    def on_turn(self, now: float) -> None:
        """Send the acknowledgements and the subscriptions of the turn."""
        if self._acks:
            self.link.acknowledge(self._acks, self.link.epoch)
            self._acks.clear()
        if self._fresh and self.link.connected:
            with self._changed:
                fresh, self._fresh = self._fresh, []
            self.link.subscribe(fresh)


class _Probe(LinkHandler):
    """One connection with a temporary session and a new client id, so that no other client is affected."""

    def __init__(self, settings: MqttSettings, filters: Sequence[str] = ()) -> None:
        self.connected: Connected | None = None
        self.lost: Disconnected | None = None
        self.codes: list[int] = []
        self._filters = filters
        # MQTT 3.1 allows at most 23 characters.
        self._link = Link(settings, self, client_id=f"pb-check-{secrets.token_hex(4)}", persistent=False)

    @property
    def _done(self) -> bool:
        return self.lost is not None or (self.connected is not None and len(self.codes) >= len(self._filters))

    def run(self, timeout: float = math.inf) -> None:
        """Connect and subscribe, until there is an answer to both."""
        until = time.monotonic() + timeout
        run(self._link, lambda: self._done or time.monotonic() >= until, 0.1)

    def on_connected(self, event: Connected) -> None:
        """Subscribe at QoS 0, without retained messages."""
        self.connected = event
        if self._filters:
            self._link.subscribe([Subscription(one, 0, retain_handling=2) for one in self._filters])

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost = event

    def on_subscribed(self, codes: list[int]) -> None:
        self.codes += codes


def probe(settings: MqttSettings) -> Connected | Disconnected:
    """Dial the broker once. Returns its acceptance, or the error with its remedy."""
    seen = _Probe(settings)
    seen.run()
    answer = seen.connected or seen.lost
    assert answer is not None
    return answer


def try_subscribing(settings: MqttSettings, filters: Sequence[str]) -> list[int]:
    """Subscribe in a temporary session; return SUBACK's codes, in the order of the filters.

    At QoS 0 and, with MQTT 5, without retained messages; no other session misses a message by it. Raises
    DeniedError or TransientError if there is no connection.
    """
    seen = _Probe(settings, filters)
    seen.run(2 * settings.connect_timeout)
    if len(seen.codes) < len(filters):
        lost = seen.lost
        if lost is not None and lost.remedy is not None:
            raise DeniedError(lost.why, remedy=lost.remedy)
        raise TransientError("no answer to SUBSCRIBE" if lost is None else lost.why)
    return seen.codes
