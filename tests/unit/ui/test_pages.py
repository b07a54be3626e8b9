"""The pages without a server: what each shows, who may do what, and that no text of a device is markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from bridge.settings import Settings, StreamingSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.ui import UiSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.ui.pages import _TEMPLATES, application
from pulsebridge.ui.rows import SearchedRows, searched
from pulsebridge.ui.snapshot import Device, Snapshot, Snapshots
from tests.support.ui import HOSTILE, TOKEN, AsgiClient, write_data_docs, write_lakehouse

BASE = "http://127.0.0.1:8095"
FROM_PAGE = {"origin": BASE}
PAGES = ("/", "/devices", "/device?name=press-1", "/alerts", "/quality", "/dead-letters")


class Markup(HTMLParser):
    """The tags of a page, and the names of their attributes, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def settings_of(root: Path, **ui: Any) -> Settings:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    return Settings(
        pulsar=PulsarSettings(service_url=f"pulsar://{closed}", admin_url=f"http://{closed}", operation_timeout="1s"),
        streaming=StreamingSettings(root=str(root), suites=root / "gx"),
        ui=UiSettings(**ui),
    )


def client_of(given_: Settings, base: str = BASE) -> AsgiClient:
    return AsgiClient(application(given_, read(given_)), base)


def read(given_: Settings) -> Snapshots:
    snapshots = Snapshots(given_)
    snapshots.read()
    return snapshots


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lakehouse")
    write_lakehouse(root, 300)
    write_data_docs(root / "gx")
    return root


@pytest.fixture
def client(lakehouse: Path) -> Iterator[AsgiClient]:
    with client_of(settings_of(lakehouse, token=SecretStr(TOKEN))) as running:
        yield running


def log_in(client: AsgiClient, token: str = TOKEN) -> int:
    return int(client.post("/login", data={"token": token}, headers=FROM_PAGE).status_code)


@pytest.mark.parametrize("path", PAGES)
def test_each_page_has_a_title_landmarks_and_a_strict_policy(client: AsgiClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert re.search(r"<title>[\w -]+ · Pulsebridge</title>", answer.text)
    assert all(f"<{mark}" in answer.text for mark in ('html lang="en"', "main", "nav", "header", "h1"))
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    found = Markup(answer.text)
    assert [name for name in found.attributes if name.startswith("on") or name == "style"] == []
    assert [tag for tag in found.tags if tag in ("img", "b", "iframe")] == []
    assert re.findall(r"<script[^>]*>([^<]*)</script>", answer.text) == [""]


def test_names_of_devices_are_text_everywhere(client: AsgiClient) -> None:
    for path in ("/devices?q=onerror", "/alerts?q=overheat", "/device?" + urlencode({"name": HOSTILE})):
        page = client.get(path).text
        assert "<img" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda t: t + "<b>'\"&"))
def test_any_text_of_a_device_is_text(tmp_path: Path, text: str) -> None:
    given_ = settings_of(tmp_path)
    snapshots = Snapshots(given_)
    row = {
        "id": "0:1:2", "at": 1, "device": text, "topic": text, "reason": text, "payload": text, "bytes": 1,
        "lost": False, "replayed": False,
    }  # fmt: skip
    snapshots.current = Snapshot(
        devices=SearchedRows([Device(text, link=text, reading=text, receipt=text)], [text]),
        by_name={text: Device(text)},
        letters=searched([row], "device"),
        problems={text: text},
    )
    with AsgiClient(application(given_, snapshots), BASE) as client:
        for path in ("/", "/devices", "/dead-letters"):
            answer = client.get(path, params={"q": text} if path != "/" else {})
            assert answer.status_code == 200
            assert "<b>" not in answer.text


def test_the_lists_have_pages_and_a_search(client: AsgiClient) -> None:
    assert "1–50 of 300, page 1 of 6" in client.get("/devices").text
    assert "251–300 of 300, page 6 of 6" in client.get("/devices", params={"page": "99"}).text
    assert "1–1 of 1" in client.get("/devices", params={"q": "PRESS-77"}).text
    assert "1–50 of 300" in client.get("/devices", params={"page": "-1x"}).text


def test_a_chart_and_the_last_readings_of_a_device_are_shown(client: AsgiClient) -> None:
    page = client.get("/device", params={"name": "press-1", "range": "day"}).text
    assert page.count("<polyline") == 3
    assert 'aria-label="temperature: 300 readings from 20 to 22.9"' in page
    assert "Neither Pulsar nor a table" in client.get("/device", params={"name": "none"}).text
    assert client.get("/device").status_code == 404


def test_without_a_login_nothing_changes_and_no_form_is_shown(client: AsgiClient) -> None:
    assert "Send a command" not in client.get("/device", params={"name": "press-1"}).text
    for path in ("/device/send", "/dead-letters/replay"):
        assert client.post(path, data={"id": "0:1:2"}, headers=FROM_PAGE).status_code == 403
        assert client.get(path).status_code == 405


