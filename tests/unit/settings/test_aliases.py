"""MoP's own setting names: accepted like ours, and named as the origin of a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.errors import ConfigError
from bridge.settings.loading import Loaded, load_with_origins


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(
    file: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    sets: tuple[str, ...] = (),
) -> Loaded:
    path = None
    if file is not None:
        path = Path("given.yaml")
        path.write_text(yaml.safe_dump(dict(file)), encoding="utf-8")
    return load_with_origins(path, sets, environ=environ or {})


@pytest.mark.parametrize(
    ("given", "host", "port", "tls"),
    [
        ({"brokerMqttServiceURL": "mqtt://broker:1884"}, "broker", 1884, False),
        ({"brokerMqttServiceURL": "tcp://broker/"}, "broker", 1883, False),
        ({"brokerMqttServiceURL": "broker:1885"}, "broker", 1885, False),
        ({"brokerMqttServiceURLTLS": "mqtts://broker"}, "broker", 8883, True),
        ({"brokerMqttServiceURLTLS": "mqtt+ssl://[::1]:8884"}, "::1", 8884, True),
        ({"mqttServicePort": 1886}, "127.0.0.1", 1886, False),
        ({"mqttServicePortTls": 8885}, "127.0.0.1", 8885, True),
        ({"mqttServicePort": 1886, "brokerMqttServiceURL": "mqtt://b"}, "b", 1886, False),
        ({"mqttServicePort": 5682, "brokerMqttServiceURL": "mqtt://b:1883"}, "b", 1883, False),
        ({"mqttServicePortTls": 8885, "brokerMqttServiceURL": "mqtt://b"}, "b", 1883, False),
        (
            {"brokerMqttServiceURL": "mqtt://plain", "brokerMqttServiceURLTLS": "mqtts://secure"},
            "secure",
            8883,
            True,
        ),
    ],
)
def test_mop_s_names_say_where_the_broker_is(given: dict[str, Any], host: str, port: int, tls: bool) -> None:
    for made in (loaded(given), loaded(dict(reversed(given.items())))):
        assert (made.settings.mqtt.host, made.settings.mqtt.port, made.settings.mqtt.tls) == (host, port, tls)


def test_the_origin_names_the_alias_and_stronger_layers_win() -> None:
    made = loaded(
        {"brokerMqttServiceURL": "mqtt://file:1884", "messagingProtocols": "mqtt, http"},
        {"PULSEBRIDGE_MQTTSERVICEPORT": "1999"},
        ("mqtt.tls=true",),
    )
    assert made.settings.messaging_protocols == ("mqtt", "http")
    assert (made.settings.mqtt.host, made.settings.mqtt.port, made.settings.mqtt.tls) == ("file", 1999, True)
    assert made.origins == {
        "mqtt.host": "file given.yaml, as brokerMqttServiceURL",
        "mqtt.port": "environment PULSEBRIDGE_MQTTSERVICEPORT, as mqttServicePort",
        "mqtt.tls": "--set",
        "messaging_protocols": "file given.yaml, as messagingProtocols",
    }
    assert loaded(sets=("messagingProtocols=http",)).settings.messaging_protocols == ("http",)
    assert loaded({"messagingProtocols": ["http"]}).settings.messaging_protocols == ("http",)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"brokerMqttServiceURL": "http://b"}, "should be like mqtt://broker.example:1883"),
        ({"brokerMqttServiceURL": "mqtts://b"}, "should be like mqtt://broker.example:1883"),
        ({"brokerMqttServiceURLTLS": "mqtt://b"}, "should be like mqtts://broker.example:8883"),
        ({"brokerMqttServiceURL": "mqtt://b:port"}, "should be like mqtt://"),
        ({"brokerMqttServiceURL": "mqtt://b/path"}, "should be like mqtt://"),
        ({"mqttServicePort": "many"}, "mqtt.port: should be a whole number"),
        (
            {"mqttServicePort": 1, "mqtt": {"port": 2}},
            "mqtt.port: given twice, also as mqttServicePort; keep one",
        ),
        ({"mqttServiceport": 1}, "mqttServiceport: unknown setting"),
    ],
)
def test_a_setting_without_a_broker_or_given_twice_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(given)
    assert why in str(caught.value)
