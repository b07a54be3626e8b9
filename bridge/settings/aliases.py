"""Maps the names of settings in the design of MoP's proxy to ours.

==========================  ==================================================================================
MoP's name                  our setting
==========================  ==================================================================================
``messagingProtocols``      ``messaging_protocols``
``brokerMqttServiceURL``    address of the MQTT broker: ``mqtt.host``, ``mqtt.port``, without TLS
``brokerMqttServiceURLTLS`` the same with ``mqtt.tls``; it takes precedence
``mqttServicePort``         ``mqtt.port``: the port for devices. In MoP it is the proxy's port. Here it is the MQTT
                            broker's, because devices connect to the broker. A port in a URL takes precedence
``mqttServicePortTls``      the same with ``mqtt.tls``
==========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["alias_of", "settings_of"]

# In ascending order of precedence.
_PORT: Final = "mqttServicePort"
_PORT_TLS: Final = "mqttServicePortTls"
_URL: Final = "brokerMqttServiceURL"
_URL_TLS: Final = "brokerMqttServiceURLTLS"
_PROTOCOLS: Final = "messagingProtocols"
_BY_LOWER: Final = {name.lower(): name for name in (_PORT, _PORT_TLS, _URL, _URL_TLS, _PROTOCOLS)}
_SCHEMES: Final = {
    _URL: ("mqtt", "tcp"),
    _URL_TLS: ("mqtts", "mqtt+ssl", "ssl"),
}


def alias_of(path: tuple[str, ...], *, any_case: bool = False) -> str | None:
    """Return MoP's name for a path, None for other paths. ``any_case`` is for variables, which are in capitals."""
    name = _BY_LOWER.get(path[0].lower()) if len(path) == 1 else None
    return name if name is not None and (any_case or name == path[0]) else None


def settings_of(given: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Yield path, value and MoP's name of the given values, in ascending order of precedence.

    Raises ValueError, with the name first, for an invalid URL of a broker.
    """
    for name, tls in ((_PORT, False), (_PORT_TLS, True)):
        if name in given:
            yield ("mqtt", "port"), given[name], name
            yield ("mqtt", "tls"), tls, name
    for name, service_port, tls in ((_URL, _PORT, False), (_URL_TLS, _PORT_TLS, True)):
        if name not in given:
            continue
        host, port = _address(name, given[name])
        default = given.get(service_port, 8883 if tls else 1883)
        yield ("mqtt", "host"), host, name
        yield ("mqtt", "port"), default if port is None else port, name
        yield ("mqtt", "tls"), tls, name
    if _PROTOCOLS in given:
        yield ("messaging_protocols",), given[_PROTOCOLS], _PROTOCOLS


def _address(name: str, url: Any) -> tuple[str, int | None]:
    schemes = _SCHEMES[name]
    text = str(url).strip()
    parts = urlsplit(text if "://" in text else f"{schemes[0]}://{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in schemes or not host or parts.path.strip("/") or parts.username or parts.query:
        raise ValueError(f"{name}: should be like {schemes[0]}://broker.example:{8883 if name == _URL_TLS else 1883}")
    return host, port
