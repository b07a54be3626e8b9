"""Access tokens by client credentials: shared, renewed in time, and one line for each way in which an issuer fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from bridge.errors import DeniedError, TransientError, UnreachableError
from bridge.pulsar.dial import credentials, role_of
from bridge.pulsar.oauth2 import access_token
from bridge.settings.pulsar import OAuth2Settings, PulsarSettings
from bridge.settings.secret_file import SecretFile
from tests.support.certificates import Authority
from tests.support.issuer import Issuer

SECRET = "s3cret-of-the-client"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the module under test, in a list of one; proxies of the environment are left out."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    now = [1000.0]
    monkeypatch.setattr("bridge.pulsar.oauth2.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def issuer(now: list[float]) -> Iterator[Issuer]:
    made = Issuer(lambda client: f"token-{len(made.requests)}", seconds=100)
    made.clients["bridge"] = SECRET
    with made.running():
        yield made


def settings_of(issuer: Issuer, **changes: Any) -> PulsarSettings:
    values = {"issuer_url": issuer.url, "client_id": "bridge", "client_secret": SecretStr(SECRET)} | changes
    return PulsarSettings(oauth2=OAuth2Settings(**values))


def test_one_token_serves_all_until_it_is_renewed_before_its_end(issuer: Issuer, now: list[float]) -> None:
    settings = settings_of(issuer, audience="urn:pulsar", scope="produce consume")
    copied = settings.model_copy(update={"tenant": "another"})
    assert [credentials(one) for one in (settings, copied)] == [("token", b"token-1")] * 2
    assert issuer.requests == [
        {"grant_type": "client_credentials", "client_id": "bridge", "client_secret": SECRET, "audience": "urn:pulsar",
         "scope": "produce consume"}
    ]  # fmt: skip
    now[0] += 79
    assert access_token(settings) == "token-1"
    now[0] += 2
    assert access_token(settings) == "token-2"


def test_a_token_is_used_to_its_end_while_the_issuer_gives_no_other(issuer: Issuer, now: list[float]) -> None:
    settings = settings_of(issuer)
    assert access_token(settings) == "token-1"
    issuer.answers["token"] = (503, b"")
    now[0] += 90
    assert access_token(settings) == "token-1"
    now[0] += 11
    with pytest.raises(TransientError, match="answered 503"):
        access_token(settings)
    del issuer.answers["token"]
    now[0] += 2
    assert access_token(settings).startswith("token-")


def test_many_users_ask_a_failing_issuer_once_a_second(issuer: Issuer, now: list[float]) -> None:
    settings = settings_of(issuer, client_secret=SecretStr("wrong"))
    for _ in range(5):
        with pytest.raises(DeniedError):
            access_token(settings)
    assert len(issuer.requests) == 1


def test_a_rotated_secret_and_a_rotated_key_file_are_used(issuer: Issuer, now: list[float], tmp_path: Path) -> None:
    secret, key = tmp_path / "secret", tmp_path / "key.json"
    body = {"type": "client_credentials", "client_id": "bridge", "client_secret": SECRET, "issuer_url": issuer.url}
    for file, rotated in ((secret, SECRET), (key, json.dumps(body))):
        file.write_text("old", encoding="utf-8")
        by_secret = {"issuer_url": issuer.url, "client_id": "bridge", "client_secret": SecretFile(secret)}
        oauth2 = by_secret if file == secret else {"key": SecretFile(key)}
        settings = PulsarSettings(oauth2=OAuth2Settings(**oauth2))
        with pytest.raises(DeniedError, match="key_file"):
            access_token(settings)
        file.write_text(rotated, encoding="utf-8")
        now[0] += 2
        assert access_token(settings).startswith("token-")


@pytest.mark.parametrize(
    ("path", "status", "body", "kind", "words"),
    [
        ("openid-configuration", 404, b"", DeniedError, "answered 404 to .* — check pulsar.oauth2.issuer_url"),
        ("openid-configuration", 200, b"<html>", DeniedError, "is not a JSON object — check pulsar.oauth2.issuer_url"),
        ("openid-configuration", 200, b"{}", DeniedError, "has no token_endpoint that begins with http"),
        ("openid-configuration", 200, b'{"token_endpoint": "http://[/"}', UnreachableError, "cannot be reached"),
        ("openid-configuration", 200, b"[" * 60_000, DeniedError, "is not a JSON object"),
        ("token", 200, b'{"access_token": 7}', DeniedError, "has no valid access_token"),
        ("token", 200, b'{"access_token": "a\\r\\nb"}', DeniedError, "has no valid access_token"),
        ("token", 429, b"{}", TransientError, "answered 429"),
        ("token", 500, b"oops", TransientError, "answered 500"),
        ("token", 400, b'{"error": "invalid_scope"}', DeniedError, "'bridge': invalid_scope — check .*audience and scope"),
        ("token", 401, b"", DeniedError, "'bridge': 401 — check pulsar.oauth2.client_id and client_secret"),
        ("token", 400, b'{"error": "invalid_client", "error_description": "\\u202e not s3cret-of-the-client\\n"}',
         DeniedError, r"invalid_client: \\u202e not \*\*\*"),
    ],
)  # fmt: skip
def test_whatever_an_issuer_answers_the_error_is_one_line_without_the_secret(
    issuer: Issuer, path: str, status: int, body: bytes, kind: type[Exception], words: str
) -> None:
    issuer.answers[path] = (status, body)
    with pytest.raises(kind, match=words) as caught:
        access_token(settings_of(issuer))
    assert len(str(caught.value).splitlines()) == 1
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("reported", [b"null", b'"60"', b"-1", b"NaN", b"1e999", b"[]", b"1" * 400])
def test_a_token_is_accepted_with_any_lifetime_that_an_issuer_reports(issuer: Issuer, reported: bytes) -> None:
    issuer.answers["token"] = (200, b'{"access_token": "t", "expires_in": ' + reported + b"}")
    assert access_token(settings_of(issuer)) == "t"
    assert access_token(settings_of(issuer)) == "t"
    assert len(issuer.requests) == 1


def test_an_unreachable_and_an_untrusted_issuer_are_named(now: list[float], tmp_path: Path) -> None:
    authority = Authority(tmp_path, "issuer")
    with Issuer(lambda client: "t", certificate=authority.issue("issuer")).running() as issuer:
        issuer.clients["bridge"] = SECRET
        assert access_token(settings_of(issuer, tls_ca=authority.file)) == "t"
        issuer.answers["openid-configuration"] = (200, b'{"token_endpoint": "http://127.0.0.1:1/token"}')
        with pytest.raises(DeniedError, match="begins with https://"):
            access_token(settings_of(issuer, tls_ca=authority.file, audience="a"))
        with pytest.raises(DeniedError, match=r"not trusted here.* — set pulsar\.oauth2\.tls_ca"):
            access_token(settings_of(issuer))
    with pytest.raises(UnreachableError, match=r"cannot be reached: .* — see that it runs"):
        access_token(settings_of(issuer, scope="s"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"oauth2": {"issuer_url": "https://i"}}, "give client_id and client_secret"),
        (
            {"oauth2": {"issuer_url": "https://i", "client_id": "c", "client_secret": "s", "key": "k"}},
            "instead of both",
        ),
        ({"oauth2": {"client_id": "c"}}, "issuer_url is required"),
        ({"oauth2": {"issuer_url": "i", "key": "k"}}, "does not begin with https://"),
        ({"oauth2": {"key": "k"}, "token": "t"}, "give one of them"),
        ({"username": "u"}, "belong together"),
        ({"username": "u:v", "password": "p"}, "must not contain a colon"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PulsarSettings(**given)


def test_a_user_is_the_role_and_nothing_shows_the_password() -> None:
    settings = PulsarSettings(username="bridge", password=SecretStr("hunter2"))
    assert credentials(settings) == ("basic", b"bridge:hunter2")
    assert role_of(settings) == "bridge"
    assert "hunter2" not in f"{settings!r} {settings.model_dump_json()}"
