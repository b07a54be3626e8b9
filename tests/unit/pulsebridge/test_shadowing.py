"""Which packages count as shadowed."""

from __future__ import annotations

from pathlib import Path

from pulsebridge.shadowing import PACKAGES, shadowed, shadowed_here

HOME = Path("/site")
OURS: dict[str, Path | None] = {p: HOME / p for p in PACKAGES}


def test_nothing_is_shadowed_when_all_four_lie_together() -> None:
    assert shadowed(OURS, {p: ["pulsebridge"] for p in PACKAGES}) == []
    assert shadowed(OURS, {}) == []  # installed in place: no files of ours are listed


def test_another_distribution_that_writes_into_our_folder_is_named() -> None:
    (line,) = shadowed(OURS, {"streaming": ["pulsebridge", "mosaicml-streaming"]})
    assert line == "the package streaming is also installed by mosaicml-streaming"


def test_a_package_from_another_folder_is_reported_with_both_folders() -> None:
    (line,) = shadowed(OURS | {"sources": Path("/elsewhere/sources")}, {})
    assert "/elsewhere/sources" in line
    assert str(HOME) in line


def test_a_missing_package_is_reported() -> None:
    assert shadowed(OURS | {"sinks": None}, {}) == ["the package sinks is not found"]


def test_this_interpreter_is_clean() -> None:
    assert shadowed_here() == []
