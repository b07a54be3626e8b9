"""Settings of the Prometheus metrics."""

from __future__ import annotations

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["MetricsSettings"]


class MetricsSettings(Section):
    """Where a process shows its metrics."""

    port: int = Field(0, ge=0, le=65535, description="TCP port of the Prometheus endpoint; 0 turns it off.")
    host: str = Field("127.0.0.1", description="Address that the endpoint listens on.")
    mop_names: bool = Field(
        False,
        description="Whether the metrics of the MoP proxy's design are shown under its very names as well.",
    )
