"""One download over HTTP, with resume, retries, progress and a checksum.

Ivy names the URL (``ivy.repository_root``), so its settings and mirrors apply. This module fetches the file, because
Ivy can neither resume a download nor report its progress. The received bytes stay in a ``.part`` file after an
interruption.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import httpx

from bridge.backoff import backoff_s
from bridge.errors import TerminalError, TransientError

__all__ = ["Progress", "download", "sha512_of"]

Progress = Callable[[str, int, int], None]
"""Called on the thread of the download: title, received bytes, total bytes."""

_ATTEMPTS = 6
_TIMEOUT_S = 30.0


def sha512_of(path: Path) -> str:
    """Return the SHA-512 of a file in hexadecimal."""
    digest = hashlib.sha512()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(url: str, target: Path, *, title: str, size: int, sha512: str, progress: Progress | None = None) -> None:
    """Fetch ``url`` to ``target``. It resumes an earlier download.

    Raises TransientError if several attempts fail; the received bytes stay. Raises TerminalError if the server refuses
    the request, or the file does not have the pinned checksum.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda *_: None)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _append(url, part, title, size, report)
        except (httpx.TransportError, _Unfinished) as e:
            if attempt == _ATTEMPTS:
                raise TransientError(
                    f"{title}: the download was interrupted at {_length(part)} of {size} bytes: "
                    f"{e or type(e).__name__}",
                    remedy="repeat the command, it resumes the download",
                ) from e
            time.sleep(backoff_s(attempt, 0.5, 10.0, 1.0))
            continue
        if sha512_of(part) == sha512:
            part.replace(target)
            return
        part.unlink()  # a mixture of two files, or another file: restart once
        if attempt > 1:
            break
    raise TerminalError(
        f"{title}: the downloaded file is not the expected one (SHA-512 differs)",
        remedy="retry; if the error repeats, the mirror serves another file",
    )


class _Unfinished(Exception):
    pass


def _append(url: str, part: Path, title: str, size: int, report: Progress) -> None:
    received = _length(part)
    report(title, received, size)
    if received >= size:
        return
    headers = {"Range": f"bytes={received}-"} if received else {}
    headers["Accept-Encoding"] = "identity"  # the original bytes, because they are counted and hashed
    with httpx.stream(
        "GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True, verify=_trusted()
    ) as answer:
        if answer.status_code >= 500 or answer.status_code in (408, 416, 429):
            if answer.status_code == 416:
                part.unlink()
            raise _Unfinished(f"the server answered {answer.status_code}")
        if answer.status_code >= 400:
            raise TerminalError(f"{title}: the server answered {answer.status_code}", remedy="check Ivy's settings")
        resumed = answer.status_code == 206
        received = received if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            for block in answer.iter_raw():
                file.write(block)
                received += len(block)
                report(title, received, size)
    if received < size:
        raise _Unfinished(f"{received} of {size} bytes received")


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return a context with the authorities of httpx and of the system.

    Only the system has the authority of a proxy.
    """
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
