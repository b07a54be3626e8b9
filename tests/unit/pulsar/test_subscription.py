"""A subscription whose broker dies, with a client that reconnects late."""

from __future__ import annotations

from typing import cast

import pytest

from bridge.errors import DeniedError, FencedError, PulsebridgeError, RefusedError, TransientError
from bridge.pulsar import subscription as module
from bridge.pulsar.client import EARLIEST, PulsarClient, ReceiveTimeout
from bridge.pulsar.subscription import Subscription


class Consumer:
    """Gives no message."""

    def __init__(self) -> None:
        self.connected = True
        self.closed = False

    def is_connected(self) -> bool:
        return self.connected and not self.closed

    def receive(self, _wait_ms: int) -> None:
        assert not self.closed
        raise ReceiveTimeout("nothing came")

    def acknowledge(self, _id: object) -> None:
        if self.closed:
            raise AlreadyClosed

    def close(self) -> None:
        self.closed = True


class AlreadyClosed(ReceiveTimeout):
    """What Pulsar's client answers for a closed consumer; any exception of its own is alike here."""


class Client:
    """Makes consumers, or fails with ``errors``, one after the other."""

    def __init__(self) -> None:
        self.made: list[Consumer] = []
        self.errors: list[PulsebridgeError] = []
        self.owned = True

    def consumer(self, *_args: object, **_more: object) -> Consumer:
        if self.errors:
            raise self.errors.pop(0)
        self.made.append(Consumer())
        return self.made[-1]

    def has_owner(self, _topic: str) -> bool:
        return self.owned


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(module, "_OWN_ATTEMPTS_S", 0.0)
    return Client()


def lost(client: Client) -> Subscription:
    """Return a subscription that has noticed the loss of its broker."""
    found = Subscription(cast(PulsarClient, client), "commands", "push", queue=1)
    found.receive(0)
    client.made[0].connected = False
    found.receive(0)
    return found


def test_a_consumer_is_replaced_once_the_topic_has_an_owner(client: Client) -> None:
    subscription = lost(client)
    client.owned = False
    subscription.receive(0)
    assert not client.made[0].closed
    client.owned = True
    subscription.receive(0)
    subscription.acknowledge(EARLIEST)  # beside the new consumer: it is lost
    subscription.receive(0)
    assert [one.closed for one in client.made] == [True, False]
    subscription.receive(0)
    assert len(client.made) == 2


def test_a_consumer_that_pulsars_client_reconnects_stays(client: Client) -> None:
    subscription = lost(client)
    client.made[0].connected = True
    subscription.receive(0)
    client.made[0].connected = False
    subscription.receive(0)
    assert not client.made[0].closed


def test_a_broker_that_dies_again_and_a_deleted_topic_are_waited_for(client: Client) -> None:
    subscription = lost(client)
    client.errors = [TransientError("away"), RefusedError("no such topic"), FencedError("the former consumer")]
    for _ in range(5):
        subscription.receive(0)
    assert [one.closed for one in client.made] == [True, False]


@pytest.mark.parametrize("error", [FencedError("another process"), DeniedError("no right")])
def test_an_owner_elsewhere_and_a_lost_right_end_it(
    client: Client, error: PulsebridgeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FENCED_S", -1.0)
    subscription = lost(client)
    client.errors = [error]
    subscription.receive(0)
    with pytest.raises(type(error)):
        subscription.receive(0)
