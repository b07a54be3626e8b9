"""The servers' distributions in the cache folder: fetched once, checked, unpacked atomically."""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from bridge.errors import TerminalError, TransientError
from pulsebridge.downloads.download import Progress, download, sha512_of
from pulsebridge.downloads.ivy import Artifact, artifact_path, repository_root, resolve

__all__ = [
    "ARTEMIS",
    "PULSAR",
    "Distribution",
    "ensure",
    "locked",
    "missing",
]


_log = structlog.get_logger("local")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server's tarball: its source, size and checksum, and the folder that it unpacks to."""

    title: str
    artifact: Artifact
    size: int
    sha512: str
    folder: str


PULSAR = Distribution(
    "Apache Pulsar",
    Artifact("org.apache.pulsar", "pulsar-server-distribution", "4.0.8", "tar.gz", "bin"),
    245_494_718,
    "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29"
    "bd0a6c8a0f2f0646641af46d2e33cbd6",
    "apache-pulsar-4.0.8",
)
ARTEMIS = Distribution(
    "Apache Artemis",
    # From 2.42.0 on a packet to a subscriber waits for the store on the context of the sending thread. So QoS 1
    # messages of one topic arrive out of order, in MQTT 3.1.1 and 5 (ARTEMIS-5499, ARTEMIS-6191). A limit of 2.40.0:
    # it may route several publishes in flight of one client out of order, but not single ones.
    Artifact("org.apache.activemq", "apache-artemis", "2.40.0", "tar.gz", "bin"),
    47_473_122,
    "270a00dc3028fb3b93c6aa09aa3e40fbe76015029e5308e0aac241589299a72dac9bb50a10e7e86ad66185e2d8bc7224"
    "626810df12f1ee05694322054ad32700",
    "apache-artemis-2.40.0",
)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against other processes. The system releases the lock of a dead process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def home_of(distribution: Distribution, cache: Path) -> Path:
    """Return the folder to which the distribution is unpacked; it may not exist yet."""
    return cache / "servers" / distribution.folder


def missing(distributions: list[Distribution], cache: Path) -> list[Distribution]:
    """Return the distributions that the cache does not contain."""
    return [d for d in distributions if not home_of(d, cache).is_dir()]


def ensure(
    distributions: list[Distribution],
    *,
    cache: Path,
    java: Path,
    offline: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Return the folders of the distributions. It fetches missing ones in parallel.

    Raises TerminalError if one is missing and ``offline`` is set, or if its checksum is wrong. Raises TransientError if
    it cannot be fetched; the received part stays in the cache.
    """
    absent = missing(distributions, cache)
    if absent and offline:
        names = ", ".join(f"{d.title} {d.artifact.version}" for d in absent)
        raise TerminalError(f"{names} not in the cache {cache}", remedy="run once without --offline")
    if absent:
        source = _Source(java, cache)
        with ThreadPoolExecutor(max_workers=len(absent)) as pool:
            list(pool.map(lambda d: _fetch(d, cache, source, progress), absent))
    return [home_of(d, cache) for d in distributions]


class _Source:
    """The repository of Ivy's settings, found once for all downloads."""

    def __init__(self, java: Path, cache: Path) -> None:
        self.java = java
        self._cache = cache
        self._lock = threading.Lock()
        self._root: str | None = None
        self._searched = False

    def root(self, artifact: Artifact) -> str | None:
        with self._lock:
            if not self._searched:
                work = Path(tempfile.mkdtemp(prefix="ask-", dir=_created(self._cache / "downloads")))
                try:
                    self._root = repository_root(artifact, java=self.java, work=work)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                self._searched = True
            return self._root


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch(distribution: Distribution, cache: Path, source: _Source, progress: Progress | None) -> None:
    with locked(cache / "locks" / distribution.folder):
        home = home_of(distribution, cache)
        if home.is_dir():
            return  # another process was first
        work = _created(cache / "downloads" / distribution.folder)
        tarball = work / f"{distribution.folder}.tar.gz"
        if not tarball.is_file():
            _download(distribution, tarball, work, source, progress)
        unpack(tarball, home)
        shutil.rmtree(work)


def _download(
    distribution: Distribution, tarball: Path, work: Path, source: _Source, progress: Progress | None
) -> None:
    artifact = distribution.artifact
    root = source.root(artifact)
    if root is not None:
        try:
            download(
                root + artifact_path(artifact),
                tarball,
                title=distribution.title,
                size=distribution.size,
                sha512=distribution.sha512,
                progress=progress,
            )
        except TerminalError as e:
            _log.info("the server refused a plain download, Ivy downloads the file", reason=e.what)
        else:
            return
    # The repository needs credentials, or is not a Maven layout over HTTP: Ivy supports it, but cannot resume.
    out = work / "out"
    resolve([artifact], java=source.java, work=work, cache=work / "ivy", retrieve=str(out / "[artifact].[ext]"))
    file = out / f"{artifact.name}.{artifact.extension}"
    if not file.is_file():
        raise TransientError(f"{distribution.title}: Ivy did not write {file}", remedy="retry")
    if sha512_of(file) != distribution.sha512:
        shutil.rmtree(work)
        raise TerminalError(
            f"{distribution.title}: Ivy's file is not the expected one (SHA-512 differs)",
            remedy="retry; if the error repeats, the mirror serves another file",
        )
    file.replace(tarball)


def unpack(tarball: Path, home: Path) -> None:
    """Unpack the tarball's single top folder to ``home``, atomically."""
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".unpack-", dir=home.parent))
    try:
        with tarfile.open(tarball) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
        (top,) = folder.iterdir()
        top.rename(home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
