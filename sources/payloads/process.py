"""Decodes payloads in a separate process, which the kernel ends after a time limit.

Python cannot interrupt C code, or a function that catches everything. So the process sets two timers for each payload,
one of processor time and one of real time. Their signals end it without running C or Python code. Its memory is
limited as well. The process also ends if its parent process is gone, even during a payload.
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
"""Factor of ``seconds`` allowed to a payload that waits for a process or a network."""
_MIB: Final = 1024 * 1024
_ANSWER_BYTES: Final = 8 * _MIB
"""Above this size an answer omits the remaining payloads. Each payload may expand to ``max_size``."""
_NO_MEMORY: Final = 3
"""Exit code of a process that has used its memory. A new one starts with empty memory."""

Row = tuple[int, bytes, Message]
"""Number of the decoder, payload, and the message around it."""


class Unpacked(NamedTuple):
    """The result of a payload: one of the three."""

    body: bytes | None = None
    document: str | None = None
    fault: str | None = None


class Limits(NamedTuple):
    """The resources that a decoder may use for a payload."""

    seconds: float
    """Processor time."""
    memory_mb: int


class DecoderProcess:
    """The process, started at first use and after a payload has ended it. Only one thread may use it."""

    def __init__(
        self, unpackers: Mapping[int, Callable[[bytes, Message], Unpacked]], limits: Mapping[int, Limits]
    ) -> None:
        """Both arguments are by the number of the decoder."""
        self._unpackers = unpackers
        self._limits = limits
        self._context = get_context("fork")
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.started = 0
        """Number of started processes."""

    def decode(self, rows: Sequence[Row]) -> Iterator[Unpacked]:
        """Yield the result of each payload. One that ends the process twice, the second time alone, is a fault."""
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
        """Return the results of the first payloads, at least one, or why the process ended."""
        pipe = self._pipe or self._start()
        limits = self._limits[rows[0][0]]
        try:
            pipe.send_bytes(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
            # The process ends itself earlier, unless a function has replaced its timers.
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
            # Python 3.12 warns of threads: no decoder waits for a thread of this process.
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
        return f"takes longer than max_time, {limits.seconds:g} s"
    if code == _NO_MEMORY:
        return f"needs more memory than max_memory, {limits.memory_mb} MiB"
    return f"ends the decoder's process (exit code {code}): an error in C, or a limit that C does not report"


def _serve(
    pipe: Connection,
    other_end: Connection,
    unpackers: Mapping[int, Callable[[bytes, Message], Unpacked]],
    limits: Mapping[int, Limits],
) -> None:
    """Answer until the parent process closes the pipe. Runs in the new process."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    _limit_memory(max(one.memory_mb for one in limits.values()))
    with suppress(EOFError, OSError):  # the parent has closed the pipe
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
    """Allow this process so much more memory than it has now. Only Linux reports that amount."""
    import resource

    with suppress(OSError, ValueError, StopIteration):
        with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 — a file of the kernel's
            used = next(int(line.split()[1]) for line in file if line.startswith("VmData:")) * 1024
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + megabytes * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
