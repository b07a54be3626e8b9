"""The servers' distributions in the cache folder: fetched once, checked, unpacked atomically, used for ever."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
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
from bridge.local.downloads import Progress, download, sha512_of
from bridge.local.ivy import Artifact, artifact_path, repository_root, resolve

__all__ = [
    "ARTEMIS",
    "PULSAR",
    "Distribution",
    "default_cache_dir",
    "default_data_dir",
    "ensure",
    "locked",
    "missing",
]


_log = structlog.get_logger("local")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server's tarball: where it comes from, what it must be, and the folder that it unpacks to."""

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
    # From 2.42.0 on a packet to a subscriber waits for the store on whichever thread's context sends it, and QoS 1
    # messages of one topic arrive out of order, at MQTT 3.1.1 and 5 alike (ARTEMIS-5499, ARTEMIS-6191). What is left
    # in 2.40.0: several publishes of one client in flight may be routed out of order; one at a time keeps it.
    Artifact("org.apache.activemq", "apache-artemis", "2.40.0", "tar.gz", "bin"),
    47_473_122,
    "270a00dc3028fb3b93c6aa09aa3e40fbe76015029e5308e0aac241589299a72dac9bb50a10e7e86ad66185e2d8bc7224"
    "626810df12f1ee05694322054ad32700",
    "apache-artemis-2.40.0",
)


def default_cache_dir() -> Path:
    """Return the user's cache folder of this project."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/pulsebridge"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pulsebridge"


def default_data_dir() -> Path:
    """Return the user's data folder of this project."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/pulsebridge"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "pulsebridge"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it ends with the process that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def home_of(distribution: Distribution, cache: Path) -> Path:
    """Return where the distribution is, or will be, unpacked."""
    return cache / "servers" / distribution.folder


def missing(distributions: list[Distribution], cache: Path) -> list[Distribution]:
    """Return those that the cache does not have."""
    return [d for d in distributions if not home_of(d, cache).is_dir()]


def ensure(
    distributions: list[Distribution],
    *,
    cache: Path,
    java: Path,
    offline: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Return the folders of the distributions, fetching at once those that are missing.

    Raises TerminalError when one is missing and ``offline`` is set, or when its checksum is wrong; TransientError
    when it cannot be fetched (what came so far is kept).
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
    """Where Ivy's settings say that files come from, found out once for all downloads."""

    def __init__(self, java: Path, cache: Path) -> None:
        self.java = java
        self._cache = cache
        self._lock = threading.Lock()
        self._root: str | None = None
        self._asked = False

    def root(self, artifact: Artifact) -> str | None:
        with self._lock:
            if not self._asked:
                work = Path(tempfile.mkdtemp(prefix="ask-", dir=_made(self._cache / "downloads")))
                try:
                    self._root = repository_root(artifact, java=self.java, work=work)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                self._asked = True
            return self._root


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch(distribution: Distribution, cache: Path, source: _Source, progress: Progress | None) -> None:
    with locked(cache / "locks" / distribution.folder):
        home = home_of(distribution, cache)
        if home.is_dir():
            return  # another process was first
        work = _made(cache / "downloads" / distribution.folder)
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
            _log.info("the server refused a plain download, Ivy tries by itself", reason=e.what)
        else:
            return
    # A repository that wants credentials, or is no Maven layout over HTTP: Ivy knows how, without resuming.
    out = work / "out"
    resolve([artifact], java=source.java, work=work, cache=work / "ivy", retrieve=str(out / "[artifact].[ext]"))
    file = out / f"{artifact.name}.{artifact.extension}"
    if not file.is_file():
        raise TransientError(f"{distribution.title}: Ivy did not leave {file}", remedy="try again")
    if sha512_of(file) != distribution.sha512:
        shutil.rmtree(work)
        raise TerminalError(
            f"{distribution.title}: what Ivy fetched is not the expected file (SHA-512 differs)",
            remedy="try again; if it stays so, the mirror serves another file",
        )
    file.replace(tarball)


def unpack(tarball: Path, home: Path) -> None:
    """Unpack the tarball's one top folder to ``home``: there whole, or not at all."""
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
