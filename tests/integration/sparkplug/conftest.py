from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.settings import PulsarSettings
from tests.support.pulsar_topics import TestTopic, topic_of


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    """A topic of this test's own, with one partition."""
    with topic_of(namespaces, 1, "sparkplug") as made:
        yield made
