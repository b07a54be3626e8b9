"""One Pulsar cluster with Artemis for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsebridge.local.stack import LocalStack
from tests.support.stack import new_stack


@pytest.fixture(scope="session")
def cluster_stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """Three brokers, three bookies, ZooKeeper, a proxy, and Artemis. A test starts again what it killed."""
    with new_stack(cluster=True) as running:
        yield running
