"""Topics read back by the bare client, from their beginning to their present end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pulsar
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    wait_fixed,
)

from bridge.errors import TransientError
from bridge.settings.pulsar import PulsarSettings

__all__ = ["patiently", "quiet", "read_back"]

patiently = Retrying(
    retry=retry_if_exception_type((pulsar.PulsarException, TransientError))
    & retry_if_not_exception_type((pulsar.TopicNotFound, pulsar.AuthorizationError)),
    stop=stop_after_delay(90),
    wait=wait_fixed(0.5),
    reraise=True,
)
"""For what a test only looks at: a Pulsar that has just been restarted answers late, and that is not the question."""


def quiet() -> pulsar.FileLogger:
    """A logger for clients of the tests: their errors are raised, the log would only repeat them."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def read_back(settings: PulsarSettings, topic: str) -> Iterator[tuple[int, pulsar.Message]]:
    """Yield the messages of a topic that exists, partition by partition, each with the number of its partition."""
    client = pulsar.Client(settings.service_url, logger=quiet())
    try:
        for number, partition in enumerate(patiently(client.get_topic_partitions, topic)):
            reader = patiently(client.create_reader, partition, pulsar.MessageId.earliest, receiver_queue_size=5000)
            while reader.has_message_available():
                yield number, reader.read_next(30_000)
            reader.close()
    finally:
        client.close()
