"""The number of connections that an MQTT broker reports, for the metric ``active_connections``.

The setting ``mqtt.connections_from`` is a topic of the broker, or a URL whose fragment names the number: a field of a
JSON answer, with dots between its levels, or a metric in Prometheus' text format.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from bridge.display import printable
from bridge.errors import PulsebridgeError, TransientError
from bridge.loggers import get_logger
from bridge.mop_metrics import MopCollector
from bridge.mqtt.types import Message
from bridge.pulsar.watch import watching
from bridge.settings.mqtt import MqttSettings
from bridge.tls import client_context

if TYPE_CHECKING:
    from bridge.mqtt.device import DeviceClient

__all__ = ["ConnectionCount", "mop_collector", "number_in"]

log = get_logger("mqtt")

_EVERY_S: Final = 15.0
_VALID_S: Final = 60.0
"""Time after which a number no longer counts, in seconds."""
_TOPIC: Final = "$SYS/broker/clients/connected"


@contextmanager
def mop_collector(
    links: Iterable[MqttSettings],
    over: Callable[[], bool],
    listeners: Callable[[], Mapping[str, float]] = dict,
) -> Iterator[MopCollector]:
    """Count the connections of these MQTT brokers while the block runs, until ``over``; give the collector that shows them.

    ``listeners`` returns the connections of our own listeners, by protocol.
    """
    counts = {f"{mqtt.host}:{mqtt.port}": ConnectionCount(mqtt) for mqtt in links}

    def connections() -> dict[str, float]:
        found = ((address, count.value) for address, count in counts.items())
        return {address: value for address, value in found if value is not None} | dict(listeners())

    with ExitStack() as stack:
        for address, count in counts.items():
            stack.callback(count.close)
            stack.enter_context(watching(f"connections of {address}", _EVERY_S, count.look, over=over))
        yield MopCollector(connections)


class ConnectionCount:
    """The last number of one MQTT broker. One thread calls ``look``; any thread reads ``value``."""

    def __init__(self, mqtt: MqttSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._mqtt = mqtt
        self._clock = clock
        self._found: tuple[float, float] | None = None
        self._client: DeviceClient | None = None
        self._since = 0.0
        """When the subscription began."""

    @property
    def value(self) -> float | None:
        """The number of connections, None if the broker has not reported it lately."""
        found = self._found
        return None if found is None or self._clock() - found[1] > _VALID_S else found[0]

    def look(self) -> None:
        """Request the number at a URL, or subscribe to a topic once. Logs why that is not possible."""
        source = self._mqtt.connections_from
        where = _TOPIC if source is None else source.get_secret_value()
        try:
            if "://" in where:
                self._found = _requested(self._mqtt, where), self._clock()
            elif self._client is None:
                self._subscribe(where)
                self._since = self._clock()
            elif self.value is None and self._clock() - self._since > _VALID_S:
                raise TransientError(f"no number arrives on {where}")
        except PulsebridgeError as e:
            log.warning(
                "the MQTT broker does not report its number of connections. Action: check mqtt.connections_from",
                broker=self._mqtt.address,
                why=str(e),
                shown=1,
            )

    def _subscribe(self, topic: str) -> None:
        from bridge.mqtt.device import (
            DeviceClient,
        )  # here, because a process that only serves HTTP needs no MQTT client

        client = DeviceClient(self._mqtt, f"pb-count-{secrets.token_hex(4)}", on_message=self._take)
        try:
            client.connect()
            client.subscribe(topic, qos=0)
        except PulsebridgeError:
            client.stop()
            raise
        self._client = client  # it reconnects by itself

    def _take(self, message: Message) -> None:
        found = number_in(message.payload.decode(errors="replace"), "")
        if found is not None:
            self._found = found, self._clock()

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.stop()


def _requested(mqtt: MqttSettings, url: str) -> float:
    """Return the number at a URL, which may contain user and password. Raises TransientError."""
    import httpx  # here, because most processes do not need it

    address, _, name = url.partition("#")
    parts = urlsplit(address)
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    headers = {"Origin": f"{parts.scheme}://{parts.hostname}"}  # Artemis refuses a request without it
    try:
        answer = httpx.get(address, headers=headers, verify=client_context(mqtt, "mqtt"), timeout=mqtt.connect_timeout)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise TransientError(f"{shown}: {e or type(e).__name__}") from e
    found = number_in(answer.text, name) if answer.status_code == 200 else None
    if found is None:
        why = printable(answer.text, 200)
        raise TransientError(f"the answer {answer.status_code} of {shown} has no number {name!r}: {why}")
    return found


def number_in(text: str, name: str) -> float | None:
    """Return a number in JSON or in Prometheus' text format; None without it.

    ``name`` has dots between the levels of JSON, and is empty for a number alone. Samples of one metric are added.
    """
    try:
        found = json.loads(text)
        for level in filter(None, name.split(".")):
            found = found[level]
        return float(found)
    except (LookupError, TypeError, RecursionError):
        return None
    except ValueError:  # not JSON
        pass
    try:
        families = text_string_to_metric_families(text)
        values = [sample.value for one in families for sample in one.samples if sample.name == name]
    except ValueError:
        return None
    return sum(values) if values else None
