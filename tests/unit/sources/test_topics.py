"""Topics by name and by pattern."""

from __future__ import annotations

import pytest

from sources.topics import TopicsPattern, asked_topics

THERE = [
    "persistent://a/b/plant-1",
    "persistent://a/b/plant-22",
    "persistent://a/b/__plant-1",
    "persistent://a/c/plant-1",
]


@pytest.mark.parametrize("text", [r"persistent://a/b/plant-\d", r"a/b/plant-\d"])
def test_a_pattern_matches_the_last_part_as_a_whole_in_one_namespace(text: str) -> None:
    problems: list[str] = []
    names, pattern = asked_topics({"topicspattern": text}, problems)
    assert (names, problems) == ((), [])
    assert pattern == TopicsPattern("a", "b", r"plant-\d")
    assert pattern.folder == "a/b"
    assert pattern.matching(THERE) == ("persistent://a/b/plant-1",)
    assert TopicsPattern("a", "b", ".*").matching(THERE) == (
        "persistent://a/b/plant-1",
        "persistent://a/b/plant-22",
    )


def test_a_pattern_without_a_namespace_is_of_the_default_one() -> None:
    assert asked_topics({"topicspattern": "topic.*"}, [])[1] == TopicsPattern("public", "default", "topic.*")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "exactly one of topic, topics and topicsPattern"),
        ({"topic": "a", "topicspattern": "b"}, "exactly one of"),
        ({"topic": "a,b"}, "give several topics with topics"),
        ({"topics": " , "}, "topics names no topic"),
        ({"topicspattern": "a/.*/x"}, "only the last part is a regular expression"),
        ({"topicspattern": "a/b/("}, "missing \\)"),
        ({"topicspattern": "a/b"}, "give tenant/namespace/ and a regular expression"),
        ({"topicspattern": "non-persistent://a/b/x"}, "give tenant/namespace/"),
    ],
)
def test_what_names_no_topics_is_refused(options: dict[str, str], why: str) -> None:
    problems: list[str] = []
    asked_topics(options, problems)
    assert len(problems) == 1
    assert why.replace("\\", "") in problems[0]
