"""Where a checkpoint lies decides by which of Hadoop's interfaces it is written."""

from __future__ import annotations

import pytest

from streaming.session import is_local


@pytest.mark.parametrize(
    ("root", "default", "local"),
    [
        ("/data/lake", "file:///", True),
        ("file:///data/lake", "hdfs://name:8020", True),
        ("data/lake", "file:///", True),
        ("/data/lake", "hdfs://name:8020", False),
        ("s3a://lake/tables", "file:///", False),
    ],
)
def test_a_folder_is_local_by_its_own_scheme_or_by_that_of_the_default(
    root: str, default: str, local: bool
) -> None:
    assert is_local(root, default) is local
