"""The number of connections, from the answers of MQTT brokers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import structlog
from pydantic import SecretStr

from bridge.mqtt.connection_count import ConnectionCount, number_in
from bridge.settings.mqtt import MqttSettings

PROMETHEUS = """# HELP rabbitmq_connections Connections currently open
# TYPE rabbitmq_connections gauge
rabbitmq_connections{protocol="mqtt"} 4
rabbitmq_connections{protocol="amqp"} 3
rabbitmq_connections_opened_total 90
"""


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("12", "", 12),
        ("12.0\n", "", 12),
        ("many", "", None),
        ('{"connections": 3, "version": "2"}', "connections", 3),
        ('{"totals": {"connections": 5}}', "totals.connections", 5),
        ('{"totals": {"connections": 5}}', "totals", None),
        ('{"totals": {"connections": 5}}', "totals.channels", None),
        ('{"totals": null}', "totals.connections", None),
        ("[" * 100_000, "a", None),
        (PROMETHEUS, "rabbitmq_connections", 7),
        (PROMETHEUS, "rabbitmq_connections_opened_total", 90),
        (PROMETHEUS, "connections", None),
        ("<html>not found</html>", "connections", None),
        ("", "connections", None),
    ],
)
def test_a_number_by_its_name(text: str, name: str, found: float | None) -> None:
    assert number_in(text, name) == found


@contextmanager
def endpoint(status: int, body: str) -> Iterator[tuple[int, list[str | None]]]:
    """An HTTP server that answers each request alike, and its requests' Authorization."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def test_a_url_names_the_number_and_may_have_a_password() -> None:
    now = 0.0
    with endpoint(200, json.dumps({"value": 5})) as (port, asked):
        url = SecretStr(f"http://admin:secret@127.0.0.1:{port}/count#value")
        count = ConnectionCount(MqttSettings(connections_from=url), lambda: now)
        assert count.value is None
        count.look()
    assert count.value == 5
    assert str(asked[0]).startswith("Basic ")
    now = 61.0
    assert count.value is None, "an old number is not shown"


def test_a_failure_names_the_url_without_its_password() -> None:
    with endpoint(403, "denied") as (port, _), structlog.testing.capture_logs() as events:
        url = SecretStr(f"http://admin:secret@127.0.0.1:{port}/count#value")
        count = ConnectionCount(MqttSettings(connections_from=url))
        count.look()
    assert count.value is None
    (event,) = events
    assert "403" in event["why"]
    assert event["why"].endswith("no number 'value': denied")
    assert f"127.0.0.1:{port}/count" in event["why"]
    assert "secret" not in str(event)
    assert "mqtt.connections_from" in event["event"]
