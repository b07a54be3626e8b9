"""What a fleet of any size takes, from what one message, command, connection and known device took on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Fleet", "Row", "coefficients", "sized"]

Result = Mapping[str, float]

_USED = 0.5
"""Share of a core that is used in the mean; the rest is for peaks and for what takes over."""
_DAY_S = 86_400.0
_CONNECTIONS_A_BROKER = 250_000
_KNOWN_A_PROCESS = 1_000_000
"""Known devices of a push process: the bound of memory and takeover time that is measured."""
_BROKERS_A_WORKER = 6
_COPIES = 3
_DAYS = 7
_SOURCE_US = 1.8
"""CPU of the source for a row, in µs, if a run has not measured more."""
_TAKEOVER_PARTITION = 250_000
"""Known devices of a commands partition."""


@dataclass(frozen=True)
class Fleet:
    """The fleet, and how Pulsar keeps its messages."""

    devices: int = 10_000_000
    messages_a_minute: float = 1.0
    commands_a_day: float = 1.0
    presence_s: float = 30.0
    """``ingest.presence_interval``."""

    @property
    def messages(self) -> float:
        """Messages a second."""
        return self.devices * self.messages_a_minute / 60

    @property
    def commands(self) -> float:
        """Commands a second."""
        return self.devices * self.commands_a_day / _DAY_S

    @property
    def signs(self) -> float:
        """Signs of life that ingest writes a second: at most one of a message, and one of each interval."""
        return min(self.messages, self.devices / self.presence_s)


@dataclass(frozen=True)
class Row:
    """One line of the model."""

    what: str
    number: float
    unit: str
    how: str


def coefficients(connected: Result, known: Result) -> dict[str, float]:
    """Return what one of each takes, from a run with connected devices and one with known devices."""
    minute, devices = 60.0, connected["devices"]

    def traffic(name: str) -> float:
        """CPU in µs of a message, beyond what the connected devices take when nothing happens."""
        idle = connected[f"idle_{name}_share"] * minute
        return max(0.0, connected[f"traffic_{name}_cpu_s"] - idle) / connected["messages"] * 1e6

    return {
        "ingest.cpu_us_a_message": traffic("ingest"),
        "push.cpu_us_a_message": traffic("push"),
        "mosquitto.cpu_us_a_message": traffic("mosquitto"),
        "pulsar.cpu_us_a_message": traffic("pulsar"),
        "spark.cpu_us_a_message": connected["spark_cpu_us"],
        "push.cpu_us_a_command": known["command_cpu_us"],
        "mosquitto.bytes_a_connection": (connected["traffic_mosquitto_bytes"] - connected["empty_mosquitto_bytes"])
        / devices,
        "ingest.bytes_a_device": (connected["traffic_ingest_bytes"] - connected["empty_ingest_bytes"]) / devices,
        "push.bytes_a_device": (connected["traffic_push_bytes"] - connected["empty_push_bytes"]) / devices,
        "push.bytes_a_known_device": (known["bytes_known"] - known["bytes_empty"]) / known["known"],
        "push.bytes_a_parked_device": (known["bytes_parked"] - known["bytes_known"]) / known["parked"],
        "push.takeover_cpu_us_a_known_device": (known["takeover_parked_cpu_s"] - known["takeover_empty_cpu_s"])
        / known["known"]
        * 1e6,
        "pulsar.bytes_a_message": connected["stored_bytes"],
        "pulsar.bytes_a_cursor": known["compacted_bytes"] / known["known"],
        "pulsar.compaction_cpu_us_a_cursor": known["compaction_cpu_s"] / known["known"] * 1e6,
    }


def sized(fleet: Fleet, one: Result) -> list[Row]:
    """Return what a fleet takes."""

    def cores(microseconds: float, rate: float) -> int:
        return max(1, math.ceil(rate * microseconds / 1e6 / _USED))

    brokers = max(
        math.ceil(fleet.devices / _CONNECTIONS_A_BROKER),
        cores(one["mosquitto.cpu_us_a_message"], fleet.messages),
    )
    ingest = max(cores(one["ingest.cpu_us_a_message"], fleet.messages), math.ceil(brokers / _BROKERS_A_WORKER))
    partitions = math.ceil(fleet.devices / _TAKEOVER_PARTITION)
    push_cores = one["push.cpu_us_a_message"] * fleet.signs + one["push.cpu_us_a_command"] * fleet.commands
    push = max(math.ceil(fleet.devices / _KNOWN_A_PROCESS), math.ceil(push_cores / 1e6 / _USED))
    pulsar = cores(one["pulsar.cpu_us_a_message"], fleet.messages)
    spark_us = one["spark.cpu_us_a_message"] or _SOURCE_US
    spark = cores(spark_us, fleet.messages)
    tables = "bronze and readings" if one["spark.cpu_us_a_message"] else "the source alone (make bench ONLY=source)"
    known = one["push.bytes_a_known_device"] * fleet.devices / push
    signs = one["push.bytes_a_device"] * fleet.devices / push
    stored = fleet.messages * one["pulsar.bytes_a_message"]
    day = stored * _DAY_S
    cursors = one["pulsar.bytes_a_cursor"] * fleet.devices
    return [
        Row("connections of devices", fleet.devices, "", "one a device"),
        Row("messages", fleet.messages, "1/s", f"{fleet.messages_a_minute:g} a minute and device"),
        Row("commands", fleet.commands, "1/s", f"{fleet.commands_a_day:g} a day and device"),
        Row("signs of life in Pulsar", fleet.signs, "1/s", f"ingest.presence_interval {fleet.presence_s:g} s"),
        Row("MQTT brokers", brokers, "", f"{_CONNECTIONS_A_BROKER:,} connections each, half a core"),
        Row("memory of an MQTT broker", one["mosquitto.bytes_a_connection"] * fleet.devices / brokers / 1e9, "GB", ""),
        Row("ingest workers", ingest, "", "half a core each; a worker reads six brokers at most"),
        Row("connections of ingest and push to the brokers", brokers * (1 + partitions), "", "a link each"),
        Row("partitions of the commands", partitions, "", f"{_TAKEOVER_PARTITION:,} known devices each"),
        Row("push processes", push, "", "half a core, a million known devices each"),
        Row("memory of a push process", (known + signs) / 1e6, "MB", "beside 90 MB of its own; signs of life are bounded"),
        Row("takeover of a dead push process", one["push.takeover_cpu_us_a_known_device"] * fleet.devices / push / 1e6, "s",
            "shared by the others, it is less"),
        Row("Pulsar's cores", pulsar, "", "brokers and bookies, one copy; writing three copies costs more"),
        Row("partitions of the readings", math.ceil(fleet.messages / 10_000), "", "10,000 messages a second each"),
        Row("Spark's cores", spark, "", f"{tables}; your tables and rules come on top"),
        Row("network into Pulsar", stored / 1e6, "MB/s", "messages; each copy and each reader as much again"),
        Row("storage of the messages", day * _DAYS * _COPIES / 1e12, "TB", f"{_DAYS} days, {_COPIES} copies"),
        Row("storage of the cursors", cursors * _COPIES / 1e9, "GB", f"{_COPIES} copies, compacted"),
    ]  # fmt: skip
