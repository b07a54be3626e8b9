"""Settings of the ingest tier: routes and limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from bridge.routing.sharding import Shard
from bridge.settings.base import COMMON, Section, checked_by
from bridge.settings.links import LinkSettings
from bridge.settings.presets import load_preset, preset_names
from bridge.settings.rules import DeviceFilter, TopicRule
from bridge.settings.units import Duration, Size

__all__ = ["IngestLimits", "IngestSettings", "TopicRule"]


class IngestLimits(Section):
    """The limits of ingest: messages in flight, their sizes, and topics that devices name."""

    in_flight: int = Field(1000, ge=1, le=32767)
    """Maximum number of unacknowledged messages from MQTT."""
    in_flight_size: Size = Field(Size("64MiB"), ge=1024 * 1024)
    """Maximum size of messages that are not yet stored in Pulsar."""
    message_size: Size = Field(Size("5MiB"), ge=128 * 1024)
    """Pulsar's maxMessageSize; larger messages are dead letters."""
    dead_letter_size: Size = Field(Size("32MiB"), ge=64 * 1024)
    """Payloads that Pulsar does not accept are kept as dead letters, in chunks, up to this size; of larger ones only
    the head is kept, and they count as lost."""
    topics: int = Field(1000, ge=1)
    """Maximum number of Pulsar topics that devices may name by one route, and as many for messages without a route;
    beyond it: dead letters."""
    topics_per_device: int = Field(100, ge=1)
    """Maximum number of these topics that one device may name, if the MQTT topic contains the device."""
    topic_idle: Duration = Field(Duration("1d"), gt=0)
    """A Pulsar topic without messages for one to two times this does not count towards both; it stays in Pulsar."""
    producers: int = Field(2000, ge=1)
    """Maximum number of open producers of a link, one for each written partition; beyond it those without a message for
    5 seconds are closed, the longest idle first."""
    producer_idle: Duration = Field(Duration("10m"), gt=0)
    """The producer of a partition without messages is closed after this; the next message opens another."""


class IngestSettings(Section):
    """The sources in MQTT, the targets in Pulsar, and the limits of ingest."""

    links: tuple[LinkSettings, ...] = Field((), json_schema_extra=COMMON)
    """MQTT brokers that ingest reads from and push serves, each with its differences from the section mqtt; default: only
    that one."""
    routes: tuple[TopicRule, ...] = Field((), json_schema_extra=COMMON)
    """Routes of MQTT topics to Pulsar topics, in order."""
    presets: tuple[str, ...] = Field((), json_schema_extra=COMMON)
    """Names of ready-made routes that apply after ingest.routes: zigbee2mqtt, tasmota, homie, homie4, chirpstack,
    thethingsstack, sparkplug. A route in ingest.routes replaces a ready-made one of the same name."""
    filters: tuple[str, ...] = ()
    """MQTT filters to subscribe to; default: the routes' own filters, without routes ``#``."""
    shard: Annotated[str, checked_by(Shard.parse)] | None = None
    """Number of this worker among several, as I/N from 0 on; with host/N, I is the number at the end of the host's
    name. Groups of filters without a common device are distributed to the workers, each with its own session. auto: all
    workers that run share the sessions evenly by themselves, so their number may change while they run."""
    share: str | None = Field(None, pattern=r"^[^/+#\s]+$")
    """Group of a shared subscription ($share). The broker sends each message to any worker of the group, so the order
    per device is lost. It sends no retained messages."""
    qos: Literal[0, 1] = 1
    """QoS of the subscriptions, 0 or 1; at 1 a message published at QoS 2 arrives at least once, never less."""
    limits: IngestLimits = Field(default_factory=IngestLimits)
    retained: Literal["keep", "mark", "skip"] = "mark"
    """Messages that the broker sends because of a subscription: keep them like any other, mark them in the envelope, or
    skip them."""
    allow_loopback: bool = False
    """Accept filters that match a command topic (commands are still left out)."""
    status_interval: Duration = Field(Duration("15s"), gt=0)
    """Time between two records of this process for `pulsebridge status`; after four times that without a record it
    counts as ended."""
    presence_interval: Duration = Field(Duration("30s"), ge=0)
    """Time between two records of a publishing device in Pulsar; ingest records the first message after a silence at
    once. Push wakes parked devices by these records. 0: never."""
    resume_topic: DeviceFilter | None = "pulsebridge/resume/+device"
    """MQTT filter that captures the device. Devices publish the position of their last command on it, and push sends
    them the commands after it. Each installation at a broker needs its own filter. null: no resume."""
    drain: Duration = Field(Duration("20s"), gt=0)
    """Maximum time of a clean stop for Pulsar's receipts."""
    stall_warning: Duration = Field(Duration("10s"), gt=0)
    """Age of the oldest unacknowledged message that gives a WARNING."""
    silence_warning: Duration = Field(Duration("5m"), ge=0)
    """If a link gets no message for this long after its subscription, a WARNING names possible causes at the broker; 0:
    never."""
    on_blocked: Literal["wait", "deadletter"] = "wait"
    """What happens to messages of a topic that accepts none while Pulsar accepts others, for example over its quota.
    wait: the whole link waits; deadletter: the messages go to the dead letters until a replay."""
    blocked_after: Duration = Field(Duration("60s"), gt=0)
    """A topic that accepts no message for this long counts as blocked."""

    @field_validator("qos", mode="before")
    @classmethod
    def _safe(cls, value: object) -> object:
        if str(value) == "2":
            raise ValueError("should be 0 or 1 (at 1, messages that were published at QoS 2 arrive at least once)")
        return value

    @field_validator("presets")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in preset_names():
                raise ValueError(f"unknown preset {name!r}; known: {', '.join(preset_names())}")
        return tuple(dict.fromkeys(names))

    @property
    def all_routes(self) -> tuple[TopicRule, ...]:
        """The routes in force, in order: ``routes``, then those of the presets that none of them replaces."""
        names = {route.name for route in self.routes}
        ready = [route for name in self.presets for route in load_preset(name).routes]
        return (*self.routes, *(route for route in ready if route.name not in names))

    def preset_of(self, route: str) -> str | None:
        """Return the preset of a route in force, None for a route of ``routes``."""
        if any(one.name == route for one in self.routes):
            return None
        return next((n for n in self.presets if any(r.name == route for r in load_preset(n).routes)), None)
