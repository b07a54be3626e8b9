"""Settings of HTTP: nobody opens it to the world by accident, and tokens come from files."""

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


TLS = {"tls_port": 8443, "tls_certificate": "c.pem", "tls_private_key": "k.pem"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "tokens": "one"},
        {"host": "0.0.0.0", "allow_anonymous": True},
        {"host": "0.0.0.0", "port": None, "tls_client_ca": "ca.pem", **TLS},
    ],
)
def test_loopback_or_guarded_is_taken(given: dict[str, Any]) -> None:
    http(**given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host": "0.0.0.0"}, "anybody could publish"),
        ({"host": "broker.example"}, "anybody could publish"),
        (
            {"host": "0.0.0.0", "tls_client_ca": "ca.pem", **TLS},
            "anybody could publish",
        ),  # the plain port is open
        ({"port": None}, "both null"),
        ({"tls_port": 8443}, "tls_port needs tls_certificate"),
        ({"tls_certificate": "c.pem"}, "belong together"),
        ({"tls_client_ca": "ca.pem"}, "needs tls_port"),
        ({"tokens": " , "}, "holds no token"),
    ],
)
def test_what_is_open_or_contradictory_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        http(**given)
    assert why in str(caught.value)


def test_tokens_come_from_a_file_and_follow_it() -> None:
    Path("tokens").write_text("one\ntwo, three\n", encoding="utf-8")
    made = http(tokens_file="tokens")
    assert made.token_list() == ["one", "two", "three"]
    assert "one" not in made.model_dump_json()
    Path("tokens").write_text("four", encoding="utf-8")
    assert made.token_list() == ["four"]
