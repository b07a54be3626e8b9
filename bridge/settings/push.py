"""Settings of the push tier: windows, confirmation and expiry of commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["PushSettings"]


class PushSettings(Section):
    """How commands are pulled from Pulsar and pushed to the devices."""

    confirm: Literal["broker", "device"] = Field(
        "broker",
        description="What settles a command: the MQTT broker's PUBACK, or the device's own answer, which alone promises "
        "delivery.",
    )
    answer_topic: str = Field(
        "pulsebridge/answers",
        min_length=1,
        pattern=r"^[^+#\x00]*[^+#/\x00]$",
        description="MQTT topic below which devices answer; each installation at a broker needs its own.",
    )
    answer_timeout_s: float = Field(
        10.0, gt=0, description="How long a device may take to answer before its command fails, in seconds."
    )
    answer_bytes: int = Field(
        4096, ge=0, le=1024 * 1024, description="How much of an answer its receipt keeps, in bytes."
    )
    attempts: int = Field(
        0,
        ge=0,
        description="A command that was refused or not answered this often goes to the dead letters, and the next one has "
        "its turn; 0: it is sent again without end.",
    )
    position_in: Literal["properties", "topic"] = Field(
        "properties",
        description="Where a command says its position: user properties (MQTT 5), or, for devices that cannot read those, "
        "also five levels behind its topic: <mqtt_topic>/0/3/7/1/-1, and /repeat behind a repeated one.",
    )
    window: int = Field(
        256, ge=1, le=32767, description="Commands pushed and not yet confirmed, per partition."
    )
    device_window: int = Field(
        1,
        ge=1,
        le=64,
        description="Commands pushed beyond the stored cursor, per device; above 1 a refused command can be overtaken.",
    )
    client_id: str = Field(
        "pulsebridge-push", min_length=1, description="Prefix of the client id of each partition's link."
    )
    pending: int = Field(
        4000,
        ge=10,
        le=8000,
        description="Commands taken from Pulsar and not acknowledged, per partition; full means stop reading.",
    )
    pending_mb: int = Field(
        64, ge=8, description="MB of commands taken from Pulsar and not acknowledged, per partition."
    )
    device_pending: int = Field(
        1000,
        ge=1,
        description="Commands that wait for a device that refuses them; later ones go to the dead letters.",
    )
    remembered_ids: int = Field(
        256, ge=64, le=4096, description="Command ids that each cursor remembers, to drop repeated ones."
    )
    retry_min_s: float = Field(
        0.2, gt=0, description="First wait before a refused command is sent again, in seconds."
    )
    retry_max_s: float = Field(
        30.0, gt=0, description="Longest wait before a refused command is sent again, in seconds."
    )
    drain_s: float = Field(
        20.0, gt=0, description="How long a clean stop may wait for PUBACKs and receipts, in seconds."
    )
