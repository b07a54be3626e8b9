"""A download against a real HTTP server that breaks off, refuses, and serves the wrong thing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bridge.errors import TerminalError
from pulsebridge.downloads.download import download

BODY = bytes(range(256)) * 4096
DIGEST = hashlib.sha512(BODY).hexdigest()


class _Server(ThreadingHTTPServer):
    ranges: list[str | None]
    cut_first_at: int | None = None
    honours_range = True
    body = BODY
    status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.honours_range else 0
        body = self.server.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, self.server.cut_first_at = self.server.cut_first_at, None
        self.wfile.write(body if cut is None else body[:cut])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[_Server]:
    running = _Server(("127.0.0.1", 0), _Handler)
    running.ranges = []
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def _get(server: _Server, target: Path, seen: list[int] | None = None) -> None:
    download(
        f"http://127.0.0.1:{server.server_address[1]}/f",
        target,
        title="thing",
        size=len(BODY),
        sha512=DIGEST,
        progress=None if seen is None else lambda title, done, total: seen.append(done),
    )


def test_a_download_that_breaks_off_goes_on_where_it_was(server: _Server, tmp_path: Path) -> None:
    server.cut_first_at = 300_000
    seen: list[int] = []
    _get(server, tmp_path / "f", seen)
    assert (tmp_path / "f").read_bytes() == BODY
    assert server.ranges == [None, "bytes=300000-"]
    assert seen[-1] == len(BODY)
    assert not (tmp_path / "f.part").exists()


def test_a_part_left_by_another_run_is_not_fetched_again(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(BODY[:900_000])
    _get(server, tmp_path / "f")
    assert server.ranges == ["bytes=900000-"]
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_server_without_ranges_sends_it_all_again(server: _Server, tmp_path: Path) -> None:
    server.honours_range = False
    (tmp_path / "f.part").write_bytes(BODY[:900_000])
    _get(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_spoilt_part_is_thrown_away_once(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(b"\0" * 5000)
    _get(server, tmp_path / "f")
    assert server.ranges == ["bytes=5000-", None]
    assert (tmp_path / "f").read_bytes() == BODY


def test_another_file_is_refused(server: _Server, tmp_path: Path) -> None:
    server.body = BODY[::-1]
    with pytest.raises(TerminalError, match="SHA-512"):
        _get(server, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_is_not_tried_again(server: _Server, tmp_path: Path) -> None:
    server.status = 401
    with pytest.raises(TerminalError, match="401"):
        _get(server, tmp_path / "f")
    assert len(server.ranges) == 1
