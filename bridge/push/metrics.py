"""What the push tier counts. Names begin with ``pulsebridge_push_``; gauges carry the partition, nothing a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from bridge.contract import DELIVERIES, Receipt
from bridge.mop_metrics import TRAFFIC
from bridge.push.partition import Partition
from bridge.settings.mqtt import MqttSettings

__all__ = ["PartitionMetrics", "PushMetrics"]

_NAME: Final = "pulsebridge_push"


def _gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"{_NAME}_{name}", text, labels, registry=registry)


_COUNTERS: Final[dict[str, tuple[str, ...]]] = {
    "pushed": ("Commands handed to the MQTT link, repeats included.",),
    "repeated": ("Commands pushed with repeat=1.",),
    "refused": ("PUBACKs that were no success.",),
    "answers": ("Answers of devices to commands that were waiting for one.",),
    "malformed": ("Messages of devices that MQTT calls malformed; they are skipped.",),
    "stray_answers": (
        "Answers to no command that waits for one: late, given twice, forged, or to an unknown position.",
    ),
    "forged_answers": ("Answers whose position has a wrong tag: the sender did not receive the command.",),
    "dead_letters": ("Commands written to the dead letters.",),
    "takeovers": ("Partitions that this process became owner of.",),
    "handed_over": ("Partitions handed over to another process, to share evenly.",),
    "partitions_lost": ("Partitions given up: fenced, or Pulsar was away.",),
    "resume_requests": ("Requests of devices that hold their own offset.",),
    "receipts": ("Receipts stored, by the command's state.", "state"),
    "connections": (
        "Connections that the MQTT broker accepted; all but the first of a takeover are reconnects.",
        "partition",
    ),
    "resume_answers": (
        "What became of them: resumed, trimmed (some commands are left out), error, superseded by a later one, unknown "
        "(no command was ever sent to such a device), dropped (one refusal too many).",
        "result",
    ),
    "cache_hits": ("Payloads of group commands that were at hand, or being read for another device.",),
    "cache_misses": ("Payloads of group commands that were read from Pulsar.",),
    "group_commands": ("Group commands, by the state of their receipt.", "state"),
    "group_entries": ("Index entries written for members of groups.",),
}
"""Help and label of each counter."""
_STATE_GAUGES: Final = {
    "pending": "Commands taken and not acknowledged.",
    "pending_bytes": "Payloads of commands taken and not acknowledged.",
    "in_flight": "Commands pushed and not confirmed.",
    "awaited": "Commands at the broker that their device has not answered.",
    "oldest_pending_seconds": "Time since the oldest command that is not acknowledged was emitted, 0 without one.",
    "devices": "Devices with a command under way, or lately: the cursors of all others are in a temporary file.",
    "held_back_devices": "Devices whose last push was refused, and whose commands wait for another try.",
    "parked": "Commands that wait in Pulsar for devices that are away.",
    "parked_devices": "Devices for which commands wait in Pulsar.",
}
"""Gauges that are 0 unless this process owns the partition."""
_GAUGES: Final = {
    "owned": "1 while this process owns the partition and may push.",
    "pending_limit": "At this many taken commands reading stops.",
    "pending_limit_bytes": "At this many bytes reading stops.",
    "in_flight_limit": "At this many in flight pushing waits.",
    **_STATE_GAUGES,
}
_LINK_GAUGES: Final = {
    "link_up": "1 while the connection to this MQTT broker is up and commands may be pushed there.",
    "link_in_flight": "Commands pushed to this MQTT broker and not confirmed.",
}
"""Gauges of one partition at one broker, which is named as its link of ingest."""
_PROCESS_GAUGES: Final = {
    "cache_bytes": "Payloads of group commands that are at hand, in bytes.",
    "processes": "Push processes that share the partitions, this one included; 0 while the others are not known.",
    "group_open": "Group commands that have not expired, where this process gives them to the members.",
}
"""Gauges of the whole process, not of a partition."""
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PushMetrics:
    """The metrics of one push process, by name without prefix and suffix."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.counters = {
            name: Counter(f"{_NAME}_{name}_total", text, labels, registry=registry)
            for name, (text, *labels) in _COUNTERS.items()
        }
        self.gauges = {name: _gauge(registry, name, text, "partition") for name, text in _GAUGES.items()}
        self.gauges |= {name: _gauge(registry, name, text, "partition", "link") for name, text in _LINK_GAUGES.items()}
        self.gauges |= {name: _gauge(registry, name, text) for name, text in _PROCESS_GAUGES.items()}
        self.confirm = Histogram(
            f"{_NAME}_confirm_seconds",
            "Time from a push to its PUBACK, of delivered commands.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self.delivery = Histogram(
            f"{_NAME}_delivery_seconds",
            "Time from a command's emission to its PUBACK, by the clocks of both, of delivered commands.",
            registry=registry,
            buckets=(*_BUCKETS, 300.0, 1800.0, 21600.0),
        )
        lag = "Entries in Pulsar with commands that are not acknowledged, of partitions owned here: one command, or a batch."
        self.lag = _gauge(registry, "lag_commands", lag, "partition")
        self.brokers: dict[int, str] = {}
        """The Pulsar broker that owns the commands, as host:port, by partition; only for the MoP proxy's names."""

    def partition(self, number: int) -> PartitionMetrics:
        """Return the metrics of one partition."""
        return PartitionMetrics(self, str(number))

    def pushed(self, partition: int, mqtt: MqttSettings, size: int) -> None:
        """Count a command that is handed to the link of an MQTT broker, with a payload of ``size`` bytes."""
        self.counters["pushed"].inc()
        broker = self.brokers.get(partition)
        if broker is not None:
            TRAFFIC.add(str(partition), f"{mqtt.host}:{mqtt.port}", broker, 1, size)

    def stored(self, receipt: Receipt) -> None:
        """Count a receipt that Pulsar has."""
        self.counters["receipts"].labels(receipt.state).inc()
        if receipt.state in DELIVERIES and receipt.confirmed_at_us and receipt.pushed_at_us:
            self.confirm.observe(max(0.0, (receipt.confirmed_at_us - receipt.pushed_at_us) / 1e6))
            if receipt.emitted_at_us:
                self.delivery.observe(max(0.0, (receipt.confirmed_at_us - receipt.emitted_at_us) / 1e6))


