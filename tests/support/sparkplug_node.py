"""An edge node without a connection: its messages, as payloads of Sparkplug B."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sparkplug.rows import Message
from sparkplug.schema import Payload
from sparkplug.values import NUMBERS, set_value

__all__ = ["EdgeNode", "Sent", "hour", "in_log", "payload"]

BEGIN_MS = 1_767_225_600_000  # 2026-01-01


class Sent(NamedTuple):
    """A message of an edge node."""

    topic: str
    payload: bytes
    at_ms: int


def payload(
    metrics: Iterable[tuple[str | None, int | None, str, str | None]] = (),
    *,
    at_ms: int | None = BEGIN_MS,
    seq: int | None = None,
    typed: bool = True,
) -> bytes:
    """Return a payload of metrics: name, alias, type, value as text."""
    made = Payload()
    if at_ms is not None:
        made.timestamp = at_ms
    if seq is not None:
        made.seq = seq
    for name, alias, kind, value in metrics:
        metric = made.metrics.add()
        if name is not None:
            metric.name = name
        if alias is not None:
            metric.alias = alias
        if at_ms is not None:
            metric.timestamp = at_ms
        set_value(metric, NUMBERS[kind], value)
        if typed:
            metric.datatype = NUMBERS[kind]
    return bytes(made.SerializeToString())


class EdgeNode:
    """An edge node that numbers its messages, with aliases for its metrics."""

    def __init__(
        self, node: str = "G/N", metrics: Sequence[tuple[str, str, str]] = (("temp", "Double", "1.5"),)
    ) -> None:
        self.group, self.name = node.split("/")
        self.metrics = list(metrics)
        self.bd_seq = -1
        self.seq = 0
        self.now_ms = BEGIN_MS

    def topic(self, kind: str, device: str | None = None) -> str:
        """Return the topic of a message."""
        return "/".join(["spBv1.0", self.group, kind, self.name, *([] if device is None else [device])])

    def _send(self, kind: str, metrics: Iterable[Any], device: str | None = None, *, typed: bool = True) -> Sent:
        self.now_ms += 100
        seq = None if kind == "NDEATH" else self.seq
        if seq is not None:
            self.seq = (self.seq + 1) % 256
        return Sent(self.topic(kind, device), payload(metrics, at_ms=self.now_ms, seq=seq, typed=typed), self.now_ms)

    def birth(self, *, rebirth: bool = False) -> Sent:
        """Connect, or answer a rebirth request."""
        if not rebirth:
            self.bd_seq = (self.bd_seq + 1) % 256
        self.seq = 0
        control = [("bdSeq", None, "Int64", str(self.bd_seq)), ("Node Control/Rebirth", None, "Boolean", "false")]
        named = [(name, 100 + n, kind, value) for n, (name, kind, value) in enumerate(self.metrics)]
        return self._send("NBIRTH", [*control, *named])

    def death(self, bd_seq: int | None = None) -> Sent:
        """Die, with the bdSeq of this session or another one."""
        number = self.bd_seq if bd_seq is None else bd_seq
        return self._send("NDEATH", [("bdSeq", None, "Int64", str(number))])

    def data(self, *values: str) -> Sent:
        """Send the first metrics by alias alone."""
        found = [(None, 100 + n, self.metrics[n][1], value) for n, value in enumerate(values)]
        return self._send("NDATA", found, typed=False)

    def device_birth(self, device: str, base: int = 1000) -> Sent:
        """Send the birth of a device."""
        named = [(name, base + n, kind, value) for n, (name, kind, value) in enumerate(self.metrics)]
        return self._send("DBIRTH", named, device)

    def device_data(self, device: str, *values: str, base: int = 1000) -> Sent:
        """Send the first metrics of a device by alias alone."""
        found = [(None, base + n, self.metrics[n][1], value) for n, value in enumerate(values)]
        return self._send("DDATA", found, device, typed=False)

    def device_death(self, device: str) -> Sent:
        """Send the death of a device."""
        return self._send("DDEATH", [], device)


def in_log(sent: Iterable[Sent]) -> list[Message]:
    """Return messages as they are in the log, one entry each."""
    return [
        Message(1, n, 0, "persistent://public/pulsebridge/sparkplug", 0, one.topic, one.payload, one.at_ms * 1000)
        for n, one in enumerate(sent)
    ]


def hour(seed: int, messages: int = 3600) -> list[Sent]:
    """Return an hour of two nodes: births, deaths, devices, lost, repeated and broken messages, late deaths."""
    dice = random.Random(seed)
    nodes = [
        EdgeNode(f"G/N{n}", [("temp", "Double", "1"), ("count", "Int32", "1"), ("on", "Boolean", "true")])
        for n in (1, 2)
    ]
    sent: list[Sent] = [node.birth() for node in nodes]
    while len(sent) < messages:
        node = dice.choice(nodes)
        roll = dice.random()
        value = str(dice.randrange(1000))
        if roll < 0.55:
            sent.append(node.data(value, value, dice.choice(["true", "false"])))
        elif roll < 0.85:
            sent.append(node.device_data(f"D{dice.randrange(3)}", value))
        elif roll < 0.89:
            sent.append(node.device_birth(f"D{dice.randrange(3)}"))
        elif roll < 0.91:
            sent.append(node.device_death(f"D{dice.randrange(3)}"))
        elif roll < 0.93:
            node.data(value)  # lost
        elif roll < 0.95:
            sent.append(dice.choice(sent[-5:]))
        elif roll < 0.96:
            sent.append(Sent(node.topic("NDATA"), b"\xff" + bytes([dice.randrange(256)]), node.now_ms))
        elif roll < 0.97:
            sent.append(node.death())
        elif roll < 0.98:
            sent.append(node.birth())
        elif roll < 0.99:
            sent.append(node.birth(rebirth=True))
        else:
            sent.append(node.death(max(0, node.bd_seq - 1)))
    return sent
