"""Settings of further MQTT brokers: named links, each with its differences from the section ``mqtt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from bridge.settings.base import Section
from bridge.settings.mqtt import MqttSettings

__all__ = ["LinkSettings", "mqtt_of"]


class _Named(Section):
    """One MQTT broker: a name, and the differences from the section ``mqtt``."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the link in the envelope, in logs and in metrics."""


def _overridable() -> dict[str, Any]:
    found: dict[str, Any] = {}
    # Fields that are not set are mqtt's. model_fields_set lists the set ones, so null can override, too.
    for name, field in MqttSettings.model_fields.items():
        kind: Any = (field.annotation | None, *field.metadata)  # type: ignore[operator]
        kind = Annotated[kind] if field.metadata else kind[0]
        found[name] = (kind, Field(None, description=f"Instead of mqtt.{name}."))
    return found


if TYPE_CHECKING:
    LinkSettings = _Named
else:
    LinkSettings = create_model("LinkSettings", __base__=_Named, __doc__=_Named.__doc__, **_overridable())


def mqtt_of(link: LinkSettings, mqtt: MqttSettings) -> MqttSettings:
    """Return the complete settings of a link. Raises pydantic's ValidationError for inconsistent values."""
    given = {name: getattr(link, name) for name in link.model_fields_set - {"name"}}
    return MqttSettings(**({name: getattr(mqtt, name) for name in MqttSettings.model_fields} | given))
