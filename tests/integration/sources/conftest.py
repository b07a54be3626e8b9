"""Fixtures for the tests of the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.settings.pulsar import PulsarSettings
from tests.support.pulsar_topics import TestTopic, topic_of


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    """A topic of two partitions."""
    with topic_of(namespaces, partitions=2) as found:
        yield found
