"""Ingest processes share the sessions by themselves: others join, leave, die and freeze under load (H7)."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.integration.ingest.test_ingest_fleet import (
    LINES,
    Fleet,
    assert_all_in_order,
    fleet,
    fleet_settings,
    ids,
    load,
)
from tests.support.ingest import remembered
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.thorough, pytest.mark.timeout(300)]

SUBSCRIBED = "subscribed at the MQTT broker"


def held(process: Fleet) -> int:
    """Return how many sessions a process reads, if no other process took one from it."""
    return process.log.count(SUBSCRIBED) - process.log.count("ingest stops")


def share(processes: Sequence[Fleet], shares: Sequence[int]) -> None:
    poll_for(lambda: sorted(map(held, processes)) == sorted(shares), 60, f"shares of {shares}", every=0.2)


def test_h7_workers_join_leave_and_die_under_load_while_the_others_keep_their_sessions(
    broker: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(broker, protocol="5")
    settings = fleet_settings(mqtt, namespaces)
    with ExitStack() as stack:

        def start(name: str) -> Fleet:
            (tmp_path / name).mkdir()
            return stack.enter_context(fleet(settings, tmp_path / name, "--shard", "auto"))

        first = start("first")
        share([first], [LINES])
        devices = stack.enter_context(load(mqtt))
        devices.await_more(200)
        second = start("second")
        share([first, second], [2, 2])
        third = start("third")
        share([first, second, third], [2, 1, 1])
        devices.await_more(200)
        third.drain()
        share([first, second], [2, 2])
        devices.await_more(200)
        poll_for(lambda: set(devices.confirmed[:-100]) <= set(ids(namespaces)), 60, "what was published", every=0.5)
        found = ids(namespaces)
        assert len(found) == len(set(found)), "a session that is handed over repeats nothing"
        connected = first.log.count("connected to the MQTT broker")
        assert connected <= LINES + 1, "what a process keeps stays connected; it may get one session of the third"
        second.process.kill()
        share([first], [LINES])
        devices.await_more(200)
        devices.stop()
        assert_all_in_order(namespaces, devices.confirmed)
        first.drain()
    assert sorted(remembered(namespaces)) == [f"{mqtt.client_id}-{n}" for n in range(LINES)]
    assert "moving" not in first.log + second.log + third.log


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_frozen_worker_is_replaced_and_takes_no_session_back_by_force(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, protocol: str
) -> None:
    """No broker says with MQTT 3.1.1 that another process took a session over."""
    mqtt = mqtt_settings(stack, protocol=protocol)
    settings = fleet_settings(mqtt, namespaces)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with (
        fleet(settings, folders[0], "--shard", "auto") as first,
        fleet(settings, folders[1], "--shard", "auto") as second,
    ):
        share([first, second], [2, 2])
        with load(mqtt) as devices:
            devices.await_more(200)
            first.process.send_signal(signal.SIGSTOP)
            share([second], [LINES])
            devices.await_more(200)
            first.process.send_signal(signal.SIGCONT)
            share([second], [2])  # the first one, here again, gets its share in order
            devices.await_more(200)
            devices.stop()
        assert_all_in_order(namespaces, devices.confirmed)
        first.drain()
        second.drain()
    assert second.log.count("connected to the MQTT broker") <= LINES + 2, "the sessions do not go to and fro"
