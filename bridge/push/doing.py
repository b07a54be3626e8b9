"""Does what the core of a partition decided, over MQTT and in Pulsar, and keeps the messages that it is about.

It decides nothing; all of it runs on the session's thread, and what follows of an action comes back as an event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import structlog

from bridge.contract import C_DEVICE, C_ID, C_TOPIC
from bridge.contract.commands import MAX_TEXT_BYTES, CommandPosition, decode_command, read_command
from bridge.contract.names import MAX_NAME_BYTES
from bridge.dead_letters import dead_letter
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.fitting import misfit
from bridge.mqtt.refusals import NOT_AUTHORIZED, subscriber
from bridge.mqtt.types import Confirmation, Disconnected
from bridge.push.actions import (
    Ack,
    Action,
    Copy,
    DeadLetter,
    Forget,
    Pull,
    Push,
    StoreCursor,
    StoreReceipt,
    StoreSegment,
)
from bridge.push.answers import Answer
from bridge.push.core import NO_SUBSCRIBERS
from bridge.push.gate import Gate
from bridge.push.groups.indexed import GONE, Indexed, Lost
from bridge.push.metrics import PushMetrics
from bridge.push.outgoing import check_topic, outgoing
from bridge.push.partition_log import PartitionLog
from bridge.push.position_tags import PositionTags
from bridge.push.pulling import Copied, Pulled
from bridge.push.resume import ResumingCore
from bridge.push.resuming import Resuming
from bridge.push.taken import Taken
from bridge.settings import Settings

__all__ = ["Doing"]

log = structlog.get_logger("push")

_DENIED_EVERY_S: Final = 60.0
_SHOWN: Final = 200


class Doing:
    """The hands of one core."""

    def __init__(
        self,
        settings: Settings,
        core: ResumingCore,
        link: Link,
        partition_log: PartitionLog,
        gate: Gate,
        metrics: PushMetrics,
        ask: Callable[[CommandPosition], bytes | None],
        tags: PositionTags,
    ) -> None:
        """``ask`` returns the payload of a group command, or None and brings it to ``payload_came``."""
        self._tags = tags
        self._settings = settings
        self._indexed = Indexed(ask)
        self._came: deque[Iterator[Push | Lost]] = deque()  # what waits no more but for room in the window
        self._core = core
        self._link = link
        self._log = partition_log
        self._gate = gate
        self._metrics = metrics
        self._messages: dict[CommandPosition, Taken] = {}  # taken and not acknowledged: held, or about to be let go
        self._pulled: dict[CommandPosition, Taken] = {}  # was parked, and is not settled
        self._denied_at = -_DENIED_EVERY_S
        self.resuming = Resuming(settings, core, link, partition_log, metrics, tags)

    def arrived(self, message: Taken) -> None:
        """Hand a message of the commands partition to the core."""
        core = self._core
        position = message.position
        before = self._messages.get(position)
        self._messages[position] = message
        if before is not None:
            # It came again after a reconnect, and the core holds it or has decided on its acknowledgement already: that
            # must go through the newest id, which alone counts a batch, and once.
            self._gate.gave(len(before.payload))
            return
        properties = message.properties
        try:
            if message.problem:
                raise ContractError(message.problem)
            command = decode_command(properties, message.payload, self._settings.max_name_bytes)
            check_topic(command, self._settings.push)
        except ContractError as e:
            log.warning("a command is not valid; see the dead letters", position=str(position), why=str(e))
            core.arrived_bad(
                position,
                str(e),
                # Its receipt is to fit into a message of Pulsar, whatever is wrong with it.
                command_id=properties.get(C_ID, "")[:MAX_NAME_BYTES],
                device=properties.get(C_DEVICE, message.key)[:MAX_NAME_BYTES],
                mqtt_topic=properties.get(C_TOPIC, "")[:MAX_TEXT_BYTES],
                size=len(message.payload),
            )
            return
        core.arrived(position, command, time.time_ns() // 1000)

    def pulled(self, event: Pulled) -> None:
        """Hand a parked command, read again, to the core."""
        command = None
        if event.message is not None:
            self._forget(event.position)
            self._pulled[event.position] = event.message
            command = read_command(event.message.properties, event.message.payload)
        elif self._core.wants(event.pull.device, event.pull.round):
            log.error(
                "a parked command is not in Pulsar any more, see its receipt: let nobody clear the backlog of "
                "pulsebridge-parked",
                device=event.pull.device,
                position=str(event.position),
            )
        reach("after_pull")
        now_us = time.time_ns() // 1000
        self._core.pulled(event.pull.device, event.pull.round, event.position, command, now_us)

    def copied(self, event: Copied) -> None:
        """Tell the core of commands that were to be moved."""
        reach("after_copy")
        if event.places is None:
            self._core.copy_failed(event.move)
        else:
            self._core.copied(event.move, event.places, time.time_ns() // 1000)

    def answered(self, answer: Answer) -> bool:
        """Hand a device's answer to the core. Returns whether it was to a command that waited for one."""
        device = self._core.device_of(answer.position)
        if device is not None and not self._tags.proves(answer.tag, answer.position, device):
            self._metrics.forged_answers.inc()
            log.warning(
                "push ignored an answer whose position has a wrong tag: its sender did not receive the command. Action: "
                "see which client publishes to push.answers.topic, and that the device gives the position back whole",
                partition=self._log.partition,
                device=device[:_SHOWN],
                position=str(answer.position),
                shown=1,
            )
            return False
        now_us = time.time_ns() // 1000
        return self._core.answered(answer.position, answer.payload, now_us, failed=answer.failed)

    def stored(self, token: object) -> None:
        """Tell the core that Pulsar has stored what was written for an action of its own."""
        core = self._core
        if isinstance(token, StoreCursor):
            reach("after_cursor")
            core.cursor_stored(token.device)
        elif isinstance(token, StoreSegment):
            reach("after_segment")
            core.segment_stored(token.parked)
            if token.move:
                reach("after_move")
                core.move_stored(token.move)
        elif isinstance(token, StoreReceipt):
            reach("after_receipt")
            self._metrics.stored(token.receipt)
            core.receipt_stored(token.position)
        elif isinstance(token, DeadLetter):
            self._metrics.dead_letters.inc()
            core.dead_letter_stored(token.position)

    def do(self, action: Action) -> None:
        """Begin one action."""
        if isinstance(action, Push):
            self._push(action)
        elif isinstance(action, StoreCursor):
            self._log.write_cursor(action.records, action)
        elif isinstance(action, StoreReceipt):
            self._log.write_receipt(action.receipt.device, action.receipt.encode(), action)
        elif isinstance(action, DeadLetter):
            self._write_dead_letter(action)
        elif isinstance(action, Ack):
            message = self._messages.pop(action.position)
            self._log.acknowledge(message.message_id)
            self._gate.gave(len(message.payload))
            reach("after_ack")
        elif isinstance(action, StoreSegment):
            self._log.write_record(action.key, action.payload, action)
        elif isinstance(action, Pull):
            self._log.puller.pull(action)
        elif isinstance(action, Copy):
            self._log.puller.copy(action)
        elif isinstance(action, Forget):
            self._forget(action.position)
        else:
            self.resuming.do(action)

    def _forget(self, position: CommandPosition) -> None:
        message = self._pulled.pop(position, None)
        if message is not None:
            self._log.puller.gave(len(message.payload))

    def payload_came(self, position: CommandPosition, payload: bytes | None) -> None:
        """Make the pushes that waited for the payload of a group command; without one they are lost."""
        self._came.append(self._indexed.came(position, payload))
        self._hand_on()

    def _push(self, push: Push) -> None:
        ready = list(self._indexed.add(push))
        for one in ready:
            self._publish(one)
        if not ready:
            self._core.stalls(push.number)
            self._link.wake()  # another device's command may go in its place
        self._hand_on()

    def _hand_on(self) -> None:
        """Make the pushes whose payload came, as far as the window has room: thousands may have waited for one."""
        while self._came and self._core.has_room:
            one = next(self._came[0], None)
            if one is None:
                self._came.popleft()
            elif isinstance(one, Lost):
                self._core.lost(one.number, GONE)
                self._link.wake()
            elif self._core.goes(one.number, time.time_ns() // 1000):
                self._publish(one)
            else:
                self._link.wake()

    def link_down(self, event: Disconnected) -> bool:
        """Forget the pushes of the connection that ended. Returns whether it may have ended for a command."""
        self._indexed.forget()
        self._came.clear()
        return self.resuming.link_down(event)

    def overdue(self) -> str | None:
        """Return the topic of a publish that the MQTT broker has not confirmed in its time, None without one."""
        command = self._core.overdue(time.time_ns() // 1000)
        return self.resuming.overdue(time.monotonic()) if command is None else command.mqtt_topic

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

    def _publish(self, push: Push) -> None:
        command = push.command
        made = outgoing(push, self._settings.push, self._tags, self._log.partition, int(time.time()))
        qos = max(1, command.qos)  # PUBACK is what moves the cursor
        size = len(command.payload)
        broker, properties = self._link.granted, made.properties
        why = misfit(broker, made.topic, size, qos, retain=command.retain, properties=properties)
        if why is None:
            try:
                self._link.publish(
                    made.topic,
                    command.payload,
                    qos=qos,
                    retain=command.retain,
                    properties=properties,
                    confirmed=partial(self._confirmed, push.number, made.topic),
                    sent=partial(self._sent, push.number),
                )
            except ValueError as e:  # of a command that an earlier release took
                why = str(e)
        if why is not None:
            log.warning(
                "a command is not for this MQTT broker; see the dead letters",
                command_id=command.command_id[:_SHOWN],
                mqtt_topic=made.topic[:_SHOWN],
                why=why,
            )
            self._core.unfit(push.number, why)
            self._link.wake()  # what follows of it is done in the next turn
            return
        self._metrics.pushed.inc()
        if push.repeat:
            self._metrics.repeated.inc()
        reach("after_publish")

    def _sent(self, number: int) -> None:
        self._core.sent(number, time.time_ns() // 1000)

    def _confirmed(self, number: int, topic: str, confirmation: Confirmation) -> None:
        now = time.monotonic()
        if confirmation.reason == NOT_AUTHORIZED and now - self._denied_at > _DENIED_EVERY_S:
            self._denied_at = now
            log.warning(
                "the MQTT broker does not let us publish commands, they are tried again: allow "
                f"{subscriber(self._settings.mqtt, self._link.client_id)} to write there",
                mqtt_topic=topic,
                partition=self._log.partition,
            )
        if confirmation.reason >= 0x80 or confirmation.reason == NO_SUBSCRIBERS:
            self._metrics.refused.inc()
        else:
            reach("after_puback")
        self.resuming.command_confirmed(number)
        self._core.confirmed(number, confirmation.reason, time.time_ns() // 1000)
        self._hand_on()