class PartitionMetrics:
    """The metrics of one partition; its thread alone writes them."""

    def __init__(self, of: PushMetrics, partition: str) -> None:
        self.all = of
        self._partition = partition
        self.gauges = {name: of.gauges[name].labels(partition) for name in _GAUGES}
        self.connections = of.counters["connections"].labels(partition)
        self._links: dict[str, dict[str, Gauge]] = {}
        self.owns = False

    def owner(self, owns: bool) -> None:
        """The partition became ours and may be pushed, or is not any more."""
        self.owns = owns
        self.gauges["owned"].set(owns)
        if not owns:
            for name in _STATE_GAUGES:
                self.gauges[name].set(0)
            for gauges in self._links.values():
                gauges["link_in_flight"].set(0)

    def link_up(self, link: str, up: bool) -> None:
        """Show whether commands may be sent to a broker."""
        self._of_link(link)["link_up"].set(up)

    def _of_link(self, link: str) -> dict[str, Gauge]:
        if link not in self._links:
            self._links[link] = {name: self.all.gauges[name].labels(self._partition, link) for name in _LINK_GAUGES}
        return self._links[link]

    def lag(self, commands: int) -> None:
        """Show the backlog that Pulsar reports, while the partition is ours; that of another is shown by its owner."""
        self.all.lag.labels(self._partition).set(commands if self.owns else 0)

    def show(self, core: Partition, now_us: int, links: Mapping[str, str]) -> None:
        """Show the state of the core. ``links`` has the names of the brokers, by those of the core."""
        oldest = core.commands.oldest_emitted_us
        state = {
            "pending": core.commands.pending,
            "pending_bytes": core.commands.pending_bytes,
            "in_flight": core.links.in_flight,
            "awaited": core.commands.awaited,
            "devices": len(core.devices.awake),
            "held_back_devices": sum(1 for device in core.devices.awake.values() if device.failures and device.queue),
            "parked": core.segments.parked,
            "parked_devices": core.devices.parked,
            "oldest_pending_seconds": max(0.0, (now_us - oldest) / 1e6) if oldest else 0.0,
        }
        for name, value in state.items():
            self.gauges[name].set(value)
        for link, shown in links.items():
            self._of_link(shown)["link_in_flight"].set(core.links[link].in_flight)
