"""One download: resumed where it was cut off, tried again, counted, checked.

Where a file is comes from Ivy (``ivy.repository_root``), so that its settings and mirrors hold; the bytes come over
HTTP here, because Ivy can neither resume a file nor say how far it is. What is there already stays in a ``.part``
file over any interruption.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import httpx

from bridge.errors import TerminalError, TransientError

__all__ = ["Progress", "download", "sha512_of"]

Progress = Callable[[str, int, int], None]
"""Called with a title, the bytes that are there and the bytes in all; from the thread that downloads."""

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
    """Fetch ``url`` to ``target``, going on where an earlier run stopped.

    Raises TransientError when the network gives up after several tries (what came so far is kept), TerminalError
    when the server refuses it or the file is not the one that was pinned.
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
                    f"{title}: the download broke off at {_length(part)} of {size} bytes: {e or type(e).__name__}",
                    remedy="run the same command again, it goes on from there",
                ) from e
            time.sleep(min(0.5 * 2**attempt, 10.0))
            continue
        if sha512_of(part) == sha512:
            part.replace(target)
            return
        part.unlink()  # a mixture of two files, or another file: begin anew, once
        if attempt > 1:
            break
    raise TerminalError(
        f"{title}: what was downloaded is not the expected file (SHA-512 differs)",
        remedy="try again; if it stays so, the mirror serves another file",
    )


class _Unfinished(Exception):
    pass


def _append(url: str, part: Path, title: str, size: int, report: Progress) -> None:
    there = _length(part)
    report(title, there, size)
    if there >= size:
        return
    headers = {"Range": f"bytes={there}-"} if there else {}
    headers["Accept-Encoding"] = "identity"  # the bytes as they are: they are counted and hashed
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
        there = there if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            for block in answer.iter_raw():
                file.write(block)
                there += len(block)
                report(title, there, size)
    if there < size:
        raise _Unfinished(f"{there} of {size} bytes came")


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Trust what httpx trusts and what the system does: a proxy's own authority stands in the system's store alone."""
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
