"""What is counted of commands to groups: the payloads at hand, and what the expander writes."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["GroupMetrics"]

_NAME: Final = "pulsebridge_push"


class GroupMetrics:
    """The metrics of one push process that are about groups; see the help of each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_NAME}_{name}_total", text, labels, registry=registry)

        self.hits = counter(
            "cache_hits", "Payloads of group commands that were at hand, or being read for another device."
        )
        self.misses = counter("cache_misses", "Payloads of group commands that were read from Pulsar.")
        self.kept = Gauge(
            f"{_NAME}_cache_bytes",
            "Payloads of group commands that are at hand, in bytes.",
            registry=registry,
        )
        self.commands = counter("group_commands", "Group commands, by the state of their receipt.", "state")
        self.entries = counter("group_entries", "Index entries written for members of groups.")
        self.open = Gauge(
            f"{_NAME}_group_open",
            "Group commands that have not expired, where this process gives them to the members.",
            registry=registry,
        )
