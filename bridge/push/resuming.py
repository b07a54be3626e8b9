"""Reads what devices ask for and tells them what became of it: the session's side of ``ResumingCore``.

It decides nothing; all of it runs on the session's thread. A request is acknowledged when the MQTT broker has its
answer; answers that were under way when the connection was lost go out again on the next one. Answers have a small
window of their own beside that of the commands. Any client may send requests that are refused, so their answers have a
rate as well (H47), and names to which no command was ever sent get none: the topic of an answer may last at the broker.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from bridge.contract import ORIGIN_PROPERTY, ORIGIN_PUSH
from bridge.contract.commands import publish_topic_problem
from bridge.contract.names import name_problem
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import AT_ONCE_S, NOT_AUTHORIZED, perhaps_for_a_packet, subscriber
from bridge.mqtt.types import Confirmation, Disconnected, PublishProperties
from bridge.pulsar.client import MessageId
from bridge.push.actions import AnswerRequest, DropRequest, FindCommands
from bridge.push.metrics import PushMetrics
from bridge.push.partition_log import PartitionLog
from bridge.push.position_tags import PositionTags
from bridge.push.refusal_rate import RefusalRate
from bridge.push.requests import Asked, Found
from bridge.push.resume import ResumingCore
from bridge.push.resume_requests import ResumeRequest, read_from, refusal
from bridge.push.suspects import CLOSES
from bridge.settings import Settings

__all__ = ["ANSWERS_AT_ONCE", "Resuming"]

log = structlog.get_logger("push")

_DENIED_EVERY_S: Final = 60.0
_SHOWN: Final = 100
ANSWERS_AT_ONCE: Final = 16
"""Answers that the MQTT broker has not confirmed, beside the commands."""
_WAITING: Final = 100
"""Answers that wait for room; with more of them refusals are dropped."""


@dataclass(slots=True)
class _Fault:
    """What speaks against an answer."""

    closes: int = 0  # by the broker, shortly after it was sent
    silences: int = 0  # no PUBACK in its time, while what was sent later had one


class Resuming:
    """The requests of one session."""

    def __init__(
        self,
        settings: Settings,
        core: ResumingCore,
        link: Link,
        partition_log: PartitionLog,
        metrics: PushMetrics,
        tags: PositionTags,
    ) -> None:
        self._tags = tags
        self._rate = RefusalRate(settings.push.resume.refusals_per_second, settings.push.resume.interval)
        self._waiting: deque[int] = deque()  # answers that have not been published on this connection
        self._out: set[int] = set()  # those that were, and are not confirmed
        self._settings = settings
        self._core = core
        self._link = link
        self._log = partition_log
        self._metrics = metrics
        self._count = 0
        self._messages: dict[int, MessageId] = {}  # requests that are not acknowledged
        self._served: dict[int, ResumeRequest] = {}  # their devices wait until the broker has the answer
        self._answers: dict[int, tuple[str, bytes]] = {}  # topic and payload of those that the broker has not
        self._sent_at: dict[int, float] = {}  # when they were sent on this connection
        self._order: dict[int, tuple[int, int]] = {}  # of sending: among the answers, and behind which push
        self._count_sent = 0
        self._newest = self._newest_push = 0  # the last of each that the broker confirmed
        self._faults: dict[int, _Fault] = {}
        self._aside: list[int] = []  # those with a fault: each goes alone, on a connection that has lived for a while
        self._up_at = 0.0
        self._epoch = 0  # the connection on which answers may go out
        self._denied_at = -_DENIED_EVERY_S

    def asked(self, asked: Asked) -> None:
        """Hand a request to the core, or refuse it."""
        reach("resume_after_request")
        self._metrics.resume_requests.inc()
        self._count += 1
        token, device, payload = self._count, asked.device, asked.payload
        self._messages[token] = asked.message_id
        push = self._settings.push
        invalid = device is None or name_problem(device, self._settings.max_name_bytes) is not None
        if device is None or invalid or not self._log.is_ours(device):
            log.warning(
                "a request to resume stands in the partition of other devices, and is dropped; see who writes to the topic",
                partition=self._log.partition,
                device="" if device is None else device[:_SHOWN],
                shown=1,
            )
            self._done(token)
            return
        if not self._core.knows(device):
            self._metrics.resume_answers.labels("unknown").inc()
            self._done(token)
            return
        try:
            text, after = read_from(
                payload, device, self._log.partition, self._tags, earliest=push.resume.allow_earliest
            )
        except ContractError as e:
            self._refuse(token, device, refusal(str(e), payload[:_SHOWN].decode(errors="replace")))
            return
        now_us = time.time_ns() // 1000
        request = ResumeRequest(device, text, after, min(1000 * asked.at_ms, now_us), token)
        answer = self._core.asked(request, now_us)
        if answer is not None:
            self._refuse(token, device, answer.payload(request, self._tags))

    def _refuse(self, token: int, device: str, payload: bytes) -> None:
        if len(self._waiting) >= _WAITING or not self._rate.allows(device, time.monotonic()):
            self._metrics.resume_answers.labels("dropped").inc()
            log.warning(
                "push dropped requests to resume: it would refuse them, and they exceed "
                "push.resume.refusals_per_second or come from one device within push.resume.interval. Action: see which clients may publish to "
                "ingest.resume_topic",
                partition=self._log.partition,
                device=device[:_SHOWN],
                shown=1,
            )
            self._done(token)
            return
        self._metrics.resume_answers.labels("error").inc()
        self._answer(token, device, payload)

    def found(self, event: Found) -> None:
        """Hand on what was found in Pulsar."""
        reach("resume_after_find")
        order = event.order
        self._core.found(
            order.device,
            order.round,
            event.ids,
            trimmed=event.trimmed,
            first=event.first,
            now_us=time.time_ns() // 1000,
        )

    def do(self, action: FindCommands | AnswerRequest | DropRequest) -> None:
        """Begin one action."""
        if isinstance(action, FindCommands):
            self._log.find(action)
        elif isinstance(action, DropRequest):
            self._metrics.resume_answers.labels("superseded").inc()
            self._done(action.request.token)
        else:
            reach("resume_after_store")
            request, answer = action.request, action.answer
            result = "error" if answer.error else "trimmed" if answer.trimmed else "resumed"
            self._metrics.resume_answers.labels(result).inc()
            self._served[request.token] = request
            self._answer(request.token, request.device, answer.payload(request, self._tags))

    def link_up(self) -> None:
        """The connection stands and is ours: what was not answered is answered on it, or given up."""
        if self._epoch == self._link.epoch:
            return
        self._epoch = self._link.epoch
        self._up_at = time.monotonic()
        self._out.clear()
        self._waiting.clear()
        for token in list(self._answers):
            fault = self._faults.get(token)
            if fault is None:
                self._waiting.append(token)
            elif max(fault.closes, fault.silences) >= CLOSES:
                self._give_up(token, fault)
            else:
                self._aside.append(token)
        self._fill_window()

    def _fill_window(self) -> None:
        while self._waiting and len(self._out) < ANSWERS_AT_ONCE:
            if not self._link.connected or self._epoch != self._link.epoch:
                return
            self._publish(self._waiting.popleft())

    def link_down(self, event: Disconnected) -> bool:
        """The connection ended: what was sent on it is sent again on the next one.

        Returns whether the broker may have ended it for a command: not while an answer is young, which may be the
        reason as well. That one goes later on the next connection, so that each is seen without the other.
        """
        now, timeout = time.monotonic(), self._settings.push.puback_timeout
        closed = perhaps_for_a_packet(event)
        if not event.epoch:  # the broker was in trouble, whatever was sent to it
            for fault in self._faults.values():
                fault.closes = 0
        young = [token for token, at in self._sent_at.items() if now - at < AT_ONCE_S]
        for token, at in self._sent_at.items():
            if closed and token in young:
                self._faults.setdefault(token, _Fault()).closes += 1
            elif now - at >= timeout and self._later_confirmed(token):
                self._faults.setdefault(token, _Fault()).silences += 1
            elif token in self._faults:
                self._faults[token].closes = 0
        self._sent_at.clear()
        self._aside.clear()
        return closed and not young

    def overdue(self, now: float) -> str | None:
        """Return the topic of an answer whose PUBACK has not come in its time, None without one."""
        self._send_aside(now)
        before = now - self._settings.push.puback_timeout
        return next((self._answers[one][0] for one, at in self._sent_at.items() if at <= before), None)

    def _send_aside(self, now: float) -> None:
        if not self._aside or self._epoch != self._link.epoch or now - self._up_at < AT_ONCE_S:
            return
        if all(now - at >= AT_ONCE_S for at in self._sent_at.values()):
            self._publish(self._aside.pop(0))

    def _give_up(self, token: int, fault: _Fault) -> None:
        did = "closes the connection at" if fault.closes >= CLOSES else "does not confirm"
        log.warning(
            f"the MQTT broker {did} what we tell a device that asked to resume: the device gets its commands without "
            f"that; allow {subscriber(self._settings.mqtt, self._link.client_id)} to write there, and see the log of the "
            "broker",
            mqtt_topic=self._answers[token][0],
            partition=self._log.partition,
        )
        self._ended(token)

    def _sent(self, token: int) -> None:
        self._sent_at[token] = time.monotonic()
        self._count_sent += 1
        self._order[token] = self._count_sent, self._core.pushes

    def command_confirmed(self, number: int) -> None:
        """The broker answered push ``number``."""
        self._newest_push = max(self._newest_push, number)

    def _later_confirmed(self, token: int) -> bool:
        order, push = self._order[token]
        return order < self._newest or push < self._newest_push

    def _answer(self, token: int, device: str, payload: bytes) -> None:
        topic = f"{self._settings.push.resume.answer_topic}/{device}"
        if publish_topic_problem(topic) is not None:
            self._done(token)
            return
        self._answers[token] = topic, payload
        self._waiting.append(token)
        self._fill_window()

    def _publish(self, token: int) -> None:
        self._out.add(token)
        topic, payload = self._answers[token]
        self._link.publish(
            topic,
            payload,
            qos=1,
            properties=PublishProperties(user=((ORIGIN_PROPERTY, ORIGIN_PUSH),)),
            confirmed=partial(self._confirmed, token, topic),
            sent=partial(self._sent, token),
        )

    def _confirmed(self, token: int, topic: str, confirmation: Confirmation) -> None:
        now = time.monotonic()
        if confirmation.reason == NOT_AUTHORIZED and now - self._denied_at > _DENIED_EVERY_S:
            self._denied_at = now
            log.warning(
                "the MQTT broker does not let us tell devices what became of their request: allow "
                f"{subscriber(self._settings.mqtt, self._link.client_id)} to write there",
                mqtt_topic=topic,
                partition=self._log.partition,
            )
        self._newest = max(self._newest, self._order.get(token, (0, 0))[0])
        self._core.broker_answered()
        reach("resume_after_answer")
        self._ended(token)
        self._fill_window()

    def _ended(self, token: int) -> None:
        for kept in (self._answers, self._sent_at, self._faults, self._order):
            kept.pop(token, None)
        self._out.discard(token)
        self._done(token)

    def _done(self, token: int) -> None:
        request = self._served.pop(token, None)
        if request is not None:
            self._core.told(request)
        message_id = self._messages.pop(token, None)
        if message_id is not None:
            self._log.acknowledge_request(message_id)
