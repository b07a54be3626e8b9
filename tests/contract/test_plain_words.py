"""Names and texts of packages, tests, examples and documents use the terms of the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs import plain_words
from tests.docs.plain_words import INSTEAD, PHRASES

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge")
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
WORDS: Final = {word: to for words, to in INSTEAD.items() for word in words.split()}
PHRASE: Final = re.compile(
    rf"(?<![a-z])({'|'.join(one.replace(' ', '[ _]') for one in PHRASES)})(?![a-z])", re.IGNORECASE
)
FOLDERS: Final = ("tests", "examples", "notebooks", "conf", "docs")
TYPES: Final = frozenset({".py", ".java", ".md", ".yaml", ".ipynb", ".conf", ".json"})
TOPIC_LEVEL: Final = re.compile(r"(?<=[/. `])nobody(?=[/\\])")
"""The level of an MQTT topic that push publishes to, below `push.answers.topic`."""
EXCEPT: Final[dict[str, set[str]]] = {}


def hits(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    if path.as_posix() in (Path(__file__).resolve().as_posix(), Path(plain_words.__file__).resolve().as_posix()):
        return []
    found = []
    for number, line in enumerate(TOPIC_LEVEL.sub("", path.read_text(encoding="utf-8")).splitlines(), 1):
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line).lower())
        bad = [word for word in words if word in WORDS and word not in EXCEPT.get(name, ())]
        found += [f"{name}:{number}: {word}, write {WORDS[word]}" for word in bad]
        found += [f"{name}:{number}: {phrase}" for phrase in PHRASE.findall(line)]
    return found


@pytest.mark.parametrize("folder", PACKAGES + FOLDERS)
def test_folders_use_plain_words(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TYPES and path.is_file()]
    assert paths != []
    assert [hit for path in paths for hit in hits(path)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_use_plain_words(document: str) -> None:
    assert hits(ROOT / document) == []
