"""Settings of the endpoint for metrics and health."""

from __future__ import annotations

from pydantic import Field

from bridge.settings.base import Section

__all__ = ["MetricsSettings"]


class MetricsSettings(Section):
    """The endpoint of a process for its metrics and its health."""

    port: int = Field(0, ge=0, le=65535, description="TCP port of /metrics, /healthz and /readyz; 0 turns them off.")
    host: str = Field("127.0.0.1", description="Address that the endpoint listens on.")
    mop_names: bool = Field(
        False,
        description="Whether the metrics of the MoP proxy's design are also exported under its names.",
    )
    stuck_s: float = Field(
        60.0,
        gt=0,
        description="Time without a run of a loop after which /healthz fails, in seconds.",
    )
    probe_s: float = Field(
        5.0,
        gt=0,
        description="How often Pulsar is probed, in seconds; after three times that without an answer the process is "
        "not ready.",
    )
