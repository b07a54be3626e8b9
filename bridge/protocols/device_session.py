"""The MQTT session of one device that does not speak MQTT: push sees it as any other device.

Commit order of a command. The process may die between any two steps:

1. The broker sends it. The device gets it in the answer to a request; the same one until it confirms it.
2. The device confirms its position: in a request of its own, with an answer, or in its next fetch.
3. With ``push.confirm: device``: the answer is published, and the broker confirms that. A position proves what it answers, so
   any process can do it, also one that does not have the command. After a crash before it push sends the command again.
4. PUBACK to the broker. With ``push.confirm: broker`` the session is persistent: the broker sends what has no PUBACK to the
   device's next session. What the device may have had is marked there: what this process gave it lately, because a broker
   that dies loses PUBACKs; what has DUP; and the first command of a session that another process had.

Signs of life and absence (H26, H31). A sign of life is given when nothing waits for the device's confirmation and nothing has
come for a moment. On a connection without an earlier session a sign of absence precedes it, because what the broker has
confirmed to push since the last sign of life may be lost: push sends it again. An absence is given if no request comes for
``absent_after``. The will gives it if the process dies, unless the session continues at another process before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import subscriber
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER, Connected, Disconnected, LinkHandler, Message, Subscription, Will
from bridge.poller import Poller
from bridge.protocols.commands import CommandOutcome, HeldCommands, answer_to, read_device_command
from bridge.settings import Settings
from bridge.settings.fetch import FetchSettings, Status, fetched_topics

__all__ = ["DeviceRequest", "DeviceSession", "SessionContext"]

log = structlog.get_logger("protocols")

_QUIET_S: Final = 0.2
"""After this time without a command the device has had all that the broker had queued."""
_FAILED_FROM: Final = 0x80
_NO_SUBSCRIBERS: Final = 0x10
"""Reason codes of PUBACK (MQTT 5, 3.4.2.1): failures, and no subscription to the topic."""
_CONFIRM_S: Final = 5.0
"""How long a confirmation waits for its command, which the broker sends again to a new session."""
_LEAVE_S: Final = 5.0
_LONGEST: Final = 8 * 1024 * 1024
"""Largest packet, in bytes: Pulsar has no larger command."""
_RECEIVE_MAXIMUM: Final = 60_000
"""Far above what waits for one device: Artemis 2.40 counts each message that was not acknowledged at the end of a connection
against this number for as long as the session lives, and sends nothing when it is reached.
"""


@dataclass(eq=False)
class DeviceRequest:
    """A request of a device. It confirms the command at ``position``, if that is not empty, and then ``fetches`` the next one;
    else ``payload`` is the device's answer, and says with ``failed`` that the device could not execute the command.

    ``end`` is called once, on the thread of the links.
    """

    device: str
    position: str
    end: Callable[[CommandOutcome], None]
    wait_s: float = _CONFIRM_S
    fetches: bool = True
    payload: bytes = b""
    failed: bool = False
    until: float = 0.0


@dataclass(frozen=True)
class SessionContext:
    """What the sessions of a process share. ``clock`` is the monotonic one."""

    settings: Settings
    fetch: FetchSettings
    poller: Poller
    clock: Callable[[], float]

    @property
    def answers(self) -> bool:
        """Whether push waits for the devices' own answers."""
        return self.settings.push.confirm == "device"

    def link(self, device: str, status: Status, handler: LinkHandler) -> Link:
        """Return the link of a device's session."""
        return Link(
            self.settings.fetch_mqtt(self.fetch),
            handler,
            client_id=f"{self.fetch.client_id}-{device}",
            persistent=not self.answers,
            receive_maximum=_RECEIVE_MAXIMUM,
            max_packet_bytes=_LONGEST,
            poller=self.poller,
            will=Will(status.topic, status.offline, True, round(self.fetch.absent_after)),
        )


