"""Names and texts of the packages use the terms of the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("bridge", "sources", "sinks", "streaming", "pulsebridge")
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GUARANTEES.md", "CHANGELOG.md")
INSTEAD: Final = {
    "told tells heard unheard said": "report, notify, receive, state",
    "anew": "re-create, resend, retry",
    "mend mends mended": "fix",
    "nobody somebody whoever anybody": "the actor's name",
    "judge judged judging": "validate (rows), evaluate (rules)",
    "recipe recipes": "ruleset",
    "lane lanes": "partition producer",
    "lest": "so that … not",
}
WORDS: Final = {word: to for words, to in INSTEAD.items() for word in words.split()}
PHRASES: Final = re.compile(r"\b(once more|put right|of then|of now)\b", re.IGNORECASE)
EXCEPT: Final = {"bridge/settings/push.py": {"nobody"}, "bridge/push/inbound.py": {"nobody"}}
"""A level of an MQTT topic."""


def hits(path: Path) -> list[str]:
    allowed = EXCEPT.get(str(path.relative_to(ROOT)), set())
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line).lower())
        found += [f"{path.name}:{number}: {w}, write {WORDS[w]}" for w in words if w in WORDS and w not in allowed]
        found += [f"{path.name}:{number}: {phrase}" for phrase in PHRASES.findall(line)]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_use_plain_words(package: str) -> None:
    assert [hit for path in sorted((ROOT / package).rglob("*.py")) for hit in hits(path)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_use_plain_words(document: str) -> None:
    assert hits(ROOT / document) == []
