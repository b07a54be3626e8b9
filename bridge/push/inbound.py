"""Inbound messages of one MQTT connection: answers of devices to commands, and their signs of life and absence.

Signs that come before the takeover has ended wait for the core.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from bridge.bounded_map import BoundedMap
from bridge.contract import ORIGIN_PROPERTY, ORIGIN_PUSH
from bridge.errors import DeniedError
from bridge.killpoints import reach
from bridge.mqtt.client import Link
from bridge.mqtt.presence import PresenceRules
from bridge.mqtt.refusals import subscriber, subscription_remedy
from bridge.mqtt.types import Message, PublishProperties, Subscription
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.device_protocol import DeviceAnswer, answer_filters, parse_answer
from bridge.push.metrics import PushMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import PartitionLog
from bridge.settings import Settings

__all__ = ["Inbound", "push_filters"]

log = structlog.get_logger("push")

_REFUSED: Final = 0x80
_SHOWN: Final = 200
_SIGNS_BYTES: Final = 64 * 1024 * 1024  # signs of devices that come before the takeover; devices name themselves
_LOGGED: Final[dict[tuple[str, int, str], bool | str]] = {}
"""By broker and ``push.confirm`` what was logged last of its answers."""


def push_filters(settings: Settings, partition: int) -> list[str]:
    """Return what a partition subscribes to at each MQTT broker."""
    push = settings.push
    filters = list(PresenceRules(push.presence.rules).filters)
    if push.confirm == "device":
        filters += answer_filters(push.answers.topic, partition, settings.pulsar.command_generation)
    return filters


def settled_by(confirm: str, *, reports_absence: bool) -> str:
    """Return what ``push.confirm`` means at a broker that reports, or does not report, that a topic has no subscriber."""
    if confirm == "device":
        return "a command counts as delivered when its device has answered (push.confirm: device)"
    accepted = "a command counts as delivered when the MQTT broker has accepted it (push.confirm: broker); "
    if reports_absence:
        return (
            accepted + "this broker reports that no client is subscribed (0x10), and then the command waits in Pulsar"
        )
    return accepted + (
        "this broker accepts it as well when no client is subscribed: what is sent between a device's end and the sign of "
        "that (push.presence.rules, push.presence.silence) is sent again only if the sign comes within push.offline.resend_confirmed; "
        "push.confirm: device promises delivery, where devices answer"
    )


@dataclass(eq=False)
class Inbound:
    """The subscriptions of one session; all methods are called on its thread."""

    _settings: Settings
    _log: PartitionLog
    _link: Link
    _metrics: PushMetrics
    _changed: Callable[[], None]  # called when ``ready`` or ``reports_absence`` did
    _name: str = ""  # that of the broker

    def __post_init__(self) -> None:
        push = self._settings.push
        self._presence = PresenceRules(push.presence.rules)
        self._filters = push_filters(self._settings, self._log.partition)
        self._core: Partition | None = None
        self._answered: Callable[[DeviceAnswer], bool] = lambda _answer: False
        # By device the latest sign: whether it is one of life, when it came, and whether the broker had retained it.
        self._signs: BoundedMap[tuple[bool, int, bool]] = BoundedMap(_SIGNS_BYTES, each=192)
        self._mids: list[int] = []  # to acknowledge
        self.ready = False
        """Whether messages of devices reach us on this connection."""
        self.reports_absence = False
        """Whether the MQTT broker reports that a topic has no subscriber (MQTT 5, PUBACK 0x10)."""

    def serve(self, core: Partition, answered: Callable[[DeviceAnswer], bool]) -> None:
        """Hand signs to ``core``, also earlier ones. ``answered`` gets answers, and returns whether commands waited for them."""
        self._core = core
        self._answered = answered
        self._notice(core)

    def connected(self) -> None:
        """Subscribe on a new connection, and ask whether its broker reports absent subscribers."""
        self._mids.clear()
        self.ready = not self._filters
        self.reports_absence = False
        if self._filters:
            self._link.subscribe([self._subscription(one) for one in self._filters])
        if self._settings.mqtt.protocol == "5":
            # Ask by a topic that no client can know whether PUBACK reports absent subscribers (MQTT 5, 3.4.2.1).
            self._link.publish(
                f"{self._settings.push.answers.topic}/nobody/{uuid.uuid4().hex}",
                b"",
                properties=PublishProperties(user=((ORIGIN_PROPERTY, ORIGIN_PUSH),)),
                confirmed=self._asked,
            )
        else:
            self._log_settlement()

    def _subscription(self, topics: str) -> Subscription:
        """Return that for a filter. What the broker had retained of presence must be seen: it may be old."""
        presence = topics in self._presence.filters
        return Subscription(topics, retain_as_published=not presence, retain_handling=0 if presence else 2)

    def _asked(self, reason: int) -> None:
        refused = reason >= _REFUSED
        self.reports_absence = reason == NO_SUBSCRIBERS
        if self._core is not None:
            # It does not show that the broker accepts other commands (H34): it comes first on each connection.
            # If it is refused, what the broker reported for a command counts: else no parked device would be probed.
            self.reports_absence = self.reports_absence or (refused and self._core.probes.absence_proven(self._name))
        self._log_settlement(refused=reason if refused else 0)
        self._changed()

    def _log_settlement(self, *, refused: int = 0) -> None:
        """Log at each change what settles a command at this broker (H26), or with which reason it refused the question."""
        mqtt, push = self._settings.mqtt, self._settings.push
        about, state = (mqtt.host, mqtt.port, push.confirm), "refused" if refused else self.reports_absence
        if _LOGGED.get(about, "") == state:
            return
        _LOGGED[about] = state
        if not refused:
            settled = settled_by(push.confirm, reports_absence=self.reports_absence)
            log.info(settled, broker=f"{mqtt.host}:{mqtt.port}")
            return
        log.warning(
            "the MQTT broker refused the question whether it reports that no client is subscribed. Until it reports so for a "
            f"command, parked devices wait for a sign of life. Action: allow {subscriber(mqtt, self._link.client_id)} to "
            "write there",
            mqtt_topic=f"{push.answers.topic}/nobody/+",
            reason=f"0x{refused:02X}",
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

    def received(self, message: Message) -> None:
        """A message of a device came. A device repeats an answer that is lost when its command is repeated."""
        if message.mid:
            self._mids.append(message.mid)
        if message.malformed:
            self._metrics.counters["malformed"].inc()
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
            self._signs.put(sign.device, (sign.alive, time.time_ns() // 1000, message.retain))
            if self._core is not None:
                self._notice(self._core)
            return
        settings = self._settings
        answer = parse_answer(
            message, settings.push.answers.topic, self._log.partition, settings.pulsar.command_generation
        )
        if answer is not None and answer.device and not self._log.is_ours(answer.device):
            return  # each partition gets the answers to all broadcasts
        if answer is not None and self._answered(answer):
            reach("after_answer")
            self._metrics.counters["answers"].inc()
        else:
            self._metrics.counters["stray_answers"].inc()

    def acknowledge(self) -> None:
        """Acknowledge the messages to the broker."""
        if self._mids:
            self._link.acknowledge(self._mids, self._link.epoch)
            self._mids.clear()

    def _notice(self, core: Partition) -> None:
        signs = list(self._signs.items())
        self._signs.clear()
        for device, (alive, at_us, retained) in signs:
            if not self._log.is_ours(device):
                continue
            if alive:
                core.alive(device, at_us, self._name, dated=not retained)
            else:
                core.gone(device, at_us, time.time_ns() // 1000, self._name)
