"""The root of the settings' model, with a section for each tier."""

from __future__ import annotations

from pydantic import Field, ValidationError, field_validator, model_validator

from bridge.contract.names import DEFAULT_MAX_NAME_BYTES, MAX_NAME_BYTES, name_problem
from bridge.routing.patterns import Star, meet
from bridge.routing.templates import Filter
from bridge.settings.base import COMMON, Section
from bridge.settings.fetch import FetchSettings, status_of
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.links import mqtt_of
from bridge.settings.local import LocalSettings
from bridge.settings.log import LogSettings
from bridge.settings.metrics import MetricsSettings
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.push import PushSettings
from bridge.settings.streaming import StreamingSettings
from bridge.settings.ui import UiSettings

__all__ = ["Settings"]


class Settings(Section):
    """All settings. Environment: ``PULSEBRIDGE_`` and the path with ``__`` (``PULSEBRIDGE_MQTT__HOST``)."""

    messaging_protocols: tuple[str, ...] = Field(("mqtt",), json_schema_extra=COMMON)
    """Protocol handlers that ingest runs, by name; also as text with commas."""
    max_name_bytes: int = Field(DEFAULT_MAX_NAME_BYTES, ge=16, le=MAX_NAME_BYTES)
    """Maximum length of the name of a device, key, group, client or metric, in bytes of UTF-8; a message with a longer
    one goes to the dead letters, a reading with a longer metric to quarantine."""
    mqtt: MqttSettings = Field(default_factory=MqttSettings)
    pulsar: PulsarSettings = Field(default_factory=PulsarSettings)
    ingest: IngestSettings = Field(default_factory=IngestSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    push: PushSettings = Field(default_factory=PushSettings)
    streaming: StreamingSettings = Field(default_factory=StreamingSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    ui: UiSettings = Field(default_factory=UiSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @field_validator("messaging_protocols", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(p.strip() for p in value.split(",") if p.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _distinct(self) -> Settings:
        if not self.messaging_protocols:
            raise ValueError("messaging_protocols names no protocol: ingest would do nothing")
        if len(set(self.messaging_protocols)) < len(self.messaging_protocols):
            raise ValueError("messaging_protocols names a protocol twice")
        links = self.links()
        if len(links) < len(self.ingest.links):
            raise ValueError("ingest.links: two links have the same name")
        sessions: dict[tuple[str, int, str], str] = {}
        for name, mqtt in links.items():
            other = sessions.setdefault((mqtt.host.lower(), mqtt.port, mqtt.client_id), name)
            if other != name:  # they would disconnect each other for ever (H10)
                raise ValueError(
                    f"ingest.links: {other} and {name} have the same client_id {mqtt.client_id!r} at the same "
                    "broker, so each would take over the other's session: give one another client_id"
                )
        return self

    @model_validator(mode="after")
    def _named(self) -> Settings:
        names = [("push.client_id", self.push.client_id)]
        for link, mqtt in self.links().items():
            names += [(f"{link}: client_id", mqtt.client_id)]
            names += [(f"{link}: former_client_ids", former) for former in mqtt.former_client_ids]
        for group in self.push.groups.declared:
            names += [(f"push.groups.declared: {group.name[:40]}", name) for name in (group.name, *group.devices)]
        found = [(where, name_problem(name, self.max_name_bytes)) for where, name in names]
        problems = [f"{where} {why}" for where, why in found if why is not None]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _answerable(self) -> Settings:
        if self.push.confirm != "device" or self.push.position_in != "properties":
            return self
        for link, mqtt in self.links().items():
            if mqtt.protocol != "5":
                at = f" at link {link}" if self.ingest.links else ""
                raise ValueError(
                    f"push.confirm: device cannot work over MQTT {mqtt.protocol}{at}, because its commands have no "
                    "response topic: set mqtt.protocol: 5, or push.position_in: topic"
                )
        return self

    @model_validator(mode="after")
    def _presence_in_time(self) -> Settings:
        silence, interval = self.push.presence.silence, self.ingest.presence_interval
        if 0 < silence < 2 * interval:
            raise ValueError(
                f"push.presence.silence {silence.text}: ingest records a publishing device every {interval.text} "
                "(ingest.presence_interval), so it would count as offline in between: set at least twice that"
            )
        return self

    @model_validator(mode="after")
    def _resumable(self) -> Settings:
        resume_topic = self.ingest.resume_topic
        if resume_topic is None:
            return self
        filters = Filter.parse(resume_topic).patterns
        topics = {"resume.answer_topic": self.push.resume.answer_topic, "answers.topic": self.push.answers.topic}
        for name, topic in topics.items():
            if any(meet(one, (f"{topic}/", Star.REST)) for one in filters):
                raise ValueError(
                    f"ingest.resume_topic {resume_topic!r} matches topics below push.{name} {topic!r}, so push would "
                    "confuse them: give separate topics"
                )
        return self

    @model_validator(mode="after")
    def _fetchable(self) -> Settings:
        if not self.http.commands.topics:
            return self
        problem = self.fetch_problem(self.http.commands)
        if problem is not None:
            raise ValueError(f"http.commands{problem}")
        return self

    def fetch_problem(self, fetch: FetchSettings) -> str | None:
        """Return why devices cannot fetch commands with these settings of theirs, None if they can."""
        links = self.links()
        if fetch.link is not None and fetch.link not in links:
            return f".link: no link is named {fetch.link!r}: give one of {', '.join(links)}"
        if status_of(self.push.presence.rules, "d") is None:
            return (
                " needs a rule in push.presence.rules by which push learns which devices fetch, with the device as the "
                "only wildcard, for example [{filter: devices/+device/status}]"
            )
        mqtt = self.fetch_mqtt(fetch)
        if mqtt.protocol != "5" and self.push.position_in == "properties":
            return (
                f" cannot work over MQTT {mqtt.protocol}, because its commands have no position: set mqtt.protocol: 5, "
                "or push.position_in: topic"
            )
        names = [self.push.client_id, *(one.client_id for one in links.values())]
        for name in names:  # a device would take over the session of that name
            if name.startswith(f"{fetch.client_id}-"):
                return f".client_id {fetch.client_id!r} begins the client id {name!r} of Pulsebridge: give another one"
        return None

    def fetch_mqtt(self, fetch: FetchSettings) -> MqttSettings:
        """Return the broker at which the devices are that fetch commands."""
        links = self.links()
        return next(iter(links.values())) if fetch.link is None else links[fetch.link]

    def links(self) -> dict[str, MqttSettings]:
        """Return the MQTT links of ingest by name, with complete settings: those listed, else only ``mqtt``."""
        if not self.ingest.links:
            return {"mqtt": self.mqtt}
        found: dict[str, MqttSettings] = {}
        for link in self.ingest.links:
            try:
                found[link.name] = mqtt_of(link, self.mqtt)
            except ValidationError as e:
                raise ValueError(
                    f"ingest.links: {link.name}: {e.errors()[0]['msg'].removeprefix('Value error, ')}"
                ) from e
        return found
