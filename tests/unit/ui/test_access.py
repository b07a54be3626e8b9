"""Who may read and write: tokens, sessions, the header Host and the origin of a form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from starlette.datastructures import Headers

from bridge.settings.secret_file import SecretFile
from bridge.settings.ui import UiSettings
from pulsebridge.ui.access import Access, same_origin

WRITE, READ = "write-token-0123456789", "read-token-0123456789"
BOTH = UiSettings(token=SecretStr(WRITE), read_token=SecretStr(READ))


def test_a_session_has_the_rights_of_its_token() -> None:
    access = Access(BOTH)
    rights = {token: access.session(access.login(token)) for token in (WRITE, READ)}
    assert {token: found is not None and found.write for token, found in rights.items()} == {WRITE: True, READ: False}


@given(st.text(alphabet=st.characters(), max_size=30))
def test_another_token_gives_no_session(token: str) -> None:
    for settings in (BOTH, UiSettings()):
        assert token in (WRITE, READ) or Access(settings).login(token) is None


def test_a_session_ends_after_twelve_hours_at_logout_and_when_its_token_changes(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "token"
    file.write_text(WRITE)
    access = Access(UiSettings(token=SecretFile(file)), lambda: now[0])
    one, two, three = (access.login(WRITE) for _ in range(3))
    access.logout(one)
    assert access.session(one) is None
    now[0] = 13 * 3600.0
    assert access.session(two) is None
    now[0] = 0.0
    assert access.session(three) is not None
    file.write_text("another-token-0123456789")
    assert access.session(three) is None


def test_sessions_are_bounded() -> None:
    access = Access(BOTH)
    first = access.login(WRITE)
    names = [access.login(WRITE) for _ in range(200)]
    assert access.session(first) is None
    assert access.session(names[-1]) is not None
    assert access.session(None) is None


@pytest.mark.parametrize(
    ("host", "origin", "ok"),
    [
        ("127.0.0.1:8095", "http://127.0.0.1:8095", True),
        ("view.example", "https://view.example", True),
        ("127.0.0.1:8095", "http://127.0.0.1:8096", False),
        ("127.0.0.1:8095", "https://evil.example", False),
        ("127.0.0.1:8095", "null", False),
        ("127.0.0.1:8095", "http://[", False),
        ("127.0.0.1:8095", "", False),
        ("", "", False),
    ],
)
def test_only_a_page_of_this_server_sends_forms(host: str, origin: str, ok: bool) -> None:
    assert same_origin(Headers({"host": host, "origin": origin})) is ok


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"token": "short"}, "16 to 256"),
        ({"read_token": "with a space in the middle"}, "16 to 256"),
        ({"host": "0.0.0.0"}, "read_token"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, "allowed_hosts"),
        ({"host": "192.0.2.1"}, "allow_anonymous"),
        ({"endpoints": ["127.0.0.1:9464"]}, "http://HOST:PORT"),
        ({"endpoints": ["http://127.0.0.1:99999"]}, "endpoints"),
        ({"endpoints": ["http://127.0.0.1:9464/metrics"]}, "http://HOST:PORT"),
    ],
)
def test_unsafe_settings_are_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError) as found:
        UiSettings(**wrong)  # type: ignore[arg-type]
    assert why in str(found.value)
