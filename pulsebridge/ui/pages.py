"""The pages: routes, and what each template gets. Templates escape every value; nothing marks text as safe."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from bridge.contract import FAILURES
from bridge.contract.commands import MAX_COMMAND_BYTES
from bridge.errors import PulsebridgeError, TransientError
from bridge.settings import Settings
from pulsebridge.ui.access import COOKIE, DOCS, Access, Guard, Session
from pulsebridge.ui.charts import HEIGHT, WIDTH, charts
from pulsebridge.ui.lakehouse import Reading, device_readings
from pulsebridge.ui.rows import SearchedRows, clip, time_text, value_text
from pulsebridge.ui.snapshot import Device, Snapshots
from pulsebridge.ui.topics import default_topic, device_state, patient, replay, send_command

__all__ = ["application"]

_HERE: Final = Path(__file__).parent
_PAGES: Final = (
    ("/", "Overview"),
    ("/devices", "Devices"),
    ("/alerts", "Alerts"),
    ("/quality", "Quality"),
    ("/dead-letters", "Dead letters"),
)
_RANGES: Final = {"hour": ("Last hour", 3600), "day": ("Last day", 86400), "week": ("Last week", 604800)}
_MOST_BODY: Final = 3 * MAX_COMMAND_BYTES + 65536
"""A form: each byte of a payload is at most three characters."""
_BODY_S: Final = 30.0
_NAME: Final = 4096
_FAILED_LOGIN_S: Final = 0.5
_CACHED: Final = 50
_CACHED_S: Final = 10.0
_ACTIONS: Final = 1000

Context = dict[str, Any]


def application(settings: Settings, snapshots: Snapshots) -> ASGIApp:
    """Return the application (ASGI) that serves the pages of these snapshots."""
    return _Pages(settings, snapshots).app


class _Cache:
    """Values of the last keys, for some seconds. One key is read at a time, so a slow server gets few requests."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: str) -> Any:
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            began = time.monotonic()
            if began >= until:
                value = self._read(key)
                now = time.monotonic()
                self._kept[key] = now + max(_CACHED_S, 4 * (now - began)), value
                if len(self._kept) > _CACHED:
                    self._kept.popitem(last=False)
            return value

    def clear(self) -> None:
        """Forget the values, because something has changed."""
        self._kept.clear()


