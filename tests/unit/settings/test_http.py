"""Settings of HTTP: it does not listen to other machines by accident, and tokens come from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.settings import Settings
from bridge.settings.fetch import Status, status_of
from bridge.settings.http import HttpSettings
from bridge.settings.loading import load
from bridge.settings.push import PresenceRule


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
        TLS,  # both ports
        {"port": 0, **TLS, "tls_port": 0},
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
        ({"port": 8443, **TLS}, "port and tls_port are both 8443: give each its own"),
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


STATUS = [{"filter": "devices/+device/status"}]
COMMANDS = ["devices/{device}/commands"]


def fetching(topics: list[str] = COMMANDS, rules: list[dict[str, Any]] = STATUS, **given: Any) -> Settings:
    values = {"http.commands.topics": topics, "push.presence.rules": rules}
    return load(None, values | {name.replace("__", "."): value for name, value in given.items()})


def test_devices_may_fetch_commands_where_push_learns_that_they_do() -> None:
    assert fetching().fetch_mqtt(fetching().http.commands).port == 1883
    links = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
    other = fetching(ingest__links=links, http__commands__link="b")
    assert other.fetch_mqtt(other.http.commands).port == 2
    fetching(["{device}/do/#", "all/{device}"], push__position_in="topic", mqtt__protocol="3.1.1")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rules": []}, "http.commands needs a rule in push.presence.rules"),
        ({"rules": [{"filter": "+site/+device/status"}]}, "with the device as the only wildcard"),
        ({"rules": [{"filter": "devices/+device/#rest"}, *STATUS]}, "with the device as the only wildcard"),
        ({"topics": ["devices/commands"]}, "must contain {device}"),
        ({"topics": ["devices/{name}/{device}"]}, "must contain {device}"),
        ({"topics": ["devices/{device}/+x"]}, "write {device} for the device, and no other name"),
        ({"topics": ["devices/{device}/#/x"]}, "nothing may follow"),
        ({"http__commands__link": "a"}, "http.commands.link: no link is named 'a'"),
        ({"mqtt__protocol": "3.1.1"}, "its commands have no position"),
        ({"http__commands__client_id": "pulsebridge"}, "begins the client id 'pulsebridge-push'"),
    ],
)
def test_commands_that_no_device_could_fetch_are_one_line(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fetching(**given)
    assert why in str(caught.value)


def test_the_status_of_a_device_is_what_the_first_matching_rule_makes_of_it() -> None:
    rules = [
        PresenceRule(filter="sites/+site/+device", absent=("x",)),
        PresenceRule(filter="state/+device", absent=("", "gone", "online")),
        PresenceRule(filter="state/#device"),
    ]
    assert status_of(rules, "d") == Status("state/d", b"alive", b"gone")
    assert status_of(rules, "line/d") == Status("state/line/d", b"online", b"offline")
    assert status_of(rules[:2], "line/d") is None
    assert status_of(rules[:1], "d") is None
