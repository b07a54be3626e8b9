"""What a child prints is in the file, lines of our own log are on the console."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from pulsebridge.captured_output import printing_to
from tests.support.waiting import poll_for

_CHILD = """import sys
print("Starting Streaming TransformWithStateInPandas Python worker.")
print("12:34:56 [warning  ] the subscription did not follow", file=sys.stderr)
print('{"event": "behind"}')
print("\\udcff at the end", file=sys.stderr)
"""


def test_what_a_child_prints_is_in_the_file_and_our_log_on_the_console(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "spark.log"
    with printing_to(file):
        child = subprocess.Popen([sys.executable, "-X", "utf8", "-c", _CHILD])
    print("after")
    child.wait()
    wanted = {"Starting Streaming TransformWithStateInPandas Python worker.", "\\udcff at the end"}
    poll_for(lambda: len(file.read_text("utf-8").splitlines()) == 2, 10, "both lines, in any order")
    assert set(file.read_text("utf-8").splitlines()) == wanted
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == [
        "12:34:56 [warning  ] the subscription did not follow", "after", '{"event": "behind"}',
    ]  # fmt: skip
    assert shown.err == ""


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"streaming\.spark\.log"), printing_to(tmp_path / "file" / "log"):
        pass
