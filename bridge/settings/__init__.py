"""Every setting of Pulsebridge in one typed model, a section for each tier.

``Settings()`` holds the defaults alone; ``bridge.settings.loading`` adds file, environment and flags. A section is
imported when it is asked for: a Python process of Spark needs one of them, and starts with each query.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bridge.settings.http import HttpSettings
    from bridge.settings.ingest import IngestSettings
    from bridge.settings.local import LocalSettings
    from bridge.settings.log import LogSettings
    from bridge.settings.metrics import MetricsSettings
    from bridge.settings.mqtt import MqttSettings
    from bridge.settings.pulsar import PulsarSettings
    from bridge.settings.push import PushSettings
    from bridge.settings.root import Settings
    from bridge.settings.rules import TopicRule
    from bridge.settings.streaming import StreamingSettings

__all__ = [
    "HttpSettings",
    "IngestSettings",
    "LocalSettings",
    "LogSettings",
    "MetricsSettings",
    "MqttSettings",
    "PulsarSettings",
    "PushSettings",
    "Settings",
    "StreamingSettings",
    "TopicRule",
]

_MODULES: Final = {"Settings": "root", "TopicRule": "rules"}
"""Where a name's module is not called like it."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name) or name.removesuffix("Settings").lower()
    return getattr(import_module(f"{__name__}.{module}"), name)
