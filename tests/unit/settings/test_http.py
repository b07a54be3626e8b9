"""Settings of HTTP: it does not listen to other machines by accident, and tokens come from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.settings.http import HttpSettings
from bridge.settings.loading import load


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def http(**given: Any) -> HttpSettings:
    return load(None, {f"http.{name}": value for name, value in given.items()}).http


DEVICES = [{"topics": ["devices/{name}/#"]}]
TLS = {"tls_port": 8443, "tls_certificate": "c.pem", "tls_private_key": "k.pem"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "tokens": "one #"},
        {"host": "0.0.0.0", "allow_anonymous": True, "allowed_hosts": ["gateway.example"]},
        {"host": "gateway.example", "allow_anonymous": True},
        {"host": "0.0.0.0", "port": None, "tls_client_ca": "ca.pem", "certificates": DEVICES, **TLS},
    ],
)
def test_loopback_or_guarded_is_taken(given: dict[str, Any]) -> None:
    http(**given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host": "0.0.0.0"}, "any client could publish"),
        ({"host": "broker.example"}, "any client could publish"),
        (
            {"host": "0.0.0.0", "tls_client_ca": "ca.pem", "certificates": DEVICES, **TLS},
            "any client could publish",
        ),  # the plain port is open
        ({"host": "0.0.0.0", "allow_anonymous": True}, "needs allowed_hosts"),
        ({"port": None}, "both null"),
        ({"tls_port": 8443}, "tls_port needs tls_certificate"),
        ({"tls_certificate": "c.pem"}, "belong together"),
        ({"tls_client_ca": "ca.pem"}, "needs tls_port"),
        ({"tls_client_ca": "ca.pem", **TLS}, "give the topics of the clients"),
        ({"certificates": DEVICES}, "belong together"),
        ({"certificates": [{"topics": ["a/#/b"]}]}, "nothing may follow"),
        ({"certificates": [{"topics": []}]}, "topics"),
        ({"tokens": " \n# none"}, "contains no token"),
        ({"tokens": "secret"}, "tokens, line 1: it has no topic filter"),
        ({"tokens": "secret #\nsecret a/#"}, "tokens, line 2: an earlier line has the same token"),
        ({"tokens": "secret a/#/b"}, "tokens, line 1: filter 'a/#/b'"),
    ],
)
def test_what_is_open_or_contradictory_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        http(**given)
    assert why in str(caught.value)


def test_tokens_come_from_a_file_and_follow_it_with_their_topics() -> None:
    file = Path("tokens")
    file.write_text("# the gateway\none #\ntwo plant/7/# plant/+/state\n", encoding="utf-8")
    made = http(tokens_file="tokens")
    assert topics(made) == ({"one": ["#"], "two": ["plant/7/#", "plant/+/state"]}, [])
    assert "one" not in made.model_dump_json()
    file.write_text("four\nfive #\n", encoding="utf-8")
    found, (problem,) = topics(made)
    assert found == {"five": ["#"]}
    assert "four" not in problem


def topics(made: HttpSettings) -> tuple[dict[str, list[str]], list[str]]:
    found, problems = made.token_topics()
    return {token: [one.mqtt for one in filters] for token, filters in found.items()}, problems
