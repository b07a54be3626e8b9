"""Publishes one task's rows to an MQTT broker, in order and with a bounded window.

A task succeeds only if the broker has confirmed each publish of QoS 1 or 2 and each dead letter. A row is a bad row if
the broker refuses this publish, or if it exceeds the broker's announced limits. The same applies if the broker
repeatedly closes the connection at it (``sinks.mqtt_sending``). Any other refusal fails the task, which Spark retries.

If a broker announces no limits, the largest confirmed publish is the known limit. A letter after a closed connection is
not larger than that, or ``_SMALL_BYTES``.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

import structlog

from bridge.contract.commands import Problem
from bridge.errors import ContractError, PulsebridgeError, TransientError
from bridge.pending import Pending
from sinks.messages import BadRow
from sinks.mqtt_rows import Plan, Publish, letter_of, letter_room
from sinks.mqtt_sending import CLOSES, RowClient, Sending

if TYPE_CHECKING:
    from sinks.options import MqttOptions

__all__ = ["write"]

log = structlog.get_logger("sink")

_REFUSED_FROM: Final = 0x80
_NO_SUBSCRIBERS: Final = 0x10
_MOST_CLOSED_AT: Final = 100
"""Most rows of a task at which a broker may close the connection: each costs three connections."""
_SMALL_BYTES: Final = 1024
# MQTT 5, 3.4.2.1: reasons of a PUBACK that concern one message.
_OF_ONE: Final = {
    0x87: ("mqtt_topic", "the broker does not allow to publish on it (reason 0x87)"),
    0x90: ("mqtt_topic", "the broker does not accept it (reason 0x90)"),
    0x99: ("payload", "does not have the format that payload_format states (reason 0x99)"),
}


def write(rows: Iterable[Publish | BadRow], options: MqttOptions, plan: Plan) -> tuple[int, int]:
    """Publish all rows and return the numbers of accepted rows and of dead letters.

    Raises TransientError or DeniedError without a connection or a confirmation, ContractError for a bad row if bad rows
    fail the task. Published rows stay published, and a retry repeats them.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:  # many tasks of a shuffle have no rows
        return 0, 0
    # MQTT 3.1 allows at most 23 characters.
    client = RowClient(options.mqtt, f"{options.mqtt.client_id}-{secrets.token_hex(4)}", window=options.window)
    client.connect(2 * options.mqtt.connect_timeout)
    try:
        return _Publishing(client, options, plan).run(chain((first,), rows))
    finally:
        client.close()


