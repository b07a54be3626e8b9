"""Fixtures for the tests of the source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from bridge.settings.pulsar import PulsarSettings
from tests.support.pulsar_topics import TestTopic, topic_of

_STREAMS: Final = frozenset({"test_kill", "test_progress", "test_restarts", "test_stream"})
"""Modules whose tests run with the hot tail and, when the long tests are asked for, without it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose what the fixture ``topic`` says of the hot tail."""
    if metafunc.module.__name__.rpartition(".")[2] in _STREAMS and "topic" in metafunc.fixturenames:
        cold = pytest.param("cold", marks=pytest.mark.long)
        metafunc.parametrize("topic", ["hot", cold], indirect=True)


@pytest.fixture
def topic(request: pytest.FixtureRequest, namespaces: PulsarSettings) -> Iterator[TestTopic]:
    """A topic of two partitions."""
    with topic_of(namespaces, partitions=2) as found:
        if getattr(request, "param", "hot") == "cold":
            found.usual["hotTailBytes"] = "0"
        yield found
