"""Settings of the endpoint for metrics and health."""

from __future__ import annotations

from pydantic import Field

from bridge.settings.base import COMMON, Section
from bridge.settings.units import Duration

__all__ = ["MetricsSettings"]


class MetricsSettings(Section):
    """The endpoint of a process for its metrics and its health."""

    port: int = Field(0, ge=0, le=65535, json_schema_extra=COMMON)
    """TCP port of /metrics, /healthz and /readyz; 0 turns them off."""
    host: str = "127.0.0.1"
    """Address that the endpoint listens on."""
    mop_names: bool = False
    """Whether active_connections and connection_stats of the MoP proxy's design are exported, too."""
    stuck_after: Duration = Field(Duration("60s"), gt=0)
    """Time without a run of a loop after which /healthz fails."""
    probe_interval: Duration = Field(Duration("5s"), gt=0)
    """Time between two probes of Pulsar; after three times that without an answer the process is not ready."""
