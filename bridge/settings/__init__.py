"""All settings of Pulsebridge in one typed model, with a section for each tier.

``Settings()`` has the defaults only; ``bridge.settings.loading`` adds file, environment and flags. A section is
imported at its first use, because each query starts Python processes of Spark that need only one.
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
    from bridge.settings.ui import UiSettings

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
    "UiSettings",
]

_MODULES: Final = {"Settings": "root", "TopicRule": "rules"}
"""Modules whose names do not follow from the name of the class."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name) or name.removesuffix("Settings").lower()
    return getattr(import_module(f"{__name__}.{module}"), name)
