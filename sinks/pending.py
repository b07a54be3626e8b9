"""Pulsar's receipts for the messages of one task."""

from __future__ import annotations

from bridge.pending import Pending
from bridge.pulsar.client import OK, MessageId
from bridge.pulsar.errors import as_our_error

__all__ = ["Receipts"]


class Receipts(Pending):
    """Messages to Pulsar and their receipts."""

    def __init__(self) -> None:
        super().__init__(
            "messages have no receipt from Pulsar",
            remedy="Spark retries the task; check that Pulsar is up, or raise sendTimeoutMs",
        )

    def answered(self, result: object, _id: MessageId, size: int = 0) -> None:
        """Count a receipt for this many bytes. Pulsar's client calls it on its own thread; it must not raise."""
        self.done(None if result == OK else as_our_error(result, "writing a row"), size)
