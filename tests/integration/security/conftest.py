"""One secured stack for all tests of this folder, each server started by the first test that wants it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.folders import made_folder
from tests.support.secured import SecuredArtemis, SecuredPulsar

# The least that each tier needs at Artemis: ingest makes its session's queues and reads them, push and devices send.
_QUEUES = (
    "createAddress",
    "createDurableQueue",
    "deleteDurableQueue",
    "createNonDurableQueue",
    "deleteNonDurableQueue",
)
_ALL = {"send": "operators", "consume": "operators", **dict.fromkeys(_QUEUES, "operators")}
RIGHTS = {
    "#": _ALL,
    "plant/#": {
        "send": "operators,devices",
        "createAddress": "operators,devices,readers",
        "consume": "operators,readers",
        **dict.fromkeys(_QUEUES[1:], "operators,readers"),
    },
    "pulsebridge/resume/#": {
        "send": "operators,devices",
        "createAddress": "operators,devices,readers",
        "consume": "operators,readers",
        **dict.fromkeys(_QUEUES[1:], "operators,readers"),
    },
    "commands/#": {
        "send": "operators,writers",
        "createAddress": "operators,devices,writers",
        "consume": "operators,devices",
        **dict.fromkeys(_QUEUES[1:], "operators,devices"),
    },
    "pulsebridge/answers/nobody/#": _ALL | dict.fromkeys(("send", "createAddress"), "operators,writers"),
}
ROLES = {"operators": ["operator"], "devices": ["device"], "readers": ["ingest"], "writers": ["push"]}


@pytest.fixture(scope="session")
def folder(_nothing_left_behind: None) -> Iterator[Path]:
    """A folder for servers and certificates, named so that what is left of it counts as a leak."""
    made = made_folder("secured")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    """The authority that signs the servers' certificates."""
    return Authority(folder, "authority")


@pytest.fixture(scope="session")
def stranger(folder: Path) -> Authority:
    """Another authority, which no server trusts."""
    return Authority(folder, "stranger")


@pytest.fixture(scope="session")
def pulsar(folder: Path, authority: Authority) -> Iterator[SecuredPulsar]:
    """Pulsar with TLS, tokens, client certificates and authorization."""
    server = SecuredPulsar(folder / "pulsar", authority)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def artemis(folder: Path, authority: Authority) -> Iterator[SecuredArtemis]:
    """Artemis with TLS, users and rights: devices below plant/, push below commands/."""
    server = SecuredArtemis(folder / "artemis", authority, roles=ROLES, rights=RIGHTS)
    try:
        server.start()
        yield server
    finally:
        server.stop()
