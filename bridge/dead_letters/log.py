"""Reader of the dead letter topic, partition by partition. It selects nothing."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.contract import DEAD_LETTERS_TOPIC, NOTE_REPLAYED
from bridge.contract.commands import CommandPosition
from bridge.dead_letters.records import DeadLetter, LetterId, Note, note_of
from bridge.errors import TerminalError
from bridge.pulsar.client import Message, PulsarClient
from bridge.pulsar.messages import stored_message
from bridge.pulsar.topic_end import read_partition

__all__ = ["DeadLetterLog", "record_of"]


class DeadLetterLog:
    """The dead letter topic of one installation. Raises TransientError while Pulsar cannot be reached."""

    def __init__(self, client: PulsarClient) -> None:
        self._client = client
        self.topic = client.settings.system_topic(DEAD_LETTERS_TOPIC)
        self.partitions = client.partitions(self.topic)
        if not self.partitions:
            raise TerminalError(
                f"the dead letter topic {self.topic} does not exist",
                remedy="check pulsar.tenant and pulsar.system_namespace; ingest creates it at its first start",
            )

    def scan(self, partition: int) -> Iterator[DeadLetter | Note]:
        """Yield the records of one partition from its beginning to its end, which may advance meanwhile."""
        name = self.partitions[partition]
        for message in read_partition(self._client, name, queue=200):
            yield record_of(message, partition)

    def replayed(self, partition: int) -> set[CommandPosition]:
        """Return the positions of the replayed letters of one partition."""
        found: set[CommandPosition] = set()
        for record in self.scan(partition):
            if isinstance(record, Note) and record.kind == NOTE_REPLAYED:
                found |= record.replayed
        return found


def record_of(message: Message, partition: int) -> DeadLetter | Note:
    """Return the record of a message of the dead letter topic."""
    stored = stored_message(message)
    note = note_of(stored.properties, stored.payload)
    if note is not None:
        return note
    return DeadLetter(
        LetterId(partition, stored.position),
        stored.key,
        stored.payload,
        stored.properties,
        message.event_timestamp(),
        stored.published_ms * 1000,
        stored.problem,
    )
