"""What push hears of the devices on one MQTT connection: answers to its commands, and who is there.

It subscribes, reads what comes, and hands it to the core. What came before there was a core waits for it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

import structlog

from bridge.bounded_map import BoundedMap
from bridge.contract import ORIGIN_PROPERTY, ORIGIN_PUSH
from bridge.errors import DeniedError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import subscriber, subscription_remedy
from bridge.mqtt.types import Confirmation, Message, PublishProperties, Subscription
from bridge.push.answers import Answer, answer_filter, parse_answer
from bridge.push.core import NO_SUBSCRIBERS
from bridge.push.metrics import PushMetrics
from bridge.push.partition_log import PartitionLog
from bridge.push.presence import PresenceRules
from bridge.push.presence_log import Seen
from bridge.push.resume import ResumingCore
from bridge.settings import Settings

__all__ = ["Hearing"]

log = structlog.get_logger("push")

_REFUSED: Final = 0x80
_SHOWN: Final = 200
_SIGNS_BYTES: Final = 64 * 1024 * 1024
"""Signs of devices that come before the partition is taken over; devices name themselves."""
_SAID: Final[set[tuple[str, int, str, bool | None]]] = set()


def settled_by(confirm: str, *, tells_absence: bool) -> str:
    """Return what ``push.confirm`` means with a broker that tells, or does not tell, that nobody is subscribed. Pure."""
    if confirm == "device":
        return "a command counts as delivered when its device has answered (push.confirm: device)"
    taken = "a command counts as delivered when the MQTT broker has taken it (push.confirm: broker); "
    if tells_absence:
        return taken + "this broker says when nobody is subscribed (0x10), and then the command waits in Pulsar"
    return taken + (
        "this broker takes it as well when nobody is subscribed: what is sent between a device's going and the sign of "
        "that (push.presence.rules, push.presence.silence) is sent again only if the sign comes within "
        "push.offline.resend_confirmed; "
        "push.confirm: device promises delivery, where devices answer"
    )


class Hearing:
    """The ears of one session; all methods on its thread."""

    def __init__(
        self,
        settings: Settings,
        partition_log: PartitionLog,
        link: Link,
        metrics: PushMetrics,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when ``ready`` or ``tells_absence`` did."""
        self._settings = settings
        self._log = partition_log
        self._link = link
        self._metrics = metrics
        self._changed = changed
        self._presence = PresenceRules(settings.push.presence.rules)
        self._filters = list(self._presence.filters)
        if settings.push.confirm == "device":
            self._filters.append(answer_filter(settings.push.answers.topic, partition_log.partition))
        self._core: ResumingCore | None = None
        self._answered: Callable[[Answer], bool] = lambda _answer: False
        # By device the latest sign, whether it is one of life, and when it came.
        self._signs: BoundedMap[tuple[bool, int]] = BoundedMap(_SIGNS_BYTES, each=192)
        self._mids: list[int] = []  # to acknowledge
        self.ready = False
        """Whether what devices say would reach us on this connection."""
        self.tells_absence = False
        """Whether the MQTT broker says that nobody is subscribed to a topic (MQTT 5, PUBACK 0x10)."""

    def serve(self, core: ResumingCore, answered: Callable[[Answer], bool]) -> None:
        """Hand on what comes to ``core``, and what came already. ``answered`` takes the answers, and returns whether
        their commands waited for one.
        """
        self._core = core
        self._answered = answered
        self._notice(core)

    def connected(self) -> None:
        """Subscribe on a new connection, and ask whether its broker tells absence."""
        self._mids.clear()
        self.ready = not self._filters
        self.tells_absence = False
        if self._filters:
            self._link.subscribe(
                [Subscription(one, retain_handling=0 if one in self._presence.filters else 2) for one in self._filters]
            )
        if self._settings.mqtt.protocol == "5":
            # Whether PUBACK tells that nobody is subscribed: ask by a topic that nobody can know (MQTT 5, 3.4.2.1).
            self._link.publish(
                f"{self._settings.push.answers.topic}/nobody/{uuid.uuid4().hex}",
                b"",
                properties=PublishProperties(user=((ORIGIN_PROPERTY, ORIGIN_PUSH),)),
                confirmed=self._told,
            )
        else:
            self._say()

    def _say(self) -> None:
        """Say once in this process, and again when it changes, what settles a command at this broker (H26)."""
        mqtt, confirm = self._settings.mqtt, self._settings.push.confirm
        key = (mqtt.host, mqtt.port, confirm, self.tells_absence)
        if key not in _SAID:
            _SAID.difference_update([one for one in _SAID if one[:3] == key[:3]])
            _SAID.add(key)
            log.info(settled_by(confirm, tells_absence=self.tells_absence), broker=f"{mqtt.host}:{mqtt.port}")

    def _told(self, confirmation: Confirmation) -> None:
        refused = confirmation.reason >= _REFUSED
        self.tells_absence = confirmation.reason == NO_SUBSCRIBERS
        if self._core is not None:
            # It is no evidence that the broker takes other commands (H34): it comes first on each connection.
            # Refused, the question has no answer, and devices that are parked would be tried no more: a command was told.
            self.tells_absence = self.tells_absence or (refused and self._core.told_absence)
        if refused:
            self._warn_unasked(confirmation.reason)
        else:
            self._say()
        self._changed()

    def _warn_unasked(self, reason: int) -> None:
        """Say once in this process, and again when it was otherwise, that the broker does not let us ask."""
        mqtt, confirm = self._settings.mqtt, self._settings.push.confirm
        key = (mqtt.host, mqtt.port, confirm, None)
        if key not in _SAID:
            _SAID.difference_update([one for one in _SAID if one[:3] == key[:3]])
            _SAID.add(key)
            log.warning(
                "the MQTT broker does not let us ask whether it tells when nobody is subscribed, and until it says so of a "
                "command, parked devices wait for a sign of life: allow "
                f"{subscriber(mqtt, self._link.client_id)} to write there",
                mqtt_topic=f"{self._settings.push.answers.topic}/nobody/+",
                reason=f"0x{reason:02X}",
            )

    def subscribed(self, codes: list[int]) -> None:
        """Take the answer to the subscriptions. Raises DeniedError when one of them may not be read."""
        if any(code >= _REFUSED for code in codes):
            raise DeniedError(
                f"the MQTT broker refused subscriptions of push, SUBACK codes {codes}: {', '.join(self._filters)}",
                remedy=subscription_remedy(self._settings.mqtt, self._link.client_id),
            )
        self.ready = True
        self._changed()

    def heard(self, message: Message) -> None:
        """Take a message of a device. An answer that is lost with us or with the connection is given again, to the
        repetition of its command.
        """
        if message.mid:
            self._mids.append(message.mid)
        if message.malformed:
            self._metrics.malformed.inc()
            log.warning(
                "a device's message is malformed and was skipped; check what the device publishes",
                mqtt_topic=message.topic[:_SHOWN],
                partition=self._log.partition,
                why=message.malformed,
                shown=1,
            )
            return
        sign = self._presence.sign(message)
        if sign is not None:
            self._signs.put(sign.device, (sign.alive, time.time_ns() // 1000))
            if self._core is not None:
                self._notice(self._core)
            return
        answer = parse_answer(message, self._settings.push.answers.topic, self._log.partition)
        if answer is not None and self._answered(answer):
            reach("after_answer")
            self._metrics.answers.inc()
        else:
            self._metrics.stray_answers.inc()

    def seen(self, event: Seen) -> None:
        """Take what ingest has heard. A clock that is ahead of ours must not outlast a later absence (H31)."""
        now_us = time.time_ns() // 1000
        if self._core is not None:
            for device, at_us in event.signs:
                self._core.alive(device, min(at_us, now_us))

    def acknowledge(self) -> None:
        """Confirm to the broker what was heard."""
        if self._mids:
            self._link.acknowledge(self._mids, self._link.epoch)
            self._mids.clear()

    def _notice(self, core: ResumingCore) -> None:
        signs = list(self._signs.items())
        self._signs.clear()
        for device, (alive, at_us) in signs:
            if not self._log.is_ours(device):
                continue
            if alive:
                core.alive(device, at_us)
            else:
                core.gone(device, at_us, time.time_ns() // 1000)
