"""The live view under test: Delta tables without Spark, the process of ``pulsebridge ui``, a Chromium with axe-core."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pulsebridge.processes import pulsebridge_command
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE: Final = "<img src=x onerror=alert(1)>"
QUOTED: Final = "it's \"a\" 'test' \\ %_ {{7*7}} ü"
DEVICES: Final = 10_000
TOKEN: Final = "a-token-for-tests-0123456789"


def now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)


def reading_rows(device: str, count: int, end: datetime, metric: str = "temperature") -> list[dict[str, Any]]:
    return [
        {
            "device": device,
            "metric": metric,
            "event_time": end - timedelta(minutes=count - n),
            "value": 20.0 + n % 30 / 10,
            "text": None,
            "arrival_time": end - timedelta(minutes=count - n),
        }
        for n in range(count)
    ]


def write(root: Path, name: str, rows: list[dict[str, Any]], mode: Any = "append") -> None:
    """Write rows to a table; it is made if it does not exist."""
    schema = pa.schema(
        [
            (column, pa.timestamp("us", "UTC"))
            if isinstance(value, datetime)
            else (column, pa.infer_type([value]))
            if value is not None
            else (column, pa.string())
            for column, value in rows[0].items()
        ]
    )
    write_deltalake(str(root / name), pa.Table.from_pylist(rows, schema), mode=mode)


def alert(rule: str, state: str, device: str, created: datetime, message: str) -> dict[str, Any]:
    return {
        "command_id": f"{rule}-{state}-{device}-{created.timestamp()}",
        "rule": rule,
        "state": state,
        "device": device,
        "table": "readings",
        "event_time": created,
        "value": 41.5,
        "message": message,
        "to_device": device,
        "created_at": created,
    }


def verdict(rule: str, success: bool, run_at: datetime) -> dict[str, Any]:
    return {
        "run_at": run_at,
        "table": "measurements",
        "suite": "measurements",
        "rule": rule,
        "expectation": "expect_column_values_to_be_between",
        "severity": "critical",
        "success": success,
        "evaluated": 1000,
        "unexpected": 0 if success else 17,
        "observed": "",
    }


def write_lakehouse(root: Path, devices: int = DEVICES, *, hostile: bool = True) -> None:
    """Write a plant: ``press-0`` and so on. With ``hostile`` one device has a script in its name, one has quotes."""
    end = now()
    strange = [HOSTILE, QUOTED] if hostile else []
    names = [*(f"press-{n}" for n in range(devices - len(strange))), *strange]
    latest = [
        {
            "device": name,
            "metric": "temperature",
            "event_time": end - timedelta(seconds=n % 3600),
            "value": 20.0 + n % 100 / 10,
            "text": None,
            "arrival_time": end - timedelta(seconds=n % 3600),
        }
        for n, name in enumerate(names)
    ]
    write(root, "device_latest", latest)
    readings = [row for name in ("press-1", *strange) for row in reading_rows(name, 300, end)]
    for metric in ("pressure", *strange[:1]):
        readings += reading_rows("press-1", 300, end, metric)
    write(root, "readings", readings)
    alerts = [
        alert("overheat", "raised", names[-2], end - timedelta(minutes=5), f"41.5 degrees {names[-2]}"),
        alert("overheat", "raised", "press-2", end - timedelta(minutes=9), "42 degrees"),
        alert("overheat", "cleared", "press-2", end - timedelta(minutes=4), "overheat: over"),
        *(alert("silent", "raised", f"press-{n}", end - timedelta(hours=1), "no message") for n in range(100, 220)),
    ]
    write(root, "alerts", alerts)
    old, new = end - timedelta(minutes=2), end - timedelta(minutes=1)
    write(root, "quality_results", [verdict("temperature in range", True, old), verdict("device is named", True, old)])
    write(root, "quality_results", [verdict("temperature in range", False, new)])
    commits = root / "checkpoints" / "readings" / "commits"
    commits.mkdir(parents=True)
    for batch in (9, 10):
        (commits / str(batch)).write_text("v1\n{}")


def write_data_docs(suites: Path) -> None:
    """Write Data Docs with a script, which must not run."""
    site = suites / "uncommitted" / "data_docs" / "local_site"
    site.mkdir(parents=True)
    page = "<!doctype html><title>Docs</title><h1>Data Docs</h1><script>document.title = 'a script ran'</script>"
    (site / "index.html").write_text(page)


class AsgiClient:
    """Sends requests to an application in this process. It follows no redirect, and keeps cookies."""

    def __init__(self, app: Any, base: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base)
        self.cookies = self._client.cookies

    def __enter__(self) -> AsgiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.get(path, **more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.post(path, **more))


@contextmanager
def live_view(folder: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Run ``pulsebridge ui`` with these settings on a free port. Yields its URL. It must end at SIGTERM, with code 0."""
    config = folder / "pulsebridge.yaml"
    config.write_text(json.dumps(settings))
    log = folder / "ui.log"
    command = pulsebridge_command("ui", "--config", str(config), "--port", "0", "--json")
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
        try:

            def url() -> str:
                assert process.poll() is None, log.read_text()
                lines = [line for line in log.read_text().splitlines() if line.startswith('{"url"')]
                return str(json.loads(lines[0])["url"]) if lines else ""

            yield poll_for(url, 120, "the live view to listen", every=0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(patient(20)) == 0, log.read_text()
            assert "Traceback" not in log.read_text(), log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def shown(url: str) -> str:
    """Return a page as the server sends it."""
    return httpx.get(url, trust_env=False, timeout=patient(30)).text


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless Chromium that reaches nothing but this machine; the test is skipped without one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Chromium is not installed (on Debian: apt-get install chromium)")
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=arguments, timeout=patient(60_000))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def screen(browser: Browser, size: str = "wide", scheme: str = "light") -> Iterator[Page]:
    """Open a page of this size and colour scheme. No script may fail, and none of a device may run."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        is_mobile=size == "phone",
    )
    context.set_default_timeout(patient(30_000))
    page = context.new_page()
    problems: list[str] = []
    page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    try:
        yield page
        assert problems == []
    finally:
        context.close()


SIZES: Final = {"wide": (1280, 800), "phone": (390, 844)}
OVERLAPS: Final = """() => {
  const shown = [...document.querySelectorAll('body *')].filter(e =>
    e.checkVisibility() && !e.closest('thead, .skip') &&
    (['INPUT', 'BUTTON', 'TEXTAREA', 'svg'].includes(e.tagName) ||
     [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())));
  const boxes = shown.map(e => [e, e.getBoundingClientRect()]).filter(([e, b]) => b.width && b.height);
  const found = [];
  boxes.forEach(([one, a], n) => boxes.slice(n + 1).forEach(([two, b]) => {
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1 && y > 1 && !one.contains(two) && !two.contains(one))
      found.push(`${one.outerHTML.slice(0, 120)} over ${two.outerHTML.slice(0, 120)}`);
  }));
  return found.slice(0, 5);
}"""
"""Returns pairs of elements with text that overlap."""


def layout_problems(page: Page) -> list[str]:
    """Return what overflows the page to the side, and what overlaps."""
    wide, size = page.evaluate("document.documentElement.scrollWidth"), page.viewport_size
    assert size is not None
    found = [f"the page is {wide} wide on a screen of {size['width']}"] if wide > size["width"] else []
    return found + list(page.evaluate(OVERLAPS))


def accessibility_problems(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:200]}"
        for one in axe.Axe().run(page).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
