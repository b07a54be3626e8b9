"""The live view in a real Chromium, on real Delta tables, and on a real Pulsar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from bridge.contract import C_DEVICE, COMMANDS_TOPIC
from bridge.pulsar.client import properties_of
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import stored
from tests.support.letters import write_dead
from tests.support.push import Devices, provision, push_in_thread, push_settings, read_topic, receipts
from tests.support.stack import mqtt_settings
from tests.support.ui import (
    HOSTILE,
    QUOTED,
    SIZES,
    TOKEN,
    accessibility_problems,
    alert,
    chromium,
    layout_problems,
    live_view,
    now,
    screen,
    shown,
    write,
    write_data_docs,
    write_lakehouse,
)
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMED = urlencode({"name": "press-1"})
PAGES = ("/", "/devices", f"/device?{NAMED}", "/alerts", "/quality", "/dead-letters", "/login")


@pytest.fixture(scope="module")
def browser(_nothing_left_behind: None) -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ui")
    write_lakehouse(found / "lakehouse")
    write_data_docs(found / "gx")
    return found


@pytest.fixture(scope="module")
def view(browser: Browser, root: Path) -> Iterator[str]:
    """The live view of 10,000 devices, without Pulsar."""
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {
        "pulsar": {"service_url": f"pulsar://{closed}", "admin_url": f"http://{closed}"},
        "streaming": {"root": str(root / "lakehouse"), "suites": str(root / "gx")},
        "ui": {"token": TOKEN, "refresh": "1s"},
    }
    with live_view(root, settings) as url:
        poll_for(lambda: "of 10,000" in shown(f"{url}/devices"), 60, "the first read")
        yield url


def log_in(page: Page, view: str, token: str = TOKEN) -> None:
    page.goto(f"{view}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("main").get_by_role("button", name="Log in").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_each_page_fits_and_is_accessible(browser: Browser, view: str, size: str, scheme: str) -> None:
    with screen(browser, size, scheme) as page:
        log_in(page, view)
        for path in PAGES:
            page.goto(view + path)
            problems = layout_problems(page) + accessibility_problems(page)
            assert problems == [], path
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(255, 255, 255)") is (scheme == "light")


def test_a_page_loads_nothing_from_elsewhere(browser: Browser, view: str) -> None:
    with screen(browser) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for path in PAGES:
            page.goto(view + path, wait_until="networkidle")
        assert asked != []
        assert [url for url in asked if not url.startswith(view)] == []


def test_a_hostile_name_is_text_and_runs_nothing(browser: Browser, view: str) -> None:
    with screen(browser) as page:  # fails if a dialog opens
        page.goto(f"{view}/devices?{urlencode({'q': 'onerror'})}")
        page.get_by_role("link", name=HOSTILE).click()
        assert page.get_by_role("heading", level=1).inner_text() == HOSTILE
        page.goto(f"{view}/alerts?q=overheat")
        assert page.get_by_text(f"41.5 degrees {HOSTILE}").is_visible()
        page.goto(f"{view}/device?{NAMED}")
        assert HOSTILE in page.locator("figcaption").all_inner_texts()[0]
        assert page.locator("img").count() == 0
        page.goto(f"{view}/device?{urlencode({'name': QUOTED})}")
        assert page.locator("polyline").count() == 1


def test_data_docs_open_and_run_no_script(browser: Browser, view: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{view}/quality")
        page.get_by_role("link", name="Data Docs").click()
        page.get_by_role("heading", name="Data Docs").wait_for()
        assert page.title() == "Docs"


def test_ten_thousand_devices_have_pages_and_a_search(browser: Browser, view: str) -> None:
    with screen(browser) as page:
        page.goto(f"{view}/devices")
        assert page.locator("tbody tr").count() == 50
        page.get_by_role("link", name="Next").click()
        assert page.get_by_text("51–100 of 10,000, page 2 of 200").is_visible()
        page.get_by_label("Search").fill("press-9997")
        page.get_by_role("button", name="Search").click()
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("link", name="press-9997").click()
        assert page.get_by_role("heading", level=1).inner_text() == "press-9997"


def test_new_rows_appear_without_a_reload(browser: Browser, view: str, root: Path) -> None:
    with screen(browser) as page:
        page.goto(f"{view}/alerts?q=flood")
        assert page.get_by_text("no rows").is_visible()
        write(root / "lakehouse", "alerts", [alert("flood", "raised", "press-8", now(), "water")])
        page.get_by_role("cell", name="water").wait_for()


def test_forms_need_the_token(browser: Browser, view: str) -> None:
    with screen(browser) as page:
        page.goto(f"{view}/device?{NAMED}")
        assert page.get_by_role("button", name="Send").count() == 0
        log_in(page, view)
        page.goto(f"{view}/device?{NAMED}")
        page.get_by_label("MQTT topic").fill("devices/press-1/commands")
        page.get_by_role("button", name="Send").click()
        assert page.locator(".notice.bad[role=status]").is_visible()  # Pulsar does not answer
        page.get_by_role("button", name="Log out").click()
        page.goto(f"{view}/device?{NAMED}")
        assert page.get_by_role("button", name="Send").count() == 0


def test_a_wrong_token_opens_nothing(browser: Browser, view: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        log_in(page, view, "another-token-0123456789")
        assert page.get_by_text("This is not the token.").is_visible()
        assert context.cookies() == []


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    made = push_settings(namespaces, mqtt_settings(stack), command_partitions=2)
    provision(made)
    return made


@pytest.fixture
def running(browser: Browser, settings: Settings, tmp_path: Path) -> Iterator[str]:
    """The live view of this Pulsar, without tables."""
    pulsar = settings.pulsar.model_dump(
        mode="json", include={"service_url", "admin_url", "namespace", "system_namespace", "command_partitions"}
    )
    found: dict[str, Any] = {
        "pulsar": pulsar,
        "streaming": {"root": str(tmp_path / "none")},
        "ui": {"token": TOKEN, "refresh": "1s"},
    }
    with live_view(tmp_path, found) as url:
        yield url


@pytest.mark.stack
def test_a_command_reaches_the_topic_and_its_receipt_the_page(
    browser: Browser, settings: Settings, running: str
) -> None:
    topic = f"{settings.push.client_id}/press-7/commands"
    with screen(browser) as page:
        log_in(page, running)
        page.goto(f"{running}/device?{urlencode({'name': 'press-7'})}")
        page.get_by_label("MQTT topic").fill(topic)
        page.get_by_label("Payload").fill('{"fan":\n"on"}')
        page.get_by_role("button", name="Send").click()
        note = page.get_by_role("status").inner_text()
        (message,) = read_topic(settings, COMMANDS_TOPIC)
        properties = properties_of(message)
        assert properties is not None
        assert message.data() == b'{"fan":\n"on"}'
        assert properties[C_DEVICE] == "press-7"
        command_id = re.findall(r"send-\w+", note)[0]
        page.get_by_role("cell", name=command_id).wait_for()
        page.goto(f"{running}/devices?q=pending")
        page.get_by_role("link", name="press-7").wait_for()
        with Devices(settings), push_in_thread(settings):
            poll_for(lambda: receipts(settings), 60, "the receipt")
            page.goto(f"{running}/devices?q=delivered")
            page.get_by_role("link", name="press-7").wait_for()
            page.get_by_role("link", name="press-7").click()
            page.get_by_role("cell", name="delivered").wait_for()
            assert layout_problems(page) + accessibility_problems(page) == []


@pytest.mark.stack
def test_a_dead_letter_is_replayed_to_its_topic(browser: Browser, settings: Settings, running: str) -> None:
    write_dead(settings.pulsar, [(HOSTILE, HOSTILE.encode()), ("press-2", b"later")])
    with screen(browser, "phone") as page:
        log_in(page, running)
        page.goto(f"{running}/dead-letters?q=onerror")
        page.locator("code").filter(has_text=HOSTILE).wait_for()
        assert layout_problems(page) + accessibility_problems(page) == []
        page.get_by_role("checkbox").check()
        page.get_by_role("button", name="Replay the chosen ones").click()
        assert page.get_by_role("status").inner_text() == "1 replayed, 0 were replayed before"
        assert [m.payload for m in stored(settings.pulsar, "fleet")] == [HOSTILE.encode()]
        page.get_by_role("cell", name="replayed").wait_for()
        page.goto(f"{running}/dead-letters?q=waiting")
        page.get_by_role("link", name="press-2").wait_for()
