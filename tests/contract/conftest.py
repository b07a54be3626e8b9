"""Fixtures for the contract with Pulsar: the smallest namespaces, a topic and a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.stack import provisioned


@pytest.fixture
def namespaces(stack: LocalStack) -> PulsarSettings:
    return provisioned(stack, partitions=1, command_partitions=1)


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as found:
        yield found


@pytest.fixture
def client(namespaces: PulsarSettings) -> Iterator[PulsarClient]:
    with PulsarClient(namespaces) as found:
        yield found
