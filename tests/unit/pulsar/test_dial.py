"""The dial by hand: addresses, and whatever answers there, only our own errors come out."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from bridge.errors import DeniedError, PulsebridgeError, RefusedError, TransientError
from bridge.pulsar.dial import addresses, credentials_remedy, dial, grant_remedy, open_connection, whom
from bridge.pulsar.dial import answering as hosts_that_answer
from bridge.pulsar.wire.broker_link import BrokerLink
from bridge.pulsar.wire.client import Brokers
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.ports import free_ports
from tests.support.waiting import patient


@contextmanager
def answering(data: bytes) -> Iterator[PulsarSettings]:
    """Listen once, read what comes, answer with ``data`` and close."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as link:
                link.recv(65536)
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
                link.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield PulsarSettings(service_url=f"pulsar://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(patient(10))


def frame(command: bytes) -> bytes:
    return struct.pack("!II", len(command) + 4, len(command)) + command


CONNECTED = frame(b"\x08\x03\x1a\x0a\x0a\x08Pulsar x")


def test_connected_gives_the_brokers_name() -> None:
    # BaseCommand: type 3 (CONNECTED), connected { server_version: "Pulsar x" }
    with answering(CONNECTED) as found:
        assert dial(found, 5) == "Pulsar x"


def test_an_error_names_the_brokers_reason() -> None:
    # type 14 (ERROR), error { request_id: 0, error: 3 (AuthenticationError), message: "bad" }
    with (
        answering(frame(b"\x08\x0e\x72\x09\x08\x00\x10\x03\x1a\x03bad")) as found,
        pytest.raises(DeniedError, match=r"does not accept our credentials: bad .*pulsar\.token"),
    ):
        dial(found, 5)


def test_a_proxy_without_the_broker_behind_it_names_both_and_may_do_better_later() -> None:
    # type 14 (ERROR), error { request_id: 0, error: 6 (ServiceUnitNotReady), message: "away" }
    with (
        answering(frame(b"\x08\x0e\x72\x0a\x08\x00\x10\x06\x1a\x04away")) as found,
        pytest.raises(TransientError, match=r"127\.0\.0\.1:\d+ for broker:1 refused .* ServiceUnitNotReady, away"),
    ):
        open_connection(found, *addresses(found.service_url)[0], 5, proxy_to="broker:1")


@pytest.mark.parametrize("data", [b"\x15\x03\x01\x00\x02\x02\x16", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_without_pulsars_protocol_is_refused_with_the_setting(data: bytes) -> None:
    with answering(data) as found, pytest.raises(RefusedError, match=r"check pulsar\.service_url"):
        dial(found, 5)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_whatever_is_answered_only_our_errors_come_out(command: bytes) -> None:
    with answering(frame(command)) as found:
        try:
            answer = dial(found, 5)
        except PulsebridgeError as e:
            answer = str(e)
    assert len(answer.splitlines()) <= 1


def test_a_port_that_closes_without_a_word_may_do_better_later() -> None:
    with answering(b"") as found, pytest.raises(TransientError, match="without an answer"):
        dial(found, 5)


def test_a_closed_port_is_transient_and_every_address_is_tried() -> None:
    (port,) = free_ports(1)
    with pytest.raises(TransientError, match="cannot be reached"):
        dial(PulsarSettings(service_url=f"pulsar://127.0.0.1:{port}"), 5)
    with answering(CONNECTED) as found:
        both = found.service_url.replace("://", f"://127.0.0.1:{port},")
        assert dial(PulsarSettings(service_url=both), 5) == "Pulsar x"


def test_addresses() -> None:
    assert addresses("pulsar://a,b:1") == [("a", 6650), ("b", 1)]
    assert addresses("pulsar+ssl://[::1]") == [("::1", 6651)]
    for wrong in ("pulsar://", "a:6650", "pulsar://a:b", "pulsar://a,,b", "pulsar://a:99999"):
        with pytest.raises(RefusedError, match="an address of a broker that is none"):
            addresses(wrong)


def test_the_hosts_that_answer_are_named_to_pulsars_client() -> None:
    (closed,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as hanging, answering(CONNECTED) as found:
        alone = found.service_url.removeprefix("pulsar://")
        away = f"127.0.0.1:{closed},127.0.0.1:{hanging.getsockname()[1]}"
        several = PulsarSettings(service_url=f"pulsar://{away},{alone}")
        assert hosts_that_answer(several) == f"pulsar://{alone}"
        none = PulsarSettings(service_url=f"pulsar://{away}", connection_timeout="200ms")
        assert hosts_that_answer(none) == f"pulsar://{away}"


def test_a_host_that_refuses_us_answers() -> None:
    (closed,) = free_ports(1)
    with answering(frame(b"\x08\x0e\x72\x09\x08\x00\x10\x03\x1a\x03bad")) as found:
        several = found.service_url.replace("://", f"://127.0.0.1:{closed},")
        assert hosts_that_answer(PulsarSettings(service_url=several)) == found.service_url


def test_role_and_missing_rights_are_named_without_the_token() -> None:
    token = jwt.encode({"sub": "bridge", "exp": 1}, b"k" * 32)
    mine = PulsarSettings(token=SecretStr(token))
    texts = [whom(mine), credentials_remedy(mine), grant_remedy(mine, "persistent://t/ns/x", "produce")]
    assert texts[0] == "the role 'bridge'"
    assert "expired" in texts[1]
    assert "pulsar-admin namespaces grant-permission t/ns --role bridge --actions produce" in texts[2]
    assert not any(token in line or token.rsplit(".", 1)[1] in line for line in texts)
    assert "it requires credentials" in credentials_remedy(PulsarSettings())
    assert whom(PulsarSettings(token=SecretStr("no.json.here"))) == "this role"


def test_a_connection_that_is_made_while_the_client_is_closed_is_closed_too() -> None:
    with answering(CONNECTED) as found:
        brokers: Brokers[BrokerLink] = Brokers(found, BrokerLink, seen=lambda *_: brokers.close())
        with pytest.raises(TransientError, match="the client was closed"):
            brokers.owner("persistent://public/default/topic", "reading", time.monotonic() + patient(10))
        (made,) = brokers.connected()
        assert made.fileno() == -1
