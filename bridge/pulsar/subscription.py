"""A durable exclusive subscription that follows its topic to another broker sooner than Pulsar's client does.

After each failed attempt Pulsar's client doubles its pause, up to a minute, and its Python package cannot change that. If
a broker dies, a consumer may so stand still for twice as long as its topic has no owner. ``Subscription`` looks the owner
up itself, and subscribes with a new consumer once the owner answers.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any, Final

from bridge.errors import DeniedError, FencedError, RefusedError, TransientError
from bridge.loggers import get_logger
from bridge.pulsar.client import Message, MessageId, PulsarClient, our_errors, received
from bridge.pulsar.sending import close_quietly

__all__ = ["Subscription"]

log = get_logger("pulsar")

_OWN_ATTEMPTS_S: Final = 1.0
"""The client follows a topic that is unloaded within this time."""
_FENCED_S: Final = 5.0
"""So long the broker may take to notice that the former consumer is closed."""


class Subscription:
    """The one consumer of a topic or partition, and its successors. One thread receives, any thread acknowledges.

    A successor gets all messages that are not acknowledged, in order, as after a reconnect of Pulsar's client.
    """

    def __init__(self, client: PulsarClient, topic: str, name: str, *, queue: int) -> None:
        """Subscribe as ``PulsarClient.consumer``, with the same errors."""
        self.topic = topic
        self._client = client
        self._subscribe = partial(client.consumer, topic, name, queue=queue)
        self._consumer: Any = self._subscribe()
        self._lost_at = math.inf  # connected
        self._closed = False  # the consumer, and it has no successor

    def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message. Raises TransientError."""
        with our_errors(f"asking for the end of {self.topic}"):
            last: MessageId = self._consumer.get_last_message_id()
            return last

    def receive(self, wait_ms: int) -> Message | None:
        """Return the next message, None if none arrives in ``wait_ms``. It may take longer while the topic has no owner.

        Raises FencedError if another process has subscribed meanwhile, DeniedError if Pulsar no longer lets us, and
        TransientError if the client is closed.
        """
        if self._closed:
            self._resubscribe(wait_ms)
            return None
        message = received(self._consumer.receive, wait_ms, f"reading {self.topic}")
        now = time.monotonic()
        if message is not None or self._consumer.is_connected():
            self._lost_at = math.inf
        elif self._lost_at == math.inf:
            self._lost_at = now
        elif now - self._lost_at >= _OWN_ATTEMPTS_S and self._client.has_owner(self.topic):
            self._closed, self._lost_at = True, now
            close_quietly(self._consumer)
        return message

    def _resubscribe(self, wait_ms: int) -> None:
        try:
            self._consumer, self._closed = self._subscribe(), False
            log.info("a subscription follows its topic to another broker", topic=self.topic)
            return
        except DeniedError:
            raise
        except FencedError as e:
            if time.monotonic() - self._lost_at > _FENCED_S:
                raise
            why = e.what
        except (TransientError, RefusedError) as e:  # the broker has died too, or the topic was deleted
            why = e.what
        log.debug("the subscription is not open yet", topic=self.topic, why=why)
        time.sleep(wait_ms / 1000)

    def acknowledge(self, message_id: MessageId, *, cumulative: bool = False) -> None:
        """Acknowledge a message, or all up to it. If that is lost, as beside a new consumer, the message arrives again."""
        try:
            with our_errors(f"acknowledging on {self.topic}"):
                (self._consumer.acknowledge_cumulative if cumulative else self._consumer.acknowledge)(message_id)
        except TransientError as e:
            log.debug("an acknowledgement was lost", topic=self.topic, why=e.what)