def test_the_token_opens_the_forms_until_logout(client: AsgiClient) -> None:
    assert log_in(client, "another-token-0123456789") == 403
    assert log_in(client) == 303
    assert "Send a command" in client.get("/device", params={"name": "press-1"}).text
    assert all(one.has_nonstandard_attr("HttpOnly") for one in client.cookies.jar)
    assert client.post("/dead-letters/replay", data={}, headers=FROM_PAGE).status_code == 303
    assert "no dead letter is chosen" in client.get("/dead-letters").text
    assert "no dead letter is chosen" not in client.get("/dead-letters").text
    client.post("/logout", headers=FROM_PAGE)
    assert "Send a command" not in client.get("/device", params={"name": "press-1"}).text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None])
def test_forms_of_other_pages_are_refused(client: AsgiClient, origin: str | None) -> None:
    log_in(client)
    headers = {} if origin is None else {"origin": origin}
    answer = client.post("/device/send", data={"device": "d"}, headers=headers)
    assert answer.status_code == 403
    assert "only a page of this server" in answer.text


def test_another_host_name_is_refused(lakehouse: Path) -> None:
    with client_of(settings_of(lakehouse), "http://evil.example") as client:
        assert client.get("/").status_code == 403
    with client_of(settings_of(lakehouse, allowed_hosts=("view.example",)), "http://view.example") as client:
        assert client.get("/").status_code == 200


def test_a_token_for_reading_closes_every_page(lakehouse: Path) -> None:
    with client_of(settings_of(lakehouse, read_token=SecretStr(TOKEN), host="192.0.2.1")) as client:
        for path in (*PAGES, "/device/commands?name=d", "/data-docs/index.html"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert "press-" not in client.get("/login").text
        assert client.get("/healthz").text == "ok\n"
        assert log_in(client) == 303
        assert client.get("/devices").status_code == 200
        assert client.post("/device/send", data={"device": "d"}, headers=FROM_PAGE).status_code == 403


def test_wrong_forms_are_refused(client: AsgiClient) -> None:
    log_in(client)
    send = "/device/send"
    assert client.post(send, content=b"payload=" + b"x" * 9_000_000, headers=FROM_PAGE).status_code in (303, 413)
    assert client.post(send, content=b"payload=" + b"x" * 90_000_000, headers=FROM_PAGE).status_code == 413
    assert client.post(send, content=b"\xff\xfe", headers=FROM_PAGE).status_code == 400
    assert client.post(send, content=b"a=1&" * 5000, headers=FROM_PAGE).status_code == 400


def test_data_docs_run_no_script_and_nothing_beside_them_is_served(client: AsgiClient) -> None:
    assert "/data-docs/index.html" in client.get("/quality").text
    answer = client.get("/data-docs/index.html")
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    for path in ("..%2f..%2f..%2freadings", "%2e%2e/%2e%2e/%2e%2e/checkpoints/readings/commits/10", "none.html"):
        assert client.get(f"/data-docs/{path}").status_code == 404


def test_unknown_pages_are_not_found(client: AsgiClient) -> None:
    assert client.get("/none").status_code == 404
    assert "There is no such page" in client.get("/none").text


@pytest.mark.parametrize(("entries", "shown"), [(0, "No receipt."), (7, "No receipt in the last 7 entries.")])
def test_a_device_without_a_receipt_shows_what_was_searched(entries: int, shown: str) -> None:
    found = {"commands": [], "pending": 0, "receipts": [], "read": {"receipts": entries}}
    page = _TEMPLATES.get_template("commands.html").render(found=found, problem="", failures=())
    assert shown in page
    assert page.count("No receipt") == 1


def test_short_cells_are_not_cut_into_pieces() -> None:
    """A column of long text beside them must not make a date, a number, an id or a state break within a word."""
    letter = {
        "id": "0:1:2", "at": 1, "device": "press-1", "topic": "t", "reason": "r", "payload": "x" * 200, "bytes": 5_442_905,
        "lost": False, "replayed": True,
    }  # fmt: skip
    snapshots = Snapshots(Settings())
    snapshots.current = Snapshot(letters=searched([letter], "device"))
    with AsgiClient(application(Settings(), snapshots), BASE) as client:
        page = client.get("/dead-letters").text
        style = client.get("/static/ui.css").text
    kinds = dict(re.findall(r'data-label="(\w+)" class="(\w+)"', page))
    assert (kinds["Time"], kinds["Bytes"], kinds["Id"]) == ("time", "number", "number")
    assert 'class="state good">replayed' in page
    assert "td.time, td.word, .state { overflow-wrap: break-word; }" in style
    assert re.search(r"td\.number \{[^}]*white-space: nowrap", style)
