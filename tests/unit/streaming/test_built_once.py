"""What is built in Spark's JVM is built once for each JVM, and for each of the things it is made of."""

from __future__ import annotations

import pytest
from streaming.built_once import built_once

pyspark = pytest.importorskip("pyspark")


def test_it_is_built_again_for_other_parts_and_for_another_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, ...]] = []

    @built_once
    def columns(*parts: str) -> dict[str, str]:
        built.append(parts)
        return dict.fromkeys(parts, "")

    for jvm in (object(), object()):
        monkeypatch.setattr(pyspark.SparkContext, "_gateway", jvm)
        first = columns("a")
        assert columns("a") is first
        assert columns("a", "b") == {"a": "", "b": ""}
    assert built == [("a",), ("a", "b")] * 2


def test_what_changes_with_each_call_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", object())

    @built_once
    def column(name: str) -> list[str]:
        kept.append(name)
        return [name]

    for number in range(100):
        assert column(f"c{number}") == [f"c{number}"]
    assert column("c99") == ["c99"]
    assert len(kept) == 100
    column("c0")
    assert kept[100:] == ["c0"]
