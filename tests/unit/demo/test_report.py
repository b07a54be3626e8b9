from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import vl_convert

from pulsebridge.audit.verdict import Verdict, audit
from pulsebridge.demo.report import render
from tests.support.audit_records import whole_run

MANIFEST = {
    "plan": {"devices": 2, "speed": 1705.0, "faults": 2},
    "recordings": ["one wearable's recording", "one buoy's recording"],
}
KILLS = [
    {"e": "kill", "target": "spark", "us": 2_000_000},
    {"e": "recovered", "target": "spark", "us": 2_100_000},
]


class Loads(HTMLParser):
    """Everything that a browser would fetch to show the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return audit(whole_run([[100, 65, 80, 60, 120, 90, 69, 71, 40, 110]] * 2), KILLS)


@pytest.fixture(scope="module")
def page(verdict: Verdict) -> str:
    return render(verdict, MANIFEST)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_says_what_the_fleet_is(page: str) -> None:
    assert "devices are virtual: one wearable&#x27;s recording and one buoy&#x27;s recording" in page
    assert "cut into parts of time" in page


def test_the_charts_show_the_run_with_its_kills(page: str) -> None:
    found = re.search(r"const specs = (\{.*?\});\nconst data = (\{.*?\});\n", page, re.DOTALL)
    assert found is not None
    specs, data = map(json.loads, found.groups())
    assert "kill -9 Spark driver" in [kill["what"] for kill in data["kills"]]
    assert {"rates", "latency", "distribution", "readings", "commands"} <= {n for n, rows in data.items() if rows}
    for chart in ("rates", "latency", "distribution", "device"):
        assert f'id="{chart}"' in page
        drawn = vl_convert.vegalite_to_svg({**specs[chart], "width": 600, "datasets": data})
        assert "<path" in drawn


def test_every_number_is_shown_with_its_source(page: str, verdict: Verdict) -> None:
    assert "The audit passed" in page
    for number in verdict.numbers:
        assert f"<td>{number.name}</td>" in page
