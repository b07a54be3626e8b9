"""When a driver's JVM is told of shared classes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bridge.errors import TerminalError
from streaming import class_data


def test_the_archive_is_named_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an environment"))
    assert class_data.with_shared_classes("-Xss4m") == "-Xss4m"
    file = class_data.archive_file()
    assert tmp_path in file.parents
    file.parent.mkdir(parents=True)
    file.touch()
    # In quotes: Spark splits the options at spaces.
    assert class_data.with_shared_classes("-Xss4m").endswith(f' "-XX:SharedArchiveFile={file}"')


def test_an_environment_that_cannot_be_written_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "share").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("streaming.session.delta_jars", lambda _cache: [])
    with pytest.raises(TerminalError, match=r"cannot be written.*environment of your own"):
        class_data.make_archive(tmp_path)


def test_a_spark_that_does_not_start_leaves_the_archive_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("streaming.session.delta_jars", lambda _cache: [])
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no Java"))
    file = class_data.archive_file()
    file.parent.mkdir(parents=True)
    file.write_text("older")
    with pytest.raises(TerminalError, match="made no archive of its classes: "):
        class_data.make_archive()
    assert file.read_text() == "older"
    assert list(file.parent.iterdir()) == [file]
