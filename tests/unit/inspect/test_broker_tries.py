"""The tries of a broker that does not do what ingest and push need."""

from __future__ import annotations

import pytest

from bridge.inspect.broker.bench import Bench, LostError
from bridge.inspect.broker.tries import TRIES, Outcome
from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings
from tests.support.raw_broker import CLOSE, SILENT, RawBroker
from tests.support.waiting import patient


def bench_at(port: int) -> Bench:
    mqtt = MqttSettings(port=port)
    return Bench(Settings(mqtt=mqtt), mqtt, messages=10)


def tried(name: str, port: int) -> Outcome:
    (one,) = (one for one in TRIES if one.name == name)
    return one.act(bench_at(port))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (CLOSE, "the connection was closed"),
        (SILENT, "the broker confirms 0 of 1 messages"),
        (0x97, "refused with 0x97"),
        (0, "confirmed, not delivered"),
    ],
)
def test_qos_1_that_does_not_work_is_a_failure(answer: int, result: str) -> None:
    with RawBroker(lambda _: answer) as broker:
        outcome = tried("QoS", broker.port)
    assert outcome.failed
    assert outcome.result.startswith(f"QoS 1: {result}")
    assert "pulsebridge-check/#" in outcome.follows[0]


def test_limits_of_connack_have_consequences() -> None:
    granted = b"\x21\0\7" + b"\x24\1" + b"\x25\0" + b"\x27\0\0\3\xe8" + b"\x11\0\0\0\x3c" + b"\x28\0"
    with RawBroker(granted=granted) as broker:
        outcome = tried("limits", broker.port)
    assert outcome.failed  # without wildcards
    assert [one.split(":")[0] for one in outcome.follows] == ["ingest", "push", "push", "push", "push", "ingest"]
    assert "for 60 s: give mqtt.session_expiry at most that" in outcome.follows[0]
    assert "at most 7 commands" in outcome.follows[1]


def test_a_broker_that_keeps_both_connections_of_one_client_id_fails() -> None:
    with RawBroker() as broker:
        outcome = tried("takeover", broker.port)
    assert (outcome.failed, outcome.result) == (True, "both connections stay")


def test_a_connection_that_the_broker_closes_ends_the_try() -> None:
    with RawBroker() as broker, bench_at(broker.port).peer("one") as peer:
        broker.kill()
        with pytest.raises(LostError, match="closed"):
            peer.wait(lambda: False, patient(30))