class DeviceSession(LinkHandler):
    """One device's session. Everything is called on the thread of the links."""

    def __init__(self, device: str, status: Status, context: SessionContext, given: deque[str]) -> None:
        """``given`` has the positions that the device got lately from this process; it outlives the session."""
        self.device = device
        self.link = context.link(device, status, self)
        self.held = HeldCommands()
        self.ready = False
        """Whether the broker has granted the subscription."""
        self.ended = False
        """Nothing follows; the owner calls ``close``."""
        self._status = status
        self._context = context
        self._given = given
        self._requests: list[DeviceRequest] = []  # one of them fetches at most
        self._confirmed = ""  # the last position
        self._resumed = False  # the next command may have been given by an earlier session
        self._active_at = self._quiet_at = context.clock()
        self._signed_at: float | None = None
        self._leaving_at: float | None = None

    # --- requests ---

    def ask(self, request: DeviceRequest) -> None:
        """A request of the device. A newer fetch ends the older one."""
        now = self._active_at = self._context.clock()
        if self._leaving_at is not None:
            self._leaving_at = self._signed_at = None
        if request.fetches:
            self._end(lambda one: one.fetches, CommandOutcome(superseded=True))
        request.until = now + request.wait_s
        self._requests.append(request)
        self._confirm(request.position)
        self._give()

    def left(self, request: DeviceRequest) -> None:
        """The client of a request is gone. What it has confirmed stays confirmed."""
        if request.fetches and request in self._requests:
            self._requests.remove(request)
            self._active_at = self._context.clock()

    def _end(self, which: Callable[[DeviceRequest], bool], outcome: CommandOutcome) -> None:
        for one in [one for one in self._requests if which(one)]:
            self._requests.remove(one)
            one.end(outcome)

    def end_requests(self, outcome: CommandOutcome) -> None:
        """End all requests. A confirmation is never superseded: it is repeated."""
        self._end(lambda one: one.fetches, outcome)
        why = outcome.unavailable or "a newer request of the device took its place"
        self._end(lambda _one: True, CommandOutcome(unavailable=why))

    # --- the end ---

    def fail(self, outcome: CommandOutcome) -> None:
        """End all requests, and the session; the will gives the absence unless a new session begins."""
        self.end_requests(outcome)
        self._leaving_at, self.ended = None, True

    def leave(self) -> None:
        """Give the sign of absence, and end when the broker has it."""
        if self._leaving_at is not None or self.ended:
            return
        self._leaving_at = self._context.clock()
        if self.ready:
            self._say(self._status.offline, self._left)
        else:
            self.ended = True

    def _left(self, _reason: int) -> None:
        self.ended = self._leaving_at is not None

    def close(self) -> None:
        """Close the connection of a session that has ended: with DISCONNECT after a sign of absence, else with the will. Without
        DISCONNECT also if a command is not confirmed, so that it gets DUP.
        """
        if self._leaving_at is None or len(self.held):
            self.link.drop("the session ended")
        self.link.disconnect()

    # --- confirmations ---

    def _confirm(self, position: str) -> None:
        """Confirm the command at ``position`` if the device says so, and as soon as it is possible."""
        asked = sorted((one for one in self._requests if one.position == position), key=lambda one: one.fetches)
        if not position or not asked or not self.ready or position in self.held.answering:
            return
        answers, held = self._context.answers, position in self.held
        if not held and position == self._confirmed:  # the answer to the confirmation was lost on its way to the device
            self._end_confirmations(position, CommandOutcome(confirmed=True))
        elif held and not answers:
            reach("fetch_before_answer")
            self._acknowledge(position)
        elif answers:  # without: the broker sends the command again to a new session
            reach("fetch_before_answer")
            self.held.answering.add(position)
            push, mqtt5 = self._context.settings.push, self.link.settings.protocol == "5"
            topic, properties = answer_to(position, push, failed=asked[0].failed, mqtt5=mqtt5)
            confirmed = partial(self._answered, position)
            self.link.publish(topic, asked[0].payload, properties=properties, confirmed=confirmed)

    def _answered(self, position: str, reason: int) -> None:
        self.held.answering.discard(position)
        if reason < _FAILED_FROM and reason != _NO_SUBSCRIBERS:
            self._acknowledge(position)
            return
        why = "no push process receives answers" if reason == _NO_SUBSCRIBERS else f"MQTT reason 0x{reason:02X}"
        self._end_confirmations(position, CommandOutcome(unavailable=f"the answer could not be delivered: {why}"))
        self._give()

    def _acknowledge(self, position: str) -> None:
        reach("fetch_before_puback")
        self.link.acknowledge(self.held.remove(position), self.link.epoch)
        self._confirmed, self._quiet_at = position, self._context.clock()
        self._end_confirmations(position, CommandOutcome(confirmed=True))
        self._give()

    def _end_confirmations(self, position: str, outcome: CommandOutcome) -> None:
        self._end(lambda one: one.position == position and not one.fetches, outcome)

    # --- commands ---

    def _give(self) -> None:
        waits = self.ready and any(one.fetches for one in self._requests)
        if waits and (command := self.held.give()) is not None:
            reach("fetch_before_give")
            self._active_at = self._context.clock()
            self._given.append(command.position)
            self._end(lambda one: one.fetches, CommandOutcome(command))

    # --- the link's hooks ---

    def on_connected(self, event: Connected) -> None:
        """Triggered by CONNACK."""
        self._resumed = event.session_present
        if not event.session_present:
            self._say(self._status.offline)
        below = "/#" if self._context.settings.push.position_in == "topic" else ""
        topics = fetched_topics(self.device, self._context.fetch)
        filters = [one if one.endswith("#") else f"{one}{below}" for one in topics]
        self.link.subscribe([Subscription(one, retain_as_published=False) for one in filters])

    def on_subscribed(self, codes: list[int]) -> None:
        """Triggered by SUBACK."""
        if any(code >= _FAILED_FROM for code in codes):
            who = subscriber(self.link.settings, self.link.client_id)
            self._refused("the MQTT broker refuses the subscription", f"allow {who} to read the topics of the commands")
            return
        self.ready = True
        self._quiet_at = self._context.clock()
        for position in {one.position for one in self._requests}:
            self._confirm(position)
        self._give()

    def on_message(self, message: Message) -> None:
        """Triggered by a PUBLISH: a command, or a message of another client, which is left out."""
        if not message.mid:
            return
        command = None if message.malformed else read_device_command(message, self._context.settings.push)
        if command is None:
            self.link.acknowledge([message.mid], self.link.epoch)
            log.debug("a message on a command topic is not a command of push", device=self.device)
            return
        # Artemis leaves DUP out after an orderly end of the connection, and after its own.
        repeat = command.repeat or message.dup or self._resumed or command.position in self._given
        self.held.add(command._replace(repeat=repeat), message.mid)
        self._resumed = False
        self._confirm(command.position)
        self._give()

    def on_disconnected(self, event: Disconnected) -> None:
        """Triggered by the end of the connection. The next request begins a new one, so two processes do not fight."""
        self.link.abandon()
        if event.reason == DISCONNECT_TAKEN_OVER:
            self.fail(CommandOutcome(superseded=True))
        elif event.remedy is not None:
            self._refused(event.why, event.remedy)
        else:
            self.fail(CommandOutcome(unavailable="the connection to the MQTT broker ended"))

    def _refused(self, why: str, action: str) -> None:
        log.warning("devices cannot fetch their commands. Action: " + action, why=why, shown=1)
        self.fail(CommandOutcome(unavailable="the MQTT broker refuses it, see the log of ingest"))

    # --- time ---

    def tick(self, now: float) -> float:
        """Do what is due. Returns when the next is due."""
        late = CommandOutcome(unavailable="" if self.ready else "the MQTT broker does not answer")
        if self._requests:
            self._active_at = now
        self._end(lambda one: now >= one.until, late)
        if self._leaving_at is not None:
            if now < self._leaving_at + _LEAVE_S:
                return self._leaving_at + _LEAVE_S
            self.fail(late)  # the broker does not confirm: the will gives the absence
            return now
        leave_at = self._active_at + self._context.fetch.absent_after
        if now >= leave_at:
            self.leave()
            return now
        return min(leave_at, self._sign(now), *(one.until for one in self._requests))

    def _sign(self, now: float) -> float:
        """Give a sign of life if it is time. Returns when to look again."""
        most = self._context.fetch.absent_after
        if not self.ready or len(self.held):
            return now + most
        at = self._quiet_at + _QUIET_S
        if self._signed_at is not None and (self._context.answers or self._signed_at >= self._quiet_at):
            # An answer is a sign as well; without answers each sign proves what was confirmed before it.
            at = self._signed_at + most if self._requests else now + most
        if now >= at:
            self._signed_at, self._resumed = now, False
            self._say(self._status.online)
        return max(at, now + _QUIET_S)

    def _say(self, status: bytes, confirmed: Callable[[int], None] | None = None) -> None:
        self.link.publish(self._status.topic, status, retain=True, confirmed=confirmed)
