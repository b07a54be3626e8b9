"""Reads what devices ask for and tells them what became of it: the session's side of ``ResumingCore``.

It decides nothing; all of it runs on the session's thread. A request is acknowledged when the MQTT broker has its
answer; answers that were under way when the connection was lost go out again on the next one.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import structlog

from bridge.commands import publish_topic_problem
from bridge.contract import ORIGIN_PROPERTY, ORIGIN_PUSH
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import NOT_AUTHORIZED, subscriber
from bridge.mqtt.types import Confirmation, PublishProperties
from bridge.pulsar_client import Message
from bridge.push.actions import AnswerRequest, DropRequest, FindCommands
from bridge.push.metrics import PushMetrics
from bridge.push.partition_log import PartitionLog
from bridge.push.requests import Found
from bridge.push.resume import ResumingCore
from bridge.push.resume_requests import ResumeRequest, read_from, refusal
from bridge.push.taken import key_of
from bridge.settings import Settings

__all__ = ["Resuming"]

log = structlog.get_logger("push")

_DENIED_EVERY_S: Final = 60.0
_SHOWN: Final = 100


class Resuming:
    """The requests of one session."""

    def __init__(
        self,
        settings: Settings,
        core: ResumingCore,
        link: Link,
        partition_log: PartitionLog,
        metrics: PushMetrics,
    ) -> None:
        self._settings = settings
        self._core = core
        self._link = link
        self._log = partition_log
        self._metrics = metrics
        self._count = 0
        self._messages: dict[int, Message] = {}  # requests that are not acknowledged
        self._served: dict[int, ResumeRequest] = {}  # their devices wait until the broker has the answer
        self._answers: dict[int, tuple[str, bytes]] = {}  # topic and payload of those that the broker has not
        self._sent_at: dict[int, float] = {}  # when they were sent on this connection
        self._epoch = 0  # the connection on which answers may go out
        self._denied_at = -_DENIED_EVERY_S

    def asked(self, message: Message) -> None:
        """Hand a request to the core, or refuse it."""
        reach("resume_after_request")
        self._metrics.resume_requests.inc()
        self._count += 1
        token, device, payload = self._count, key_of(message), message.data()
        self._messages[token] = message
        shown = payload[:_SHOWN].decode(errors="replace")
        if device is None or not self._log.is_ours(device):
            log.warning(
                "a request to resume stands in the partition of other devices, and is dropped; see who writes to the topic",
                partition=self._log.partition,
                device="" if device is None else device[:_SHOWN],
            )
            self._done(token)
            return
        try:
            text, after = read_from(payload, self._log.partition)
        except ContractError as e:
            self._metrics.resume_answers.labels("error").inc()
            self._answer(token, device, refusal(str(e), shown))
            return
        now_us = time.time_ns() // 1000
        at_us = 1000 * (message.event_timestamp() or message.publish_timestamp())
        self._core.asked(ResumeRequest(device, text, after, min(at_us, now_us), token), now_us)

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
            self._answer(request.token, request.device, answer.payload(request.text, self._log.partition))

    def link_up(self) -> None:
        """The connection stands and is ours: what was not answered is answered on it."""
        if self._epoch != self._link.epoch:
            self._epoch = self._link.epoch
            for token in list(self._answers):
                self._publish(token)

    def link_down(self) -> None:
        """The connection ended: what was sent on it is sent again on the next one."""
        self._sent_at.clear()

    def overdue(self, now: float) -> str | None:
        """Return the topic of an answer whose PUBACK has not come in its time, None without one."""
        before = now - self._settings.push.puback_timeout_s
        return next((self._answers[one][0] for one, at in self._sent_at.items() if at <= before), None)

    def _sent(self, token: int) -> None:
        self._sent_at[token] = time.monotonic()

    def _answer(self, token: int, device: str, payload: bytes) -> None:
        topic = f"{self._settings.push.resumed_topic}/{device}"
        if publish_topic_problem(topic) is not None:
            self._done(token)
            return
        self._answers[token] = topic, payload
        if self._link.connected and self._epoch == self._link.epoch:
            self._publish(token)

    def _publish(self, token: int) -> None:
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
        self._answers.pop(token, None)
        self._sent_at.pop(token, None)
        self._core.broker_answered()
        reach("resume_after_answer")
        self._done(token)

    def _done(self, token: int) -> None:
        request = self._served.pop(token, None)
        if request is not None:
            self._core.told(request)
        message = self._messages.pop(token, None)
        if message is not None:
            self._log.acknowledge_request(message)
