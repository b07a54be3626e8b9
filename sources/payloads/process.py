"""Decodes payloads in a process of its own, which the kernel ends when a payload takes too long.

Python cannot interrupt C code, or a function that catches everything. So the process sets two timers for each payload,
one of processor time and one of time, whose signals end it: no code runs for that, in C or Python. Its memory has a
limit as well. Such a process ends by itself when the one that made it is gone, even in the middle of a payload.
"""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple

from sources.payloads.message import Message

__all__ = ["DecoderProcess", "Limits", "Unpacked"]

_PATIENCE: Final = 10
"""Times ``seconds`` that a payload may take while it waits, for another process or a network."""
_MIB: Final = 1024 * 1024
_ANSWER_BYTES: Final = 8 * _MIB
"""Beyond this an answer leaves the other payloads to the next one: a few bytes may expand to ``max_bytes`` each."""
_NO_MEMORY: Final = 3
"""Exit code of a process that has used its memory. A new one begins without what this one has kept."""

Row = tuple[int, bytes, Message]
"""Number of the decoder, payload, and the message around it."""


class Unpacked(NamedTuple):
    """What a payload gave: one of the three."""

    body: bytes | None = None
    document: str | None = None
    fault: str | None = None


class Limits(NamedTuple):
    """What a decoder may use for a payload."""

    seconds: float
    """Processor time."""
    memory_mb: int


class DecoderProcess:
    """The process, made when it is first asked, and again after a payload has ended it. One thread may use it."""

    def __init__(
        self, unpackers: Mapping[int, Callable[[bytes, Message], Unpacked]], limits: Mapping[int, Limits]
    ) -> None:
        """Both by the number of the decoder."""
        self._unpackers = unpackers
        self._limits = limits
        self._context = get_context("fork")
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.started = 0
        """How many processes were made."""

    def decode(self, rows: Sequence[Row]) -> Iterator[Unpacked]:
        """Yield what each payload gives. One that ends the process twice, the second time alone, is a fault."""
        while rows:
            found = self._ask(rows)
            if isinstance(found, str):
                yield from map(self._alone, rows)
                return
            yield from found
            rows = rows[len(found) :]

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._end(kill=True)

    def _alone(self, row: Row) -> Unpacked:
        found = self._ask([row])
        return Unpacked(fault=found) if isinstance(found, str) else found[0]

    def _ask(self, rows: Sequence[Row]) -> list[Unpacked] | str:
        """Return what the first payloads give, one at least, or why the process ended."""
        pipe = self._pipe or self._start()
        limits = self._limits[rows[0][0]]
        try:
            pipe.send_bytes(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
            # The process ends itself sooner, unless a function has replaced its timers.
            if pipe.poll(sum(self._limits[row[0]].seconds for row in rows) * _PATIENCE + 2 * _PATIENCE):
                return [Unpacked(*one) for one in pickle.loads(pipe.recv_bytes())]
        except (EOFError, OSError):
            return _why(self._end(kill=False), limits)
        self._end(kill=True)
        return _why(-signal.SIGALRM, limits)

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, ours, self._unpackers, self._limits), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads: this process has none that a decoder waits for.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        self.started += 1
        return ours

    def _end(self, *, kill: bool) -> int | None:
        """Wait for the end of the process. Returns its exit code, negative for a signal."""
        process, pipe = self._process, self._pipe
        assert process is not None
        assert pipe is not None
        self._process = self._pipe = None
        if kill:
            process.kill()
        pipe.close()
        process.join()
        code: int | None = process.exitcode
        process.close()
        return code


def _why(code: int | None, limits: Limits) -> str:
    if code in (-signal.SIGPROF, -signal.SIGALRM):
        return f"takes longer than max_seconds, {limits.seconds:g}"
    if code == _NO_MEMORY:
        return f"needs more memory than max_memory_mb, {limits.memory_mb}"
    return f"ends the decoder's process (exit code {code}): an error in C, or a limit that C does not report"


def _serve(
    pipe: Connection,
    other_end: Connection,
    unpackers: Mapping[int, Callable[[bytes, Message], Unpacked]],
    limits: Mapping[int, Limits],
) -> None:
    """Answer until the other side is gone. Runs in the new process."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    _limit_memory(max(one.memory_mb for one in limits.values()))
    with suppress(EOFError, OSError):  # the other side is gone
        while True:
            try:
                pipe.send_bytes(_answer(pipe.recv_bytes(), unpackers, limits))
            except MemoryError:
                os._exit(_NO_MEMORY)


def _answer(
    request: bytes,
    unpackers: Mapping[int, Callable[[bytes, Message], Unpacked]],
    limits: Mapping[int, Limits],
) -> bytes:
    found: list[Unpacked] = []
    size = 0
    for number, payload, message in pickle.loads(request):
        seconds = limits[number].seconds
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds * _PATIENCE)
        found.append(unpackers[number](payload, message))
        size += len(found[-1].body or b"") + len(found[-1].document or "")
        if size > _ANSWER_BYTES:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return pickle.dumps([tuple(one) for one in found], pickle.HIGHEST_PROTOCOL)


def _limit_memory(megabytes: int) -> None:
    """Let this process have so much more than it has now. Only Linux tells how much that is."""
    import resource

    with suppress(OSError, ValueError, StopIteration):
        with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 — a file of the kernel's
            used = next(int(line.split()[1]) for line in file if line.startswith("VmData:")) * 1024
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + megabytes * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
