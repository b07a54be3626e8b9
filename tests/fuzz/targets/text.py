"""Text that devices choose, as the log, tables, JSON and the proposal of ``topics discover`` show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml
from hypothesis import strategies as st

from bridge.display import TEXT_CHARACTERS, printable
from bridge.routing.rules import mapping_problems
from bridge.settings.ingest import IngestSettings
from bridge.settings.presets import preset_names
from bridge.settings.streaming import StreamingSettings
from pulsebridge.output.text import json_text, markup, text_of
from pulsebridge.topics.proposing import PresetSigns, propose
from pulsebridge.topics.showing import discovery_of, discovery_text
from pulsebridge.topics.tree import TopicTree
from tests.fuzz.engine import Case, Check, Target

__all__ = ["TEXT"]

_texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=12),
    st.sampled_from(
        [
            "a\nhttp:\n  host: 0.0.0.0",
            "\x1b[2J",
            "\u202e",
            "\u2028",
            "\x85",
            "\ufeff",
            "\ud800",
            "[red]x[/red]",
            "# x",
            "- &a [*a]",
            "!!python/object:x",
            "'\"",
            "x" * 3000,
            "{}: |",
            "%",
            "+",
            "\x00",
        ]
    ),
)
_topics = st.lists(_texts, min_size=1, max_size=4).map("/".join)
_cases = st.tuples(st.just("text"), _texts) | st.tuples(
    st.just("topics"), st.lists(st.tuples(_topics, st.binary(max_size=8)), max_size=6)
)


def _is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def _shown(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable(), ascii(shown)
    assert len(shown) <= TEXT_CHARACTERS
    assert "\n" not in markup(text)
    assert len(text_of([text, text]).split("\n")) == 2
    encoded = json_text({"a": text, text: [text]}, 1)
    assert _is_plain(encoded), ascii(encoded)
    assert json.loads(encoded) == {"a": text, text: [text]}


def _check(case: Case) -> None:
    kind, given = case
    if kind == "text":
        _shown(given)
        return
    tree, signs = TopicTree(), PresetSigns(preset_names())
    for topic, payload in given:
        tree.add(topic, payload)
        signs.add(topic)
    proposal = propose(tree, signs.seen)
    shown = discovery_text(discovery_of(tree, signs.seen, proposal, 1.0))
    assert _is_plain(shown), ascii(shown)
    assert _is_plain(proposal.yaml()), ascii(proposal.yaml())
    body = yaml.safe_load(proposal.yaml()) or {"ingest": {}}
    assert set(body) <= {"ingest", "streaming"}, f"the proposal sets {sorted(body)}"
    assert set(body["ingest"]) <= {"presets", "routes"}
    assert set(body.get("streaming", {})) <= {"tables"}
    assert StreamingSettings.model_validate(body.get("streaming", {})).tables == tuple(proposal.tables)
    assert not mapping_problems(IngestSettings.model_validate(body["ingest"]))


@contextmanager
def _opened() -> Iterator[Check]:
    yield _check


TEXT: Final = Target(
    "text",
    "What devices choose is shown printable, within its length and on its line, and a proposal that is pasted sets rules, "
    "tables and nothing else.",
    lambda: _cases,
    _opened,
    examples=250,
)
