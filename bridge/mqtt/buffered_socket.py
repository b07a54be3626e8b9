"""The socket of a link, with buffers: one system call for many packets, in both directions.

The link reads the packets from the buffer itself. Written bytes are kept until ``flush``, so that the
acknowledgements of a whole read turn leave in one segment. It makes no decision; the link decides when to read.

A packet larger than one read is collected separately, so that its bytes are copied twice, for any number of reads. Of
one larger than ``limit`` only the first ``HEAD_BYTES`` are kept, and the hash of all.
"""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import struct
import sys
import time
from typing import Final

from bridge.settings.mqtt import MqttSettings
from bridge.tls import client_context

__all__ = ["HEAD_BYTES", "MAX_PACKET_BYTES", "BufferedSocket", "dialled"]

MAX_PACKET_BYTES: Final = 16 * 1024 * 1024
"""Default limit of links. Commands and answers are far smaller, and MQTT allows 256 MiB (MQTT 5, 1.5.5)."""
HEAD_BYTES: Final = 128 * 1024
"""Bytes kept of a packet over the limit: its topic of at most 64 KiB, and some of the payload."""

_READ_BYTES: Final = 64 * 1024
"""Larger buffers would each need a new memory mapping, with a fault for each page."""
_OUT_LIMIT: Final = 4 * 1024 * 1024
_RECEIVE_BYTES: Final = 128 * 1024
_LINGER_S: Final = 2.0
_LOOK_S: Final = 1.0
_SPARE_BYTES: Final = 512 * 1024
"""The most that is read for a link that does not read: packet identifiers are few (``dialled``)."""
_ARRIVALS: Final = struct.Struct("=128xQ16xI")
"""Of Linux's struct tcp_info: tcpi_bytes_received, the accepted bytes, and tcpi_data_segs_in, accepted or not."""


class _Large:
    """One packet that needs many reads."""

    def __init__(self, begin: bytes, total: int, limit: int) -> None:
        self.total = total
        self.kept = bytearray()
        self.missing = total
        self._keep = total if total <= limit else HEAD_BYTES
        self._hash = None if total <= limit else hashlib.sha256()
        self.add(begin)

    def add(self, data: bytes) -> None:
        self.missing -= len(data)
        if self._hash is not None:
            self._hash.update(data)
        self.kept += data[: self._keep - len(self.kept)]

    @property
    def cut(self) -> tuple[int, str] | None:
        return None if self._hash is None else (self.total, self._hash.hexdigest())


