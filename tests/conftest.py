"""Fixtures for every test: the local stack, namespaces of one's own, and the check that nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bridge.local.stack import LocalStack
from bridge.settings.pulsar import PulsarSettings
from tests.support.leaks import Footprint, leaks_since
from tests.support.stack import new_stack, provisioned, session_stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = Footprint.now()
    yield
    leaks = leaks_since(before)
    assert not leaks, "left behind by the tests:\n" + "\n".join(leaks)


@pytest.fixture(scope="session")
def stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """Pulsar and Artemis, started once for the whole session; tests that kill servers take ``private_stack``."""
    with session_stack() as running:
        yield running


@pytest.fixture
def private_stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """Pulsar and Artemis for one test alone, which may kill and restart them."""
    with new_stack() as running:
        yield running


@pytest.fixture
def namespaces(stack: LocalStack) -> PulsarSettings:
    """Settings of the session's Pulsar with two fresh, provisioned namespaces."""
    return provisioned(stack)


@pytest.fixture(scope="session")
def spark(_nothing_left_behind: None) -> Iterator[SparkSession]:
    """One Spark session for the whole run, with Delta, the source and the sinks."""
    from tests.support.spark import running_session

    with running_session() as session:
        yield session
