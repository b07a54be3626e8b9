"""The Pulsar cluster that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsebridge.local.cluster import LocalCluster
from pulsebridge.local.stack import LocalStack
from tests.support.stack import new_stack


@pytest.fixture(scope="package")
def cluster_stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """A Pulsar cluster with Artemis: three brokers, three bookies, ZooKeeper, a proxy. A test restarts what it kills."""
    with new_stack(cluster=True) as running:
        yield running


@pytest.fixture
def cluster(cluster_stack: LocalStack) -> LocalCluster:
    """Its Pulsar."""
    assert cluster_stack.cluster is not None
    return cluster_stack.cluster
