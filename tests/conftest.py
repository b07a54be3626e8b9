"""Fixtures for every test: the local stack, namespaces of one's own, and the check that nothing is left behind."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import hypothesis
import pytest
import structlog

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.leaks import Footprint, leaks_since
from tests.support.stack import mosquitto_beside, new_stack, provisioned, session_stack
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In xdist's processes __main__ has no file, by which pyspark.sql.connect knows a doctest and ends the process.
sys.modules["__main__"].__dict__.setdefault("__file__", pytest.__file__)

# How long an example takes says how busy the machine is, and nothing of the code.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tests")

_LAST: Final = 100
_FIRST: Final = {
    "tests/e2e": 0,
    "tests/chaos": 1,
    "tests/crashes": 1,
    "tests/integration/cluster": 2,
    "tests/integration/security": 2,
    "tests/integration/packaging": 3,
    "tests/integration/streaming": 3,
    "tests/integration": 4,
}
"""What takes longest begins, so that no process is left alone with it at the end. The first that fits counts."""


@pytest.hookimpl(trylast=True)  # after the shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what takes longest begin, and give each test the patience of its waits."""
    usual = float(items[0].config.getini("timeout")) if items else 0
    for item in items:
        marker = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patient(marker.args[0] if marker else usual)), append=False)
    items.sort(key=lambda item: next((n for f, n in _FIRST.items() if item.nodeid.startswith(f)), _LAST))


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup() -> None:
    """Skip what has not begun when the time is up (seconds since 1970), where there is a limit."""
    if time.time() > float(os.environ.get("TESTS_UNTIL", "inf")):
        pytest.skip("TESTS_UNTIL has passed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process: its tests share what its fixtures start."""
    from tests.support.dealing import ByFile

    return ByFile(config, log) if config.getoption("dist") == "loadscope" else None


class FailureReporter:
    """Prints each failure when it happens: a run that is cut short prints no summary."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._out.ensure_newline()
            self._out.line(f"{report.nodeid} failed in its {report.when}:\n{report.longreprtext[-2000:]}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once in the process that reports; the processes that xdist starts only test."""
    out = config.pluginmanager.get_plugin("terminalreporter")
    if out is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureReporter(out))


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = Footprint.now()
    yield
    leaks = leaks_since(before)
    assert not leaks, "left behind by the tests:\n" + "\n".join(leaks)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what commands that ran in this process configured: a warning that repeats is left out of the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session")
def stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """Pulsar and Artemis, started once for the whole session; tests that kill servers take ``private_stack``."""
    with session_stack() as running:
        yield running


@pytest.fixture(scope="session")
def mosquitto(stack: LocalStack) -> Iterator[LocalStack]:
    """Mosquitto beside the session's Pulsar; tests that want it are skipped where it is not installed."""
    with mosquitto_beside(stack) as running:
        yield running


@pytest.fixture(params=["artemis", pytest.param("mosquitto", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, stack: LocalStack) -> LocalStack:
    """The session's stack with each MQTT broker in turn."""
    if request.param == "artemis":
        return stack
    found: LocalStack = request.getfixturevalue("mosquitto")
    return found


@pytest.fixture
def private_stack(_nothing_left_behind: None) -> Iterator[LocalStack]:
    """Pulsar and Artemis for one test alone, which may kill and restart them."""
    with new_stack() as running:
        yield running


@pytest.fixture
def namespaces(stack: LocalStack) -> PulsarSettings:
    """Settings of the session's Pulsar with two fresh, provisioned namespaces."""
    return provisioned(stack)


@pytest.fixture(scope="session")
def spark(_nothing_left_behind: None) -> Iterator[SparkSession]:
    """One Spark session for the whole run, with Delta, the source and the sinks."""
    from tests.support.spark import running_session

    with running_session() as session:
        yield session