class _Pages:
    def __init__(self, settings: Settings, snapshots: Snapshots) -> None:
        self._settings = patient(settings)
        self._snapshots = snapshots
        self._access = Access(settings.ui)
        self._commands = _Cache(lambda device: device_state(self._settings, device))
        self._replaying = asyncio.Lock()
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/healthz", lambda _: PlainTextResponse("ok\n"), methods=get),
            Route("/", self._page(self._overview), methods=get),
            Route("/devices", self._page(self._devices), methods=get),
            Route("/device", self._page(self._device), methods=get),
            Route("/device/commands", self._page(self._device_commands), methods=get),
            Route("/device/send", self._action(self._send), methods=post),
            Route("/alerts", self._page(self._alerts), methods=get),
            Route("/quality", self._page(self._quality), methods=get),
            Route("/dead-letters", self._page(self._letters), methods=get),
            Route("/dead-letters/replay", self._action(self._replay), methods=post),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=post),
            Route(DOCS + "{path:path}", self._data_docs, methods=get),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: self._refused, TransientError: self._unreadable}
        self.app: ASGIApp = Guard(Starlette(routes=routes, exception_handlers=handlers), settings.ui)

    # --- who asks ---

    def _session(self, request: Request) -> Session | None:
        return self._access.session(request.cookies.get(COOKIE))

    def _may_read(self, request: Request) -> bool:
        return self._access.open or self._session(request) is not None

    def _page(self, build: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            if not self._may_read(request):
                return RedirectResponse("/login", 303)
            return await run_in_threadpool(build, request)

        return page

    def _action(self, act: Callable[[dict[str, list[str]]], Any]) -> Callable[[Request], Any]:
        """Return the handler of a form that changes something: only with a session that may write."""

        async def handle(request: Request) -> Response:
            session = self._session(request)
            if session is None or not session.write:
                raise HTTPException(403, "this needs the token of ui.token: log in first")
            form = await _form(request)
            try:
                session.notice, back = await act(form)
                session.failed = False
            except PulsebridgeError as e:
                session.notice, session.failed = clip(e, 1000), True
                back = _back(request.url.path, form)
            self._commands.clear()
            self._snapshots.refresh_soon()
            return RedirectResponse(back, 303)

        return handle

    def _render(self, request: Request, template: str, status: int = 200, **more: Any) -> Response:
        session = self._session(request)
        shown: Context = {
            "pages": _PAGES,
            "here": request.url.path,
            "session": session,
            "may_write": session is not None and session.write,
            "may_read": self._may_read(request),
            "writable": self._access.writable,
            "open": self._access.open,
            "refresh_s": max(1, round(self._settings.ui.refresh)),
            "heading": "",
            "notice": "",
            "notice_failed": False,
        }
        if shown["may_read"] and status == 200:
            shown["snapshot"] = self._snapshots.current
        if session is not None and session.notice and "x-part" not in request.headers:
            shown |= {"notice": session.notice, "notice_failed": session.failed}
            session.notice = ""
        return HTMLResponse(_TEMPLATES.get_template(template).render(shown | more), status)

    async def _refused(self, request: Request, error: HTTPException) -> Response:
        title = "Not found" if error.status_code == 404 else "Refused"
        why = "There is no such page." if error.status_code == 404 else clip(error.detail, 300)
        return self._render(request, "error.html", error.status_code, title=title, why=why)

    async def _unreadable(self, request: Request, error: PulsebridgeError) -> Response:
        return self._render(request, "error.html", 503, title="Not available", why=clip(error, 400))

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._render(request, "login.html", title="Log in")
        name = self._access.login((await _form(request)).get("token", [""])[0])
        if name is None:
            await asyncio.sleep(_FAILED_LOGIN_S)
            more = {"notice": "This is not the token.", "notice_failed": True}
            return self._render(request, "login.html", 403, title="Log in", **more)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, name, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    async def _logout(self, request: Request) -> Response:
        self._access.logout(request.cookies.get(COOKIE))
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # --- pages ---

    def _overview(self, request: Request) -> Response:
        now = self._snapshots.current
        counts = {
            "open_alerts": sum(bool(row["open"]) for row in now.alerts.rows),
            "waiting_letters": sum(not row["replayed"] for row in now.letters.rows),
        }
        return self._render(request, "overview.html", title="Overview", **counts)

    def _devices(self, request: Request) -> Response:
        return self._list(request, "devices.html", "Devices", self._snapshots.current.devices)

    def _alerts(self, request: Request) -> Response:
        return self._list(request, "alerts.html", "Alerts", self._snapshots.current.alerts)

    def _letters(self, request: Request) -> Response:
        return self._list(request, "letters.html", "Dead letters", self._snapshots.current.letters)

    def _list(self, request: Request, template: str, title: str, rows: SearchedRows[Any]) -> Response:
        query = request.query_params.get("q", "")[:200]
        number = request.query_params.get("page", "1")
        page = rows.page(query, int(number) if number.isdecimal() and len(number) < 10 else 1)
        return self._render(request, template, title=title, query=query, page=page)

    def _quality(self, request: Request) -> Response:
        index = self._docs_folder / "index.html"
        return self._render(
            request, "quality.html", title="Quality", docs=f"{DOCS}index.html" if index.is_file() else ""
        )

    def _device(self, request: Request) -> Response:
        name = _device_name(request)
        device = self._snapshots.current.by_name.get(name)
        chosen = request.query_params.get("range", "day")
        chosen = chosen if chosen in _RANGES else "day"
        readings: list[Reading] = []
        problem = self._snapshots.current.problems.get("tables", "")
        if not problem:
            try:
                since_us = time.time_ns() // 1000 - _RANGES[chosen][1] * 1_000_000
                readings = device_readings(self._settings.streaming, name, since_us)
            except TransientError as e:
                problem = clip(e, 400)
        newest = {one.metric: one for one in readings}
        last = [{"metric": m, "us": newest[m].us, "shown": value_text(*newest[m][2:])} for m in sorted(newest)[:200]]
        return self._render(
            request,
            "device.html",
            title=f"Device {clip(name)}",
            heading=clip(name, 500),
            device=device or Device(name),
            known=device is not None or bool(readings),
            ranges=[(key, text) for key, (text, _) in _RANGES.items()],
            range=chosen,
            charts=charts(readings),
            width=WIDTH,
            height=HEIGHT,
            last_readings=last,
            readings_problem=problem,
            topic=default_topic(self._settings, name),
        )

    def _device_commands(self, request: Request) -> Response:
        name = _device_name(request)
        found, problem, title = None, "", f"Commands of {clip(name)}"
        try:
            found = self._commands(name)
        except PulsebridgeError as e:
            problem = clip(e, 400)
        template = "commands.html" if "x-part" in request.headers else "commands_page.html"
        return self._render(request, template, title=title, found=found, problem=problem, failures=FAILURES)

    # --- what changes something ---

    async def _send(self, form: dict[str, list[str]]) -> tuple[str, str]:
        device, payload, topic, expires = (
            form.get(name, [""])[0] for name in ("device", "payload", "topic", "expires_in")
        )
        payload = payload.replace("\r\n", "\n")  # a browser sends each line break like this
        command_id = await run_in_threadpool(send_command, self._settings, device, payload, topic, expires.strip())
        return f"Pulsar has stored the command {clip(command_id)}.", _back("/device/send", form)

    async def _replay(self, form: dict[str, list[str]]) -> tuple[str, str]:
        async with self._replaying:
            report = await run_in_threadpool(replay, self._settings, form.get("id", [])[:_ACTIONS])
        text = f"{sum(report.replayed.values())} replayed, {report.already} were replayed before"
        if report.refused:
            text += f", {len(report.refused)} refused: {clip(report.refused[0].why, 200)}"
        return text, _back("/dead-letters/replay", form)

    # --- Data Docs ---

    @property
    def _docs_folder(self) -> Path:
        suites = self._settings.streaming.suites
        return Path(suites or ".").expanduser() / "uncommitted" / "data_docs" / "local_site"

    async def _data_docs(self, request: Request) -> Response:
        if not self._may_read(request):
            return RedirectResponse("/login", 303)
        folder = self._docs_folder.resolve()
        path = (folder / request.path_params["path"]).resolve()
        if self._settings.streaming.suites is None or not path.is_relative_to(folder) or not path.is_file():
            raise HTTPException(404)
        return FileResponse(path)


def _device_name(request: Request) -> str:
    name = request.query_params.get("name", "")[:_NAME]
    if not name:
        raise HTTPException(404)
    return name


def _back(path: str, form: dict[str, list[str]]) -> str:
    """Return the page of an action's form."""
    if path == "/device/send":
        return "/device?" + urlencode({"name": form.get("device", [""])[0]})
    return "/dead-letters?" + urlencode({"q": form.get("q", [""])[0]})


async def _form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form. Raises HTTPException for a body that is too large, too slow or not a form."""

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY:
                raise HTTPException(413, "the form is too large")
        return bytes(body)

    try:
        body = await asyncio.wait_for(read(), _BODY_S)
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=_ACTIONS + 10, errors="strict")
    except asyncio.TimeoutError as e:
        raise HTTPException(408, "the form did not arrive in time") from e
    except ValueError as e:
        raise HTTPException(400, "the request is not a valid form") from e


def _unready(protocols: Mapping[str, Any]) -> str:
    """Return the parts of an ingest process that are not ready."""
    return ", ".join(f"{part} is not ready" for one in protocols.values() for part, ok in one.ready.items() if not ok)


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, auto_reload=False,
)  # fmt: skip
_TEMPLATES.filters |= {"clip": clip, "time": time_text, "query": urlencode, "unready": _unready}
