"""Pulsar's client reports a timeout without a host; our error names it."""

from __future__ import annotations

import pytest

from bridge.errors import TransientError
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.ports import free_ports


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_host_that_failed_is_named(hosts: int) -> None:
    ports = free_ports(hosts)
    url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    match = f"127.0.0.1:{ports[-1]} cannot be reached"
    with PulsarClient(PulsarSettings(service_url=url, operation_timeout="1s")) as client:  # type: ignore[arg-type]
        with pytest.raises(TransientError, match=f"looking up the partitions of .*{match}"):
            client.partitions("persistent://a/b/c")
        with pytest.raises(TransientError, match=match):
            client.batch_producer("persistent://a/b/c")
