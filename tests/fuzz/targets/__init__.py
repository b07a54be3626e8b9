"""The targets by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.engine import Target
from tests.fuzz.targets.answers import ANSWERS
from tests.fuzz.targets.decoders import DECODERS
from tests.fuzz.targets.envelope import ENVELOPE
from tests.fuzz.targets.http import HTTP
from tests.fuzz.targets.mqtt import MQTT
from tests.fuzz.targets.pulsar_entries import PULSAR_ENTRIES
from tests.fuzz.targets.pulsar_frames import PULSAR_FRAMES
from tests.fuzz.targets.records import RECORDS
from tests.fuzz.targets.sparkplug import SPARKPLUG
from tests.fuzz.targets.text import TEXT

__all__ = ["TARGETS"]

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (MQTT, PULSAR_FRAMES, PULSAR_ENTRIES, RECORDS, ENVELOPE, ANSWERS, HTTP, DECODERS, SPARKPLUG, TEXT)
}
