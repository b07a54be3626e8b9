"""Every setting of Pulsebridge in one typed model, a section for each tier.

``Settings()`` holds the defaults alone; ``bridge.settings.loading`` adds file, environment and flags.
"""

from __future__ import annotations

from pydantic import Field

from bridge.settings.base import Section
from bridge.settings.ingest import IngestSettings
from bridge.settings.local import LocalSettings
from bridge.settings.log import LogSettings
from bridge.settings.metrics import MetricsSettings
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.push import PushSettings
from bridge.settings.rules import TopicRule
from bridge.settings.streaming import StreamingSettings

__all__ = [
    "IngestSettings",
    "LocalSettings",
    "LogSettings",
    "MetricsSettings",
    "MqttSettings",
    "PulsarSettings",
    "PushSettings",
    "Settings",
    "StreamingSettings",
    "TopicRule",
]


class Settings(Section):
    """All settings. Environment: ``PULSEBRIDGE_`` and the path with ``__`` (``PULSEBRIDGE_MQTT__HOST``)."""

    mqtt: MqttSettings = Field(default_factory=MqttSettings, description="The connection to the MQTT broker.")
    pulsar: PulsarSettings = Field(default_factory=PulsarSettings, description="The connection to Pulsar.")
    ingest: IngestSettings = Field(default_factory=IngestSettings, description="MQTT into Pulsar.")
    push: PushSettings = Field(
        default_factory=PushSettings, description="Commands from Pulsar to the devices."
    )
    streaming: StreamingSettings = Field(default_factory=StreamingSettings, description="The Spark jobs.")
    local: LocalSettings = Field(default_factory=LocalSettings, description="The local servers.")
    metrics: MetricsSettings = Field(default_factory=MetricsSettings, description="Prometheus metrics.")
    log: LogSettings = Field(default_factory=LogSettings, description="The log on stdout.")