class _Publishing:
    """One task's publishes over one connection, which is re-created if it is lost."""

    def __init__(self, client: RowClient, options: MqttOptions, plan: Plan) -> None:
        self._client = client
        self._options = options
        self._plan = plan
        self._pending = Pending(
            "publishes have no confirmation from the MQTT broker",
            remedy="Spark retries the task; check that the broker is up and accepts such packets, or raise sendTimeoutMs",
            why=self._loss,
        )
        # The link's thread fills these.
        self._refused: deque[BadRow] = deque()
        self._closed_at: deque[BadRow] = deque()
        self._too_large: deque[BadRow] = deque()  # rows whose letter was probably too large
        self._closed = 0
        self._confirmed_bytes = 0
        self._no_subscriber = False

    def run(self, rows: Iterable[Publish | BadRow]) -> tuple[int, int]:
        published = bad = refused = 0
        for row in rows:
            refused += self._write_refused()  # here, so that their number is bounded by the window
            fit = row.misfit(self._client.link.granted) or row if isinstance(row, Publish) else row
            if isinstance(fit, Publish):
                self._publish(fit)
                published += 1
            else:
                self._publish_bad(fit)
                bad += 1
        self._pending.wait(0, self._options.send_timeout_s)
        while self._refused or self._closed_at or self._too_large:  # letters may add rows
            refused += self._write_refused()
            self._pending.wait(0, self._options.send_timeout_s)
        if self._no_subscriber:
            log.warning(
                "dead letters have no subscriber, so they are lost. Action: subscribe to their topic, or set badRows=fail",
                topic=self._options.dead_letter_topic,
            )
        return published - refused, bad + refused

    def _write_refused(self) -> int:
        """Publish the letters of the rows that the broker has refused so far. Returns the number of these rows."""
        written = 0
        while self._refused:
            self._publish_bad(self._refused.popleft())
            written += 1
        while self._closed_at:
            self._publish_bad(self._closed_at.popleft(), small=True)
            written += 1
        while self._too_large:
            self._publish_bad(self._too_large.popleft(), small=True)
        return written

    def _publish(self, row: Publish) -> None:
        size = len(row.payload)

        def confirmed(reason: int) -> None:
            if reason in _OF_ONE:
                self._refused.append(row.refused(Problem(*_OF_ONE[reason])))
            failed = reason >= _REFUSED_FROM and reason not in _OF_ONE
            if row.qos and reason < _REFUSED_FROM:
                self._confirmed_bytes = max(self._confirmed_bytes, len(row.topic) + size)
            self._pending.done(_failed(row, reason) if failed else None, size)

        def given_back(why: str) -> None:
            self._closed += 1
            self._closed_at.append(row.refused(Problem("payload", _closed_at(row, why))))
            self._pending.done(self._too_many() if self._closed > _MOST_CLOSED_AT else None, size)

        sending = Sending(row.topic, row.payload, row.qos, row.retain, row.properties, confirmed, given_back)
        self._send(sending)

    def _publish_bad(self, row: BadRow, *, small: bool = False) -> None:
        """Publish a row's letter, ``small`` if the broker closed the connection at a larger one."""
        if self._options.fail_on_bad_rows:
            raise ContractError(row.reason, remedy="fix the row, or set badRows=deadletter")

        def confirmed(reason: int) -> None:
            self._no_subscriber = self._no_subscriber or reason == _NO_SUBSCRIBERS
            self._pending.done(None if reason < _REFUSED_FROM else self._lost(row, reason), len(payload))

        def given_back(why: str) -> None:
            smaller = not small and len(payload) > self._small_room(topic)
            if smaller:
                self._too_large.append(row)
            self._pending.done(None if smaller else self._no_letter(row, why), len(payload))

        topic, broker = self._options.dead_letter_topic, self._client.link.granted
        room = letter_room(topic, broker, self._plan)
        payload, properties = letter_of(row, self._plan, min(room, self._small_room(topic)) if small else room)
        if len(payload) > room:
            raise ContractError(
                f"{row.reason}; and the MQTT broker accepts no dead letter of {len(payload)} bytes on {topic}",
                remedy="raise the broker's maximum packet size, or set badRows=fail",
            )
        # The broker closes the connection at a QoS above its maximum.
        qos = min(1, broker.maximum_qos)
        self._send(Sending(topic, payload, qos, False, properties, confirmed, given_back))

    def _small_room(self, topic: str) -> int:
        return max(_SMALL_BYTES, self._confirmed_bytes) - len(topic)

    def _send(self, sending: Sending) -> None:
        size = len(sending.payload)
        self._pending.wait(self._options.window - 1, self._options.send_timeout_s, size)
        self._pending.sent(size)
        self._client.send(sending)

    def _too_many(self) -> PulsebridgeError:
        return TransientError(
            f"the MQTT broker closes the connection at more than {_MOST_CLOSED_AT} rows of one task{self._loss()}",
            remedy="find the cause in its log (packet size, topic); omit such rows, or configure it to accept them",
        )

    def _no_letter(self, row: BadRow, why: str) -> PulsebridgeError:
        return TransientError(
            f"{row.reason}; and it closes the connection at the dead letter on {self._options.dead_letter_topic}: {why}",
            remedy="read the broker's log; allow such packets, name another deadLetterTopic, or set badRows=fail",
        )

    def _lost(self, row: BadRow, reason: int) -> PulsebridgeError:
        topic = self._options.dead_letter_topic
        return ContractError(
            f"{row.reason}; and the broker refused its dead letter on {topic} with reason 0x{reason:02x}",
            remedy="permit this user to publish there, name another deadLetterTopic, or set badRows=fail",
        )

    def _loss(self) -> str:
        loss = self._client.last_loss
        return "" if loss is None else f"; the connection was last lost because: {loss.why}"


def _failed(row: Publish, reason: int) -> PulsebridgeError:
    return TransientError(
        f"row {row.row} of the task: the MQTT broker refused a publish on {row.topic} with reason 0x{reason:02x}",
        remedy="Spark retries the task; check the broker's log and its quotas",
    )


def _closed_at(row: Publish, why: str) -> str:
    return (
        f"the MQTT broker closed the connection {CLOSES + 1} times when it was sent, the last {CLOSES} times alone, with "
        f"{len(row.payload)} bytes on {row.topic[:80]}: {why}; the row may be too large, or the topic not allowed"
    )
