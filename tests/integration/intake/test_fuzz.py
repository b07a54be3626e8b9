"""Any message into a real Pulsar: none raises, none stops the others, none vanishes."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from bridge import contract
from bridge.intake.flow import Reading
from bridge.intake.intake import Intake
from bridge.intake.provisioning import known_topics, provision
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.routing.mapper import Mapper
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from tests.support.ingest import dead_letters, stored
from tests.support.messages import messages

pytestmark = pytest.mark.stack

RULES = (
    TopicRule(name="device", filter="a/+device/#", topic="a", device="{device}", command_topic="c/{device}"),
    TopicRule(name="json", filter="b/#", topic="b", device="{json:$.id}"),
    TopicRule(name="user", filter="s/+site/#", topic="s-{site}", device="{site}/{user:u}"),
)


class _Flow:
    """An intake without a link, and what it was given."""

    def __init__(self, intake: Intake, woken: threading.Event) -> None:
        self.intake = intake
        self.woken = woken
        self.written = 0

    def take(self, given: list[Message]) -> None:
        readings: list[Reading] = []
        for message in given:
            reading = Reading(1, message.mid, time.monotonic())
            if self.intake.take(reading, message) is None:
                readings.append(reading)
        open_, deadline = set(map(id, readings)), time.monotonic() + 60
        while open_:
            assert time.monotonic() < deadline, f"{len(open_)} messages are neither stored nor dead letters"
            open_ -= {id(reading) for reading in self.intake.turn(time.monotonic())}
            self.woken.wait(0.02)
            self.woken.clear()
        assert self.intake.in_flight == 0
        assert self.intake.in_flight_bytes == 0
        self.written += len(readings)


def shown_limit(link: str) -> float | None:
    return REGISTRY.get_sample_value("pulsebridge_ingest_in_flight_limit", {"link": link})


def test_any_message_is_stored_or_a_dead_letter_and_all_are_there(namespaces: PulsarSettings) -> None:
    ingest = IngestSettings(routes=RULES, filters=("#",), allow_loopback=True, limits={"topics": 6})
    mine = Settings(pulsar=namespaces.model_copy(update={"partitions": 1}), ingest=ingest)
    woken = threading.Event()
    with PulsarAdmin(mine.pulsar) as admin, PulsarClient(mine.pulsar) as client:
        provision(admin)
        mapper = Mapper(mine)
        intake = Intake(mine, client, admin, mapper=mapper, link="f", protocol="5", limit=1000, wake=woken.set)
        flow = _Flow(intake, woken)

        @settings(deadline=None, max_examples=40, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(messages(), max_size=20))
        def fuzz(given_: list[Message]) -> None:
            flow.take(given_)

        try:
            fuzz()
            assert shown_limit("f") == 1000
        finally:
            intake.close()
        assert shown_limit("f") is None, "a standby has no alerts of a link"
        found = [m for topic in known_topics(admin) for m in stored(mine.pulsar, topic)]
    dead = dead_letters(mine.pulsar)
    assert len(found) + len(dead) == flow.written > 0
    assert found
    assert all(m.properties[contract.P_DEAD_REASON] for m in dead)
