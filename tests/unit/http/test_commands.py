"""Requests for commands: what they ask for, who may ask, and what the answers say."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.http.access import Filters
from bridge.http.app import Answer, Request
from bridge.http.commands import CommandRequests
from bridge.http.requests import InvalidRequestError
from bridge.protocols.awaited_commands import AwaitedCommands
from bridge.protocols.commands import CommandOutcome, DeviceCommand
from bridge.routing.templates import Filter
from bridge.settings import Settings

POSITION = PositionTags(b"s" * 32, 3).tagged(CommandPosition(7, 1, -1), "d")


class Asked:
    """Notes what is asked, instead of the sessions."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def topics(self, device: str) -> tuple[Filter, ...] | None:
        if not device or set("+#/") & set(device):
            return None
        return (Filter.parse(f"devices/{device}/commands/#"), Filter.parse(f"all/{device}"))

    def fetch(self, device: str, after: str, wait_s: float) -> asyncio.Future[CommandOutcome]:
        self.calls.append(("fetch", device, after, wait_s))
        return cast("Any", None)

    def confirm(self, device: str, position: str, payload: bytes, *, failed: bool) -> asyncio.Future[CommandOutcome]:
        self.calls.append(("confirm", device, position, payload, failed))
        return cast("Any", None)


class World:
    def __init__(self, confirm: str = "device") -> None:
        self.asked = Asked()
        settings = Settings(
            push={"confirm": confirm, "presence": {"rules": [{"filter": "devices/+device/status"}]}},
            http={"commands": {"topics": ["devices/{device}/commands"]}},
        )
        self.requests = CommandRequests(settings, cast("AwaitedCommands", self.asked))

    def head(self, method: str, target: str | bytes, *granted: Filters) -> Request | Answer:
        path, _, query = (target.encode() if isinstance(target, str) else target).partition(b"?")
        return self.requests.request(method.encode(), path, query, granted)

    def called(self, method: str, target: str, body: bytes = b"") -> tuple[Any, ...]:
        found = self.head(method, target)
        assert isinstance(found, Request), found
        found.take(body)
        return self.asked.calls[-1]


def test_a_fetch_names_device_time_and_the_last_command() -> None:
    world = World()
    assert world.called("GET", "/devices/press-7/commands") == ("fetch", "press-7", "", 30)
    assert world.called("GET", f"/devices/d%C3%A9/commands?wait=5&after={POSITION}") == ("fetch", "dé", POSITION, 5)
    levels = POSITION.replace(".", "%2F")
    assert world.called("GET", f"/devices/d/commands?after={levels}")[2] == POSITION


def test_a_confirmation_has_the_answer_as_its_body() -> None:
    world = World()
    assert world.called("POST", f"/devices/d/commands/{POSITION}", b"ok") == ("confirm", "d", POSITION, b"ok", False)
    assert world.called("POST", f"/devices/d/commands/{POSITION}?failed=true")[-1] is True
    request = world.head("POST", f"/devices/d/commands/{POSITION}")
    assert isinstance(request, Request)
    assert (request.max_body, request.waits) == (4 * 1024 * 1024, False)


@pytest.mark.parametrize(
    ("method", "target", "why"),
    [
        ("GET", "/devices//commands", "not a name of a device"),
        ("GET", "/devices/%23/commands", "not a name of a device"),
        ("GET", "/devices/%FF/commands", "not UTF-8"),
        ("GET", "/devices/d/commands?wait=0", "from 1 to 60"),
        ("GET", "/devices/d/commands?wait=61", "from 1 to 60"),
        ("GET", "/devices/d/commands?wait=5s", "from 1 to 60"),
        ("GET", "/devices/d/commands?wait=" + "9" * 5000, "from 1 to 60"),
        ("GET", "/devices/d/commands?waitt=5", "did you mean wait?"),
        ("GET", "/devices/d/commands?after=0.3.7", "not a position"),
        ("POST", "/devices/d/commands/0.3.7", "not a position"),
        ("POST", f"/devices/d/commands/{POSITION}?failed=1", "true or false"),
    ],
)
def test_what_is_not_such_a_request_is_refused_with_its_reason(method: str, target: str, why: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        World().head(method, target)
    assert why in str(caught.value)


def test_a_failure_needs_a_push_that_sends_again() -> None:
    with pytest.raises(InvalidRequestError, match=r"push\.confirm: broker"):
        World("broker").head("POST", f"/devices/d/commands/{POSITION}?failed=true")


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/devices/d/commands", 405),
        ("GET", f"/devices/d/commands/{POSITION}", 405),
        ("GET", "/devices/d/other", 404),
        ("GET", "/devices/d", 404),
        ("GET", "/devices/", 404),
        ("GET", "/devices/d/commands/x/y", 404),
    ],
)
def test_other_paths_and_methods_have_their_status(method: str, target: str, status: int) -> None:
    found = World().head(method, target)
    assert isinstance(found, Answer)
    assert found.status == status


def granted(*texts: str) -> Filters:
    return tuple(Filter.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("filters", "ok"),
    [
        (("#",), True),
        (("devices/d/#", "all/+"), True),
        (("devices/d/#", "all/d"), True),
        (("devices/d/#",), False),  # not all of its topics
        (("devices/d/commands", "all/d"), False),  # not the topics below
        (("devices/e/#", "all/e"), False),
        (("plant/d/#",), False),
        ((), False),
    ],
)
def test_a_credential_needs_all_topics_of_a_device(filters: tuple[str, ...], ok: bool) -> None:
    found = World().head("GET", "/devices/d/commands", granted("#"), granted(*filters))
    assert isinstance(found, Request) is ok
    assert ok or (isinstance(found, Answer) and found.status == 403)


def test_each_outcome_has_its_status() -> None:
    fetch = World().head("GET", "/devices/d/commands")
    confirm = World().head("POST", f"/devices/d/commands/{POSITION}")
    assert isinstance(fetch, Request)
    assert isinstance(confirm, Request)
    command = DeviceCommand(POSITION, "id é\r\n1", True, "devices/d/co mmands", b"\x00\xff", 60)
    shown = fetch.answer(CommandOutcome(command))
    assert (shown.status, shown.body, dict(shown.headers)) == (
        200,
        b"\x00\xff",
        {
            "Command-Position": POSITION,
            "Command-Id": "id%20%C3%A9%0D%0A1",
            "Command-Repeat": "true",
            "Command-Topic": "devices/d/co%20mmands",
            "Command-Expiry": "60",
            "Cache-Control": "no-store",
        },
    )
    assert fetch.answer(CommandOutcome()).status == 204
    assert fetch.answer(CommandOutcome(superseded=True)).status == 409
    assert confirm.answer(CommandOutcome(confirmed=True)).status == 200
    assert confirm.answer(CommandOutcome()).status == 404
    for outcome in (None, CommandOutcome(unavailable="away")):
        busy = confirm.answer(outcome)
        assert (busy.status, dict(busy.headers)["Retry-After"]) == (503, "1")


@given(method=st.sampled_from(["GET", "POST", "PUT"]), rest=st.binary(max_size=60))
def test_any_bytes_give_a_request_an_answer_or_a_reason(method: str, rest: bytes) -> None:
    found: object
    try:
        found = World().head(method, b"/devices/" + rest)
    except InvalidRequestError as e:
        found = str(e)
    assert isinstance(found, Request | Answer | str)
