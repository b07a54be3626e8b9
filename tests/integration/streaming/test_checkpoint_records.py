"""What is owed outlives a death at any write of what is owed besides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streaming.checkpoints import Checkpoint

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """The process died."""


class Dying(Checkpoint):
    """Dies in its ``at``-th write, with the file made and nothing in it."""

    at = 0

    def _write(self, name: str, text: str) -> None:
        self.at -= 1
        super()._write(name, "" if self.at == 0 else text)
        if self.at == 0:
            raise Killed


@pytest.mark.parametrize("at", [1, 2])
def test_what_was_owed_before_outlives_a_death_while_more_is_noted(
    spark: SparkSession, tmp_path: Path, at: int
) -> None:
    folder = tmp_path.as_uri()
    before: Mapping[str, Any] = {"days": ["2010-03-24"]}
    more: Mapping[str, Any] = {"days": ["2010-03-24", "2010-03-25"]}
    Checkpoint(spark, folder).intend(before)
    dying = Dying(spark, folder)
    dying.at = at
    with pytest.raises(Killed):
        dying.intend(more)
    record = Checkpoint(spark, folder)
    assert record.intent() in (before, more)
    record.intend(more)
    assert record.intent() == more
    record.settle()
    assert record.intent() is None
    assert not list(tmp_path.rglob("intent*"))


def test_a_first_record_that_was_not_written_to_its_end_is_none(spark: SparkSession, tmp_path: Path) -> None:
    dying = Dying(spark, tmp_path.as_uri())
    dying.at = 1
    with pytest.raises(Killed):
        dying.intend({"days": ["2010-03-24"]})
    assert Checkpoint(spark, tmp_path.as_uri()).intent() is None
