"""Resume requests of devices, and their answers over MQTT: the shell of ``resume``.

A request is acknowledged when the MQTT broker has its answer; answers that were under way when the connection was lost are
sent again on the next one. The link has room for answers beside the window of the commands. Every client may send
requests that push refuses, and each refusal costs a publish: so a device gets one refusal in ``every_s``, and all devices of
a partition together ``per_s`` in a second (H47). A name to which no command was ever sent gets no answer, because the topic
of an answer may last at the broker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from bridge.bounded_map import BoundedMap
from bridge.contract import ORIGIN_PROPERTY, ORIGIN_PUSH
from bridge.contract.commands import publish_topic_problem
from bridge.contract.names import name_problem
from bridge.contract.tagged_positions import PositionTags, read_from, refusal
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import AT_ONCE_S, NOT_AUTHORIZED, perhaps_for_a_packet, subscriber
from bridge.mqtt.types import Disconnected, PublishProperties
from bridge.pulsar.client import MessageId
from bridge.push.actions import AnswerRequest, DropRequest, FindCommands, ResumeRequest
from bridge.push.brokers import brokers_of
from bridge.push.device_protocol import answer_payload
from bridge.push.flights import CLOSES, Flights
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.push.request_log import Asked, Found
from bridge.push.resume import SERVED_AT_ONCE
from bridge.settings import Settings

__all__ = ["ANSWERS_AT_ONCE", "Answers", "RefusalRate", "ResumeRequests"]

log = structlog.get_logger("push")

_SHOWN: Final = 100
ANSWERS_AT_ONCE: Final = 64
"""Answers that the MQTT broker has not confirmed, beside the commands: those to requests that are served, and refusals."""
_REFUSED_AT_ONCE: Final = ANSWERS_AT_ONCE - SERVED_AT_ONCE  # with more answers refusals are dropped
_RATE_BYTES: Final = 1024 * 1024


class RefusalRate:
    """Which refusals are sent: ``per_s`` to all devices, one in ``every_s`` seconds to each. Times are in seconds."""

    def __init__(self, per_s: float, every_s: float, max_bytes: int = _RATE_BYTES) -> None:
        self._per_s = per_s
        self._every_s = every_s
        self._left = max(1.0, per_s)
        self._filled_at = 0.0
        self.last: BoundedMap[float] = BoundedMap(max_bytes, each=32)
        """When each device got its last one."""

    def allows(self, device: str, now: float) -> bool:
        """Return whether a refusal may be sent to ``device`` now, and count it if so."""
        self._left = min(max(1.0, self._per_s), self._left + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        if self._left < 1.0 or now - self.last.get(device, -math.inf) < self._every_s:
            return False
        self._left -= 1.0
        self.last.put(device, now)
        return True


@dataclass(slots=True, eq=False)
class _Answer:
    """An answer that the broker does not have."""

    message_id: MessageId  # of its request, which is acknowledged when the broker has the answer
    topic: str
    payload: bytes
    request: ResumeRequest | None  # the request, if its device waits for the answer; None for a refusal
    sent_at: float | None = None  # when it was sent on this connection
    number: int = 0  # its number among pushes and answers, in the order of sending
    closes: int = 0  # so often the broker closed the connection shortly after it was sent
    silences: int = 0  # so often the broker did not confirm it, and confirmed what was sent later


@dataclass(eq=False)
class Answers:
    """The answers of one session at one broker. ``ended`` is called when the broker has one, or cannot have it."""

    _settings: Settings
    _link: Link
    _flights: Flights
    _log: PartitionLog
    _ended: Callable[[_Answer], None]

    def __post_init__(self) -> None:
        self._answers: list[_Answer] = []
        self._suspects: list[_Answer] = []  # each goes alone, on a connection that has lived for a while
        self._up_at = 0.0
        self._epoch = 0  # the connection on which answers may go out

    @property
    def full(self) -> bool:
        """Whether no further refusal may be sent."""
        return len(self._answers) >= _REFUSED_AT_ONCE

    def add(self, answer: _Answer) -> None:
        """Publish an answer."""
        self._answers.append(answer)
        if self._link.connected and self._epoch == self._link.epoch:
            self._publish(answer)

    def drop(self, request: ResumeRequest) -> None:
        """The answer to a request goes out at another broker."""
        self._answers = [one for one in self._answers if one.request is not request]
        self._suspects = [one for one in self._suspects if one.request is not request]

    def link_up(self) -> None:
        """The connection is up and ours: what was not answered is answered on it, or given up."""
        if self._epoch == self._link.epoch:
            return
        self._epoch = self._link.epoch
        self._up_at = time.monotonic()
        for answer in list(self._answers):
            if max(answer.closes, answer.silences) >= CLOSES:
                self._give_up(answer)
            elif answer.closes or answer.silences:
                self._suspects.append(answer)
            else:
                self._publish(answer)

    def link_down(self, event: Disconnected) -> bool:
        """The connection ended: what was sent on it is sent again on the next one.

        Returns whether the broker may have ended it for a command: not while an answer is young, which may be the cause
        as well. That one goes later on the next connection, so that each is seen without the other.
        """
        now, timeout = time.monotonic(), self._settings.push.puback_timeout
        closed = perhaps_for_a_packet(event)
        if not event.epoch:  # the broker itself was the cause
            for answer in self._answers:
                answer.closes = 0
        any_young = False
        for answer in self._answers:
            if answer.sent_at is None:
                continue
            young = now - answer.sent_at < AT_ONCE_S
            any_young = any_young or young
            if closed and young:
                answer.closes += 1
            elif now - answer.sent_at >= timeout and answer.number < self._flights.newest:
                answer.silences += 1
            else:
                answer.closes = 0
            answer.sent_at = None
        self._suspects.clear()
        return closed and not any_young

    def overdue(self, now: float) -> str | None:
        """Return the topic of an answer whose PUBACK has not come in its time, None without one."""
        self._send_suspect(now)
        before = now - self._settings.push.puback_timeout
        sent = ((one.topic, one.sent_at) for one in self._answers)
        return next((topic for topic, at in sent if at is not None and at <= before), None)

    def _send_suspect(self, now: float) -> None:
        if not self._suspects or self._epoch != self._link.epoch or now - self._up_at < AT_ONCE_S:
            return
        sent = (one.sent_at for one in self._answers)
        if all(at is None or now - at >= AT_ONCE_S for at in sent):
            self._publish(self._suspects.pop(0))

    def _publish(self, answer: _Answer) -> None:
        self._link.publish(
            answer.topic,
            answer.payload,
            qos=1,
            properties=PublishProperties(user=((ORIGIN_PROPERTY, ORIGIN_PUSH),)),
            confirmed=partial(self._confirmed, answer),
            sent=partial(self._note_sent, answer),
        )

    def _note_sent(self, answer: _Answer) -> None:
        answer.sent_at = time.monotonic()
        answer.number = next(self._flights.numbers)

    def _give_up(self, answer: _Answer) -> None:
        did = "closes the connection at" if answer.closes >= CLOSES else "does not confirm"
        log.warning(
            f"the MQTT broker {did} the answer to a resume request, and the device gets its commands without it. Action: "
            f"allow {subscriber(self._link.settings, self._link.client_id)} to write there, and see the log of the broker",
            mqtt_topic=answer.topic,
            partition=self._log.partition,
        )
        self._end(answer)

    def _confirmed(self, answer: _Answer, reason: int) -> None:
        if reason == NOT_AUTHORIZED:
            log.warning(
                "the MQTT broker refuses the answers to resume requests. Action: allow "
                f"{subscriber(self._link.settings, self._link.client_id)} to write there",
                mqtt_topic=answer.topic,
                partition=self._log.partition,
                shown=1,
            )
        self._flights.broker_answered(answer.number)
        reach("resume_after_answer")
        if answer in self._answers:
            self._end(answer)

    def _end(self, answer: _Answer) -> None:
        self._answers.remove(answer)
        self._ended(answer)


@dataclass(eq=False)
class ResumeRequests:
    """The resume requests of one session; all of it runs on the partition's thread."""

    _settings: Settings
    _core: Partition
    _links: Mapping[str, Link]  # by broker
    _log: PartitionLog
    _metrics: PushMetrics
    _tags: PositionTags

    def __post_init__(self) -> None:
        resume = self._settings.push.resume
        self._rate = RefusalRate(resume.refusals_per_second, resume.interval)
        self.answers = {
            name: Answers(self._settings, link, self._core.links[name], self._log, self._answered)
            for name, link in self._links.items()
        }
        """By broker."""
        self._names = brokers_of(self._settings)

    def asked(self, asked: Asked) -> None:
        """Hand a request to the core, or refuse it."""
        reach("resume_after_request")
        self._metrics.counters["resume_requests"].inc()
        message_id, device, payload = asked.message_id, asked.device, asked.payload
        link = self._names.named(asked.link)
        push, longest = self._settings.push, self._settings.max_name_bytes
        if device is None or name_problem(device, longest) is not None or not self._log.is_ours(device):
            log.warning(
                "push dropped a resume request, because it is in the partition of other devices. Action: see who writes to "
                "the topic",
                partition=self._log.partition,
                device="" if device is None else device[:_SHOWN],
                shown=1,
            )
            self._log.requests.acknowledge(message_id)
            return
        if not self._core.devices.knows(device):
            self._metrics.counters["resume_answers"].labels("unknown").inc()
            self._log.requests.acknowledge(message_id)
            return
        try:
            text, after = read_from(payload, device, self._tags, earliest=push.resume.allow_earliest)
        except ContractError as e:
            text = payload[:_SHOWN].decode(errors="replace")
            self._refuse(message_id, device, refusal(str(e), text), link)
            return
        now_us = time.time_ns() // 1000
        request = ResumeRequest(device, text, after, min(1000 * asked.at_ms, now_us), message_id, link)
        answer = self._core.asked(request, now_us)
        if answer is not None:
            self._refuse(message_id, device, answer_payload(answer, request, self._tags), link)

    def _refuse(self, message_id: MessageId, device: str, payload: bytes, link: str) -> None:
        """Refuse a request where it came in, which is known unless the device's broker is."""
        link = link or self._core.places.link_of(device)
        if self.answers[link].full or not self._rate.allows(device, time.monotonic()):
            self._metrics.counters["resume_answers"].labels("dropped").inc()
            log.warning(
                "push dropped requests to resume: it would refuse them, and they exceed push.resume.refusals_per_second or "
                "come from one device within push.resume.interval. Action: see which clients may publish to "
                "ingest.resume_topic",
                partition=self._log.partition,
                device=device[:_SHOWN],
                shown=1,
            )
            self._log.requests.acknowledge(message_id)
            return
        self._metrics.counters["resume_answers"].labels("error").inc()
        self._answer(message_id, device, payload, None, link)

    def found(self, event: Found) -> None:
        """Hand on what was found in Pulsar."""
        reach("resume_after_find")
        order, now_us = event.order, time.time_ns() // 1000
        self._core.resume.found(
            order.device, order.epoch, event.ids, trimmed=event.trimmed, first=event.first, now_us=now_us
        )

    def begin(self, action: FindCommands | AnswerRequest | DropRequest) -> None:
        """Begin one action."""
        if isinstance(action, FindCommands):
            self._log.requests.find(action)
        elif isinstance(action, DropRequest):
            self._metrics.counters["resume_answers"].labels("superseded").inc()
            self._log.requests.acknowledge(action.request.token)
        else:
            reach("resume_after_store")
            request, answer = action.request, action.answer
            result = "error" if answer.error else "trimmed" if answer.trimmed else "resumed"
            self._metrics.counters["resume_answers"].labels(result).inc()
            for answers in self.answers.values():
                answers.drop(request)
            payload = answer_payload(answer, request, self._tags)
            self._answer(request.token, request.device, payload, request, action.link)

    def _answer(
        self, message_id: MessageId, device: str, payload: bytes, request: ResumeRequest | None, link: str
    ) -> None:
        answer = _Answer(message_id, f"{self._settings.push.resume.answer_topic}/{device}", payload, request)
        if publish_topic_problem(answer.topic) is not None:
            self._answered(answer)
        else:
            self.answers[link].add(answer)

    def _answered(self, answer: _Answer) -> None:
        if answer.request is not None:
            self._core.request_answered(answer.request)
        self._log.requests.acknowledge(answer.message_id)