class BufferedSocket:
    """A non-blocking TCP or TLS socket with a read and a write buffer. Used by one thread only."""

    def __init__(self, sock: socket.socket, limit: int = MAX_PACKET_BYTES) -> None:
        self._sock = sock
        self.limit = limit
        self.data = b""
        """The bytes read; those before ``at`` are consumed."""
        self.at = 0
        self.cut: tuple[int, str] | None = None
        """Length and SHA-256 of the packet that begins in ``data``, if it is over the limit."""
        self._large: _Large | None = None
        self._short = False
        self._out = bytearray()
        self._ended = False
        self.failure: OSError | None = None
        """The error that broke the connection; bytes that were read before remain valid."""
        self.lingers = False
        """Whether ``close`` waits for the other side, and drops its further bytes. A close with bytes unread, or before
        bytes arrive, resets the connection. The other side then loses the last bytes sent (RFC 1122, 4.2.2.13)."""
        self.drained = not isinstance(sock, ssl.SSLSocket)
        """Whether the last ``fill`` found the kernel's buffer empty, so that nothing older waits unread."""
        self._arrived: tuple[int, int] | None = None
        self._next_look = 0.0

    def send(self, data: bytes | bytearray) -> None:
        """Keep ``data`` for the next flush, whole. A caller that sends much checks ``full`` before."""
        self._out += data

    def pending(self) -> int:
        """Return how many bytes are buffered and not consumed."""
        return len(self.data) - self.at + (0 if self._large is None else len(self._large.kept))

    def close(self) -> None:
        """Send the remaining bytes, then close: at once, or if it ``lingers``, after the other side."""
        try:
            if self.failure is None:
                self.flush()
            if self.lingers:
                self._linger(time.monotonic() + _LINGER_S)
        finally:
            self._sock.close()

    def _linger(self, until: float) -> None:
        poller = select.poll()
        while self.failure is None and not self._ended and time.monotonic() < until:
            self.data, self.at, self._large = b"", 0, None
            if not self.fill():
                poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
                poller.poll(max(0.0, until - time.monotonic()) * 1000)
            self.flush()

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._sock.fileno()

    @property
    def readable(self) -> bool:
        """Whether there is something to process: usable bytes, the end of the stream, or an error."""
        return (self.at < len(self.data) and not self._short) or self.over

    @property
    def over(self) -> bool:
        """Whether the stream has ended or is broken: nothing follows the buffered bytes."""
        return self._ended or self.failure is not None

    @property
    def full(self) -> bool:
        """Whether more bytes are unsent than memory should buffer."""
        return len(self._out) > _OUT_LIMIT

    @property
    def stuck(self) -> bool:
        """Whether far more bytes are unsent than publishes cause, which stop at ``full``: the other side does not read."""
        return len(self._out) > 4 * _OUT_LIMIT

    def consumed(self, at: int) -> None:
        """Note that everything before ``at`` is consumed."""
        self.at = at
        self.cut = None

    def wants_more(self, total: int = 0) -> None:
        """Keep an incomplete packet until more has arrived; ``total`` is its length in bytes, if that is known."""
        self._short = True
        if total > _READ_BYTES:
            self._large = _Large(self.data[self.at :], total, self.limit)
            self.data, self.at = b"", 0

    @property
    def unsent(self) -> int:
        """How many bytes wait for ``flush``."""
        return len(self._out)

    def fill(self) -> int:
        """Read once from the kernel, up to 64 KiB. Returns the number of bytes read."""
        if self.over:
            return 0
        large = self._large
        size = _READ_BYTES if large is None else min(_READ_BYTES, large.missing)
        try:
            data = self._sock.recv(size)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self.drained = True
            return 0
        except OSError as e:
            self.failure = e
            return 0
        if not data:
            self._ended = True
            return 0
        # TLS gives one record at a time, and more may wait inside its layer, where select does not see it.
        self.drained = len(data) < size and not isinstance(self._sock, ssl.SSLSocket)
        if large is not None:
            large.add(data)
            if large.missing:
                return len(data)
            self.data, self.cut, self._large = bytes(large.kept), large.cut, None
        else:
            self.data = self.data[self.at :] + data if self.at < len(self.data) else data
        self.at = 0
        self._short = False
        return len(data)

    def make_room(self, now: float) -> int:
        """Make room in the kernel if it had to drop segments of a link that does not read. Returns bytes read.

        A queue of small segments needs more memory than the promised window. The kernel then drops the last segments,
        and the sender retries them after a time that doubles. Later segments lie beyond our window of 0, and Linux
        from 6.17 on ignores the acknowledgements in them too. So our own sending stops, with every PINGREQ, and the
        broker closes the connection as dead (H3). One read stops both: the next full window is closed in time.
        """
        if now < self._next_look:
            return 0
        self._next_look = now + _LOOK_S
        before, self._arrived = self._arrived, _arrivals(self._sock)
        if before is None or self._arrived is None or self.pending() >= _SPARE_BYTES:
            return 0
        refused = self._arrived[0] == before[0] and self._arrived[1] != before[1]
        return self.fill() if refused else 0

    def flush(self) -> None:
        """Write the unsent bytes, as far as the kernel accepts them. An error shows at the next ``recv``."""
        while self._out:
            try:
                sent = self._sock.send(self._out)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as e:
                self.failure = self._cause(e)
                self._out.clear()
                return
            del self._out[:sent]

    def _cause(self, failure: OSError) -> OSError:
        """Return the TLS alert of the other side before it closed, else the failed write itself."""
        if isinstance(self._sock, ssl.SSLSocket):
            try:
                self._sock.recv(1)
            except ssl.SSLError as e:
                return e if e.reason else failure
            except OSError:
                return failure
        return failure


def _arrivals(sock: socket.socket) -> tuple[int, int] | None:
    """Return the bytes that the kernel accepted and the data segments that arrived; None if it reports none."""
    if sys.platform != "linux":
        return None
    try:
        kept, came = _ARRIVALS.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ARRIVALS.size))
    except (OSError, struct.error):  # not TCP, or a kernel older than 4.6
        return None
    return kept, came


def dialled(settings: MqttSettings, limit: int) -> BufferedSocket:
    """Connect to the broker, with TLS if the settings require it; ``limit`` as for ``BufferedSocket``.

    The files that the settings name are read now, so that replaced ones are used. Blocks for up to twice
    ``connect_timeout``.

    Raises ConfigError if a PEM file cannot be used, OSError (ssl.SSLError) if there is no connection.
    """
    sock = socket.create_connection((settings.host, settings.port), timeout=settings.connect_timeout)
    try:
        if settings.protocol != "5":
            # Before MQTT 5, which has a Receive Maximum, the kernel would buffer megabytes while we do not read: more
            # unacknowledged messages than there are packet identifiers, on which Artemis 2.40 hangs until it restarts.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.tls:
            context = client_context(settings, "mqtt")
            sock = context.wrap_socket(sock, server_hostname=settings.host)
        sock.setblocking(False)
        return BufferedSocket(sock, limit)
    except BaseException:  # also if a file is just being replaced
        sock.close()
        raise
