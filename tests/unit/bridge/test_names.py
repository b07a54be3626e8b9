from __future__ import annotations

import pytest

from bridge.contract.names import name_problem


@pytest.mark.parametrize("name", ["d", "ü" * 512, "a" * 1024, "a b\n"])
def test_a_name_within_the_limit_is_valid(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a" * 1025, "has 1025 bytes, max_name_bytes is 1024"),
        ("ü" * 513, "has 1026 bytes, max_name_bytes is 1024"),
        ("\ud800", "is not valid UTF-8"),
    ],
)
def test_a_name_that_is_not_valid_has_a_reason(name: str, why: str) -> None:
    assert name_problem(name) == why
