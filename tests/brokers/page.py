"""The page docs/operate/brokers.md, generated from the results of ``pulsebridge check --broker`` in ``results``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "RESULTS", "page", "page_of"]

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs/operate/brokers.md"

_HEAD = """# MQTT brokers

What `pulsebridge check --broker --wait-for-restart` found at some brokers, and what follows for ingest, push and devices.
This page is generated (`make brokers`). Run the command at your own broker: its configuration decides as much as its
version.

**ok**: as Pulsebridge needs it. **note**: it works, but something follows: see the broker's section. **fails**: ingest or
push needs it. **–**: not possible at this broker, or not tried.

"""
_STATES = {"ok": "ok", "note": "note", "failed": "**fails**", "not tried": "–"}


def page(order: list[str]) -> str:
    """Return the page: a column and a section for each file of results, in this order."""
    files = [file for name in order if (file := RESULTS / f"{name}.json").exists()]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return _HEAD + "\n".join(page_of(found)) + "\n"


def page_of(brokers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of all brokers, and what follows from the findings of each.

    A broker has a ``title`` with {} for its ``version``, a ``setup``, and a ``report`` as that of ``report_json``.
    """
    titles = [one["title"].format(one["version"]) for one in brokers]
    names = list(dict.fromkeys(finding["name"] for one in brokers for finding in one["report"]["findings"]))
    lines = [_row(["", *titles]), _row(["---"] * (len(titles) + 1))]
    for name in names:
        states = [{each["name"]: each["state"] for each in one["report"]["findings"]} for one in brokers]
        lines.append(_row([name, *(_STATES[state.get(name, "not tried")] for state in states)]))
    for title, one in zip(titles, brokers, strict=True):
        lines += ["", f"## {title}", "", f"Configuration: {one['setup']}.", ""]
        for finding in one["report"]["findings"]:
            if finding["state"] != "ok":
                lines.append(f"- {finding['name']}: {finding['result']}")
            if finding["state"] in ("note", "failed"):
                lines += [f"  - {follow}" for follow in finding["follows"]]
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
