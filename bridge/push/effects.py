"""Effects: the actions of a partition's core, begun over MQTT and in Pulsar. The result of each comes back as an event."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from bridge.contract import C_DEVICE, C_ID, C_TOPIC
from bridge.contract.commands import MAX_TEXT_BYTES, Command, CommandPosition, decode_command, read_command
from bridge.contract.names import MAX_NAME_BYTES
from bridge.contract.tagged_positions import PositionTags
from bridge.dead_letters import dead_letter
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.packets import misfit
from bridge.mqtt.refusals import NOT_AUTHORIZED, subscriber
from bridge.mqtt.types import Disconnected
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.sending import Stored
from bridge.push.actions import (
    Ack,
    Action,
    AnswerRequest,
    Copy,
    DeadLetter,
    DropRequest,
    FindCommands,
    Forget,
    Pull,
    Push,
    StoreCursor,
    StoreReceipt,
    StoreSegment,
)
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.device_protocol import DeviceAnswer, check_topic, outgoing
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.push.puller import Copied, Pulled
from bridge.push.resume_answers import ResumeRequests
from bridge.push.tracing import Answered, Confirmed
from bridge.settings import Settings

__all__ = ["Effects"]

log = structlog.get_logger("push")

_SHOWN: Final = 200
_GONE: Final = "the payload of the group command is not in Pulsar any more"


@dataclass(eq=False)
class Effects:
    """Begins the actions of one core, and keeps the messages that they concern. All of it runs on one thread."""

    _settings: Settings
    _core: Partition
    _links: Mapping[str, Link]  # by broker
    _log: PartitionLog
    _budget: ReadBudget
    _metrics: PushMetrics
    _ask: Callable[[CommandPosition], bytes | None]
    """Returns the payload of a group command, or None and brings it to ``payload_came``."""
    _tags: PositionTags

    def __post_init__(self) -> None:
        self.trace: Callable[[object], None] = lambda _step: None
        """Sees each step of a command (``Tracer.see``)."""
        # Of group commands, by position; a device has one push that is wanted, so each waits by itself.
        self._waiting: defaultdict[CommandPosition, list[Push]] = defaultdict(list)
        # What waits no more but for room in the window of its broker.
        self._came: dict[str, deque[tuple[Push, bytes | None]]] = {name: deque() for name in self._links}
        self._messages: dict[CommandPosition, StoredMessage] = {}  # not acknowledged
        self._pulled: dict[CommandPosition, StoredMessage] = {}  # was parked, and is not settled
        self.resume = ResumeRequests(self._settings, self._core, self._links, self._log, self._metrics, self._tags)

    def arrived(self, message: StoredMessage) -> None:
        """Hand a message of the commands partition to the core."""
        before = self._messages.get(message.position)
        self._messages[message.position] = message
        if before is None:
            self._route(message)
        else:
            # It came again after a reconnect, and the core tracks it or has acknowledged it already: the
            # acknowledgement must use the newest id, which alone counts for a batch, and only once.
            self._budget.release(len(before.payload))
        self.trace(message)

    def _route(self, message: StoredMessage) -> None:
        core, position, properties = self._core, message.position, message.properties
        try:
            if message.problem:
                raise ContractError(message.problem)
            command = decode_command(properties, message.payload, self._settings.max_name_bytes)
            check_topic(command, self._settings.push)
        except ContractError as e:
            log.warning("a command is not valid; see the dead letters", position=str(position), why=str(e))
            # Its receipt is to fit into a message of Pulsar, whatever is wrong with it.
            named = Command(
                properties.get(C_ID, "")[:MAX_NAME_BYTES],
                properties.get(C_DEVICE, message.key)[:MAX_NAME_BYTES],
                properties.get(C_TOPIC, "")[:MAX_TEXT_BYTES],
                b"",
            )
            core.arrived_invalid(position, str(e), named, len(message.payload))
            return
        reach("after_read")
        core.arrived(position, command, time.time_ns() // 1000)

    def pulled(self, event: Pulled) -> None:
        """Hand a parked command that was read to the core."""
        command = None
        if event.message is not None:
            self._forget(event.position)
            self._pulled[event.position] = event.message
            command = read_command(event.message.properties, event.message.payload)
        elif self._core.replay.wants(event.pull.device, event.pull.epoch):
            log.error(
                "a parked command is not in Pulsar any more, see its receipt. Action: never clear the backlog of "
                "pulsebridge-parked",
                device=event.pull.device,
                position=str(event.position),
            )
        reach("after_pull")
        now_us = time.time_ns() // 1000
        self._core.pulled(event.pull.device, event.pull.epoch, event.position, command, now_us)
        self.trace(event)

    def copied(self, event: Copied) -> None:
        """Tell the core of commands that were to be moved."""
        reach("after_copy")
        if event.copies is None:
            self._core.relocation.copy_failed(event.relocation)
        else:
            self._core.relocation.copied(event.relocation, event.copies, time.time_ns() // 1000)

    def answered(self, answer: DeviceAnswer, link: str = "") -> bool:
        """Hand the core a device's answer, which came at ``link``. Returns whether a command waited for one."""
        now_us, forged = time.time_ns() // 1000, not answer.device and self._is_forged(answer)
        waited = not forged and self._core.answered(
            answer.position, answer.payload, now_us, link, failed=answer.failed, device=answer.device
        )
        self.trace(Answered(answer, waited))
        return waited

    def _is_forged(self, answer: DeviceAnswer) -> bool:
        """Return whether the sender did not receive the command, and log that."""
        device = self._core.delivery.device_of(answer.position)
        forged = device is not None and not self._tags.proves(answer.tag, answer.position, device)
        if forged:
            self._metrics.counters["forged_answers"].inc()
            log.warning(
                "push ignored an answer whose position has a wrong tag: its sender did not receive the command. Action: "
                "see which client publishes to push.answers.topic, and that the device gives the position back whole",
                partition=self._log.partition,
                device=(device or "")[:_SHOWN],
                position=str(answer.position),
                shown=1,
            )
        return forged

    def stored(self, token: object) -> None:
        """Tell the core that Pulsar has stored what was written for an action of its own."""
        core = self._core
        self.trace(Stored(token))
        if isinstance(token, StoreCursor):
            reach("after_cursor")
            core.cursor_stored(token.device)
        elif isinstance(token, StoreSegment):
            reach("after_segment")
            core.segment_stored(token.parked)
            if token.relocation:
                reach("after_move")
                core.relocation.stored(token.relocation)
        elif isinstance(token, StoreReceipt):
            reach("after_receipt")
            self._metrics.stored(token.receipt)
            core.settlement.receipt_stored(token.position)
        elif isinstance(token, DeadLetter):
            self._metrics.counters["dead_letters"].inc()
            core.settlement.dead_letter_stored(token.position)

    def begin(self, action: Action) -> None:
        """Begin one action."""
        if isinstance(action, Push):
            self._push(action)
        elif isinstance(action, StoreCursor):
            self._log.cursors.write_cursor(action.records, action)
        elif isinstance(action, StoreReceipt):
            receipt = action.receipt
            self._log.write_receipt(receipt.device or receipt.group, receipt.encode(), action)
        elif isinstance(action, DeadLetter):
            self._write_dead_letter(action)
        elif isinstance(action, Ack):
            message = self._messages.pop(action.position)
            self._log.acknowledge(message.message_id)
            self._budget.release(len(message.payload))
            reach("after_ack")
        elif isinstance(action, StoreSegment):
            self._log.cursors.write_record(action.key, action.payload, action)
        elif isinstance(action, (Pull, Copy)):
            self._log.puller.begin(action)
        elif isinstance(action, Forget):
            self._forget(action.position)
        elif isinstance(action, (FindCommands, AnswerRequest, DropRequest)):
            self.resume.begin(action)
        self.trace(action)

    def _forget(self, position: CommandPosition) -> None:
        message = self._pulled.pop(position, None)
        if message is not None:
            self._log.puller.release(len(message.payload))

    def payload_came(self, position: CommandPosition, payload: bytes | None) -> None:
        """Make the pushes that waited for the payload of a group command; without one they are lost."""
        for push in self._waiting.pop(position, []):
            self._came[push.link].append((push, payload))
        self._hand_on()

    def _push(self, push: Push) -> None:
        ref = push.command.ref
        payload = push.command.payload if ref is None else self._ask(ref.position)
        if payload is not None:
            self._publish(push, payload)
        elif ref is not None:
            self._waiting[ref.position].append(push)
            self._core.links[push.link].stall(push.number)
            self._links[push.link].wake()  # another device's command may go instead
        self._hand_on()

    def _hand_on(self) -> None:
        """Make the pushes whose payload came, as far as the window has room: thousands may have waited for one."""
        for name, came in self._came.items():
            while came and self._core.links[name].has_room:
                push, payload = came.popleft()
                if payload is None:
                    self._core.delivery.lose_payload(push.number, _GONE)
                    self._links[name].wake()
                elif self._core.delivery.may_go(push.number, time.time_ns() // 1000):
                    self._publish(push, payload)
                else:
                    self._links[name].wake()

    def link_down(self, event: Disconnected, link: str = "") -> bool:
        """Forget the pushes of the connection that ended. Returns whether it may have ended for a command."""
        for position, pushes in list(self._waiting.items()):
            pushes[:] = [push for push in pushes if push.link != link]
            if not pushes:
                del self._waiting[position]
        self._came[link].clear()
        return self.resume.answers[link].link_down(event)

    def overdue(self, link: str = "") -> str | None:
        """Return the topic of a publish that an MQTT broker has not confirmed in its time, None without one."""
        command = self._core.links[link].overdue(time.time_ns() // 1000)
        return self.resume.answers[link].overdue(time.monotonic()) if command is None else command.mqtt_topic

    def _write_dead_letter(self, action: DeadLetter) -> None:
        message = self._pulled.get(action.position) or self._messages[action.position]
        payload, properties = dead_letter(
            message.payload,
            topic=self._log.commands,
            device=action.device,
            reason=action.reason,
            at_us=time.time_ns() // 1000,
            properties=message.properties,
        )
        self._log.write_dead_letter(action.device, payload, properties, action)

    def _publish(self, push: Push, payload: bytes) -> None:
        command, link = push.command, self._links[push.link]
        topic, properties = outgoing(
            push,
            self._settings.push,
            self._tags,
            self._log.partition,
            int(time.time()),
            several=self._core.links.several,
        )
        qos = max(1, command.qos)  # PUBACK is what moves the cursor
        why = misfit(link.granted, topic, len(payload), qos, retain=command.retain, properties=properties)
        if why is None:
            try:
                link.publish(
                    topic,
                    payload,
                    qos=qos,
                    retain=command.retain,
                    properties=properties,
                    confirmed=partial(self._confirmed, push, topic),
                    sent=partial(self._sent, push),
                )
            except ValueError as e:  # of a command that an earlier release took
                why = str(e)
        if why is not None:
            log.warning(
                "a command is not for this MQTT broker; see the dead letters",
                command_id=command.command_id[:_SHOWN],
                mqtt_topic=topic[:_SHOWN],
                why=why,
            )
            self._core.delivery.reject(push.number, why)
            link.wake()  # what follows of it is done in the next turn
            return
        self._metrics.pushed(self._log.partition, link.settings, len(payload))
        if push.repeat:
            self._metrics.counters["repeated"].inc()
        reach("after_publish")

    def _sent(self, push: Push) -> None:
        self._core.links[push.link].sent(push.number, time.time_ns() // 1000)

    def _confirmed(self, push: Push, topic: str, reason: int) -> None:
        self.trace(Confirmed(push.position, reason))
        if reason == NOT_AUTHORIZED:
            link = self._links[push.link]
            log.warning(
                "the MQTT broker does not let us publish commands, they are tried again: allow "
                f"{subscriber(link.settings, link.client_id)} to write there",
                mqtt_topic=topic,
                partition=self._log.partition,
                shown=1,
            )
        if reason >= 0x80 or reason == NO_SUBSCRIBERS:
            self._metrics.counters["refused"].inc()
        else:
            reach("after_puback")
        self._core.confirmed(push.number, reason, time.time_ns() // 1000)
        self._hand_on()
