"""What a task does with rows that a broker does not take, against a broker by hand that says so in its own way."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence

import pytest

from bridge.contract.commands import Problem
from bridge.errors import ContractError, TransientError
from bridge.mqtt.types import PublishProperties
from bridge.settings.mqtt import MqttSettings
from sinks.messages import BadRow
from sinks.mqtt_rows import Plan, Publish
from sinks.mqtt_writer import write
from sinks.options import MqttOptions
from tests.support.mqtt_packets import Delivered
from tests.support.raw_broker import CLOSE, RawBroker

FIVE = Plan(None, True, False)
DEAD = "dead"


def maximum(packet_bytes: int, *, qos: int = 2, retain: bool = True) -> bytes:
    """Properties of a CONNACK (MQTT 5, 3.2.2.3)."""
    limits = b"\x27" + packet_bytes.to_bytes(4, "big")
    return limits + (b"" if qos == 2 else bytes([0x24, qos])) + (b"" if retain else b"\x25\0")


def publish(row: int, payload: bytes = b"p", *, qos: int = 1, retain: bool = False, topic: str = "t") -> Publish:
    return Publish(row, topic, payload, qos, retain, PublishProperties())


def written(broker: RawBroker, rows: Sequence[Publish | BadRow], **changes: object) -> tuple[int, int]:
    settings = MqttSettings(port=broker.port, protocol="5", client_id="pb-sink", reconnect_min="10ms")
    options = MqttOptions(settings, None, DEAD, **{"send_timeout_s": 20.0} | changes)  # type: ignore[arg-type]
    return write(rows, options, FIVE)


def letters(broker: RawBroker) -> list[dict[str, object]]:
    return [json.loads(one.payload) for one in broker.taken if one.topic == DEAD]


def refuses(most: int) -> Callable[[Delivered], int]:
    return lambda one: CLOSE if len(one.payload) > most else 0


def test_a_row_that_the_broker_refuses_is_a_bad_row_and_the_others_are_written() -> None:
    rows = [
        publish(0), publish(1, b"x" * 3000), publish(2, qos=2), publish(3, retain=True), publish(4, qos=0), publish(5),
    ]  # fmt: skip
    with RawBroker(refuses(2000), maximum(2000, qos=1, retain=False)) as broker:
        assert written(broker, rows) == (3, 3)
        assert broker.connections == 1, "nothing went out at which it closes"
        assert max(broker.sizes) <= 2000
    large, qos, retain = letters(broker)
    assert [(one["row"], one["field"]) for one in (large, qos, retain)] == [
        (1, "payload"),
        (2, "qos"),
        (3, "retain"),
    ]
    assert "at most 2000 (Maximum Packet Size)" in str(large["reason"])
    assert "cut" not in qos
    head = base64.b64decode(str(large["payload_base64"]))
    assert 0 < len(head) < 2000
    assert (b"x" * 3000).startswith(head)
    assert large["cut"] == ["payload_base64"]
    assert large["payload_bytes"] == 3000
    assert large["payload_sha256"] == hashlib.sha256(b"x" * 3000).hexdigest()


@pytest.mark.parametrize("most", [1000, 20_000, 70_000, 3_000_000])
def test_a_letter_is_as_large_as_the_broker_takes_at_most(most: int) -> None:
    rows = [publish(0, bytes(range(256)) * (most // 200), topic="ü" * 30_000)]
    with RawBroker(lambda _: 0, maximum(most)) as broker:
        assert written(broker, rows) == (0, 1)
    assert most - 12 <= broker.sizes[-1] <= most
    assert letters(broker)[0]["cut"] == ["payload_base64", "mqtt_topic"]


def test_a_broker_of_qos_0_gets_its_letters_so() -> None:
    with RawBroker(lambda _: 0, maximum(2000, qos=0)) as broker:
        assert written(broker, [publish(0, qos=0), publish(1, qos=1)]) == (1, 1)


def test_a_dead_letter_that_does_not_fit_is_reported() -> None:
    with (
        RawBroker(lambda _: 0, maximum(60)) as broker,
        pytest.raises(ContractError, match=r"row 0 of the task, payload: .* accepts no dead letter .*maximum packet"),
    ):
        written(broker, [publish(0, b"x" * 100)])


def test_rows_that_the_broker_refuses_are_buried_while_the_others_go_on() -> None:
    with RawBroker(lambda one: 0 if one.topic == DEAD else 0x87) as broker:
        assert written(broker, [publish(n) for n in range(500)], window=10) == (0, 500)
    assert len(letters(broker)) == 500
    kept = most = 0
    for one in broker.came:
        kept += -1 if one.topic == DEAD else 1
        most = max(most, kept)
    assert most <= 2 * 10, "no more are kept than were under way"


def test_a_row_at_which_the_broker_closes_the_connection_is_found_and_the_others_go_on() -> None:
    rows = [publish(n, b"x" * 3000 if n in (4, 5, 29) else b"%d" % n) for n in range(30)]
    with RawBroker(refuses(2000)) as broker:  # it says nothing of its limits
        assert written(broker, rows, window=10) == (27, 3)
        assert broker.connections <= 1 + 3 * 3, "no more than it takes to be sure"
    by_row = {str(one["row"]): one for one in letters(broker)}
    assert sorted(by_row) == ["29", "4", "5"]
    assert "closed the connection 3 times when it was sent" in str(by_row["4"]["reason"])
    assert by_row["4"]["payload_bytes"] == 3000
    taken = [one.payload for one in broker.taken if one.topic != DEAD]
    wanted = [row.payload for row in rows if len(row.payload) < 10]
    assert list(dict.fromkeys(taken)) == wanted, "in their order, whatever comes twice"


def test_a_letter_at_which_the_broker_closes_is_written_smaller() -> None:
    bad = [BadRow(0, Problem("qos", "is 9"), b"x" * 3000, "", "t")]
    with RawBroker(refuses(2000)) as broker:
        assert written(broker, [*bad, publish(1, b"y" * 1900)]) == (1, 1)
    (letter,) = letters(broker)
    assert letter["payload_bytes"] == 3000


def test_what_was_under_way_when_a_broker_died_is_no_bad_row() -> None:
    deaths = []

    def dies(one: Delivered) -> int:
        if one.payload == b"50" and len(deaths) < 2:
            deaths.append(one)
            return CLOSE
        return 0

    with RawBroker(dies) as broker:
        assert written(broker, [publish(n, b"%d" % n) for n in range(100)]) == (100, 0)
    assert len(deaths) == 2


def test_a_broker_that_closes_at_everything_fails_the_task() -> None:
    with (
        RawBroker(lambda _: CLOSE) as broker,
        pytest.raises(TransientError, match=r"row 0 of the task, payload: .* closes the connection at the dead"),
    ):
        written(broker, [publish(n) for n in range(5)])


def test_a_row_at_which_the_broker_closes_fails_the_task_where_bad_rows_do() -> None:
    with RawBroker(refuses(2000)) as broker, pytest.raises(ContractError, match="row 1 of the task, payload"):
        written(broker, [publish(0), publish(1, b"x" * 3000)], fail_on_bad_rows=True)


def test_a_broker_that_closes_at_too_many_rows_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.mqtt_writer._MOST_CLOSED_AT", 3)
    with (
        RawBroker(refuses(2000)) as broker,
        pytest.raises(TransientError, match="closes the connection at more than 3 rows"),
    ):
        written(broker, [publish(n, b"x" * 3000) for n in range(9)])
