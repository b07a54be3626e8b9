"""What ``pulsebridge status`` prints."""

from __future__ import annotations

import io

from rich.console import Console

from bridge.inspect.instances import Instances, PushProcess
from pulsebridge.output.status import show_instances


def test_status_shows_each_push_process_with_its_share() -> None:
    push = [
        PushProcess("host-1", "running", 1, [0, 2], groups=True),
        PushProcess("host-2", "gone", 1, [1], groups=False),
    ]
    out = io.StringIO()
    show_instances(Instances(push=push), Console(file=out, width=100))
    lines = [line.split() for line in out.getvalue().splitlines() if "host-" in line]
    assert [[word for word in line if word.isalnum() or "-" in word or "," in word] for line in lines] == [
        ["host-1", "running", "0,", "2", "yes"],
        ["host-2", "gone", "1"],
    ]
    assert not Instances(push=push).alive, "no ingest runs"
