"""The lists of kill points name the points of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import kill_points

ROOT = Path(__file__).parents[3]


def test_every_listed_point_is_in_the_code_and_every_point_is_listed() -> None:
    listed = {name for key, names in vars(kill_points).items() if key.endswith("KILL_POINTS") for name in names}
    code = "".join(
        file.read_text(encoding="utf-8")
        for tier in ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge")
        for file in (ROOT / tier).rglob("*.py")
    )
    assert set(re.findall(r'reach\("([\w.]+)"\)', code)) <= listed
    assert all(f'"{name}"' in code for name in listed)
