"""Messages of the size that Pulsar still takes, many at once: what the jobs read and write at once is bounded in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cbor2
import pulsar
import pytest

from bridge import contract
from bridge.pulsar.admin import PulsarAdmin
from tests.chaos.tables_beside import TablesBeside
from tests.support.reading_back import quiet
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from bridge.settings import PulsarSettings

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.long]

SIZES = [1_000_000] * 300 + [4_500_000] * 40


@pytest.mark.timeout(600)
def test_h37_hundreds_of_large_messages_end_no_job(namespaces: PulsarSettings, tmp_path: Path) -> None:
    topic = namespaces.readings_topic("large")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
    client = pulsar.Client(namespaces.service_url, logger=quiet())
    producer = client.create_producer(
        contract.partition_name(topic, 0),
        compression_type=pulsar.CompressionType.LZ4,
        block_if_queue_full=True,
    )
    for n, size in enumerate(SIZES):
        properties = {
            contract.P_INGEST: contract.encode_ingest(link="test", protocol="5", rule=None),
            contract.P_DEVICE: "d",
            contract.P_TOPIC: f"large/d/{'y' if n % 2 else 'x'}",
        }
        payload = cbor2.dumps({"ts": "2026-01-02T11:00:00Z", "value": 1.0, "pad": bytes([n % 250]) * size})
        producer.send_async(payload, lambda *_: None, partition_key="d", properties=properties)
    producer.flush()
    client.close()
    job = TablesBeside(namespaces, "large", ("large",), tmp_path)
    try:
        job.start()

        def all_in_tables() -> bool:
            assert not job.interruptions(), job.interruptions()
            return job.rows("bronze") == job.rows("typed") + job.rows("quarantine") == len(SIZES)

        poll_for(all_in_tables, 240, "all messages in one of the two tables", every=1)
    finally:
        job.end()
