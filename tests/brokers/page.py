"""The page BROKERS.md, generated from the results of ``pulsebridge check --broker`` in ``results``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pulsebridge.output.broker_check import page_of

__all__ = ["PAGE", "RESULTS", "page"]

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "BROKERS.md"

_HEAD = """# MQTT brokers

What `pulsebridge check --broker --wait-for-restart` found at some brokers, and what follows for ingest and push.
This page is generated (`make brokers`). Run the command at your own broker: its configuration decides as much as its
version.

"""


def page(order: list[str]) -> str:
    """Return the page: a column for each file of results, in this order."""
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name in order if (file := _file(name)).exists()}
    titles = {name: one["title"].format(one["version"]) for name, one in found.items()}
    lines = [f"- {titles[name]}: {one['setup']}." for name, one in found.items()]
    reports: dict[str, dict[str, Any]] = {titles[name]: one["report"] for name, one in found.items()}
    return _HEAD + "\n".join([*lines, "", *page_of(reports)]) + "\n"


def _file(name: str) -> Path:
    return RESULTS / f"{name}.json"
