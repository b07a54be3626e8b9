"""A message as Pulsar's client gives it, for readers whose topic a test plays."""

from __future__ import annotations

from bridge.pulsar.client import MessageId, message_id

__all__ = ["StoredMessage"]


class StoredMessage:
    """The message at an entry of a ledger, with a key and a payload."""

    def __init__(
        self,
        entry: int,
        key: str,
        payload: bytes,
        *,
        ledger: int = 3,
        bad_key: bool = False,
        properties: dict[str, str] | None = None,
    ) -> None:
        """``bad_key``: the key is no UTF-8."""
        self._id = message_id(0, ledger, entry, -1)
        self._key = key
        self._bad_key = bad_key
        self._payload = payload
        self._properties = properties or {}

    def message_id(self) -> MessageId:
        return self._id

    def partition_key(self) -> str:
        return b"\xff".decode() if self._bad_key else self._key

    def data(self) -> bytes:
        return self._payload

    def properties(self) -> dict[str, str]:
        return self._properties

    def producer_name(self) -> str:
        return "owner"

    def publish_timestamp(self) -> int:
        return 0

    def event_timestamp(self) -> int:
        return 0
