"""An intake that confirms every message at once, instead of Pulsar: for tests of the HTTP handler alone."""

from __future__ import annotations

from typing import Any

from bridge.mqtt.types import Message

__all__ = ["StoredAtOnce"]


class StoredAtOnce:
    """Accepts the handler's messages instead of Pulsar, and confirms them as stored."""

    in_flight, full = 0, False

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._readings: list[Any] = []

    def take(self, reading: Any, message: Message) -> None:
        self.messages.append(message)
        self._readings.append(reading)

    def turn(self, _now: float) -> list[Any]:
        stored, self._readings = self._readings, []
        return stored

    def is_dead_letter(self, _reading: Any) -> bool:
        return False

    def watch(self, _now: float, _oldest: float | None) -> None:
        pass

    def next_in(self, _now: float) -> float:
        return 1.0
