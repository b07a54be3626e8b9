"""Whether two sets of strings meet, against matching by example."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.topic_patterns import Pattern, Star, filter_pattern, matcher, meet, regex

parts = st.one_of(st.sampled_from(["a", "b", "/", "ab"]), st.sampled_from(list(Star)))
patterns = st.lists(parts, max_size=4).map(tuple)
strings = st.text(alphabet="ab/", max_size=7)


@settings(deadline=None, max_examples=500)
@given(patterns, patterns, strings)
def test_a_common_string_means_that_they_meet(a: Pattern, b: Pattern, text: str) -> None:
    if regex(a).match(text) and regex(b).match(text):
        assert meet(a, b)


@settings(deadline=None, max_examples=200)
@given(patterns, patterns)
def test_meeting_is_symmetric_and_has_a_witness(a: Pattern, b: Pattern) -> None:
    assert meet(a, b) == meet(b, a)
    if meet(a, b):
        assert _witness(a, b)


def _witness(a: Pattern, b: Pattern) -> bool:
    x, y = regex(a), regex(b)
    todo = [""]
    for _ in range(9):
        if any(x.match(t) and y.match(t) for t in todo):
            return True
        todo = [t + c for t in todo for c in "ab/"]
    return any(x.match(t) and y.match(t) for t in todo)


def test_a_filter_with_a_rest_matches_its_parent() -> None:
    whole, parent = filter_pattern(["a", Star.REST])
    assert regex(whole).match("a/b/c")
    assert regex(parent).match("a")
    assert not regex(parent).match("a/b")


@settings(deadline=None, max_examples=500)
@given(patterns, strings)
def test_following_a_pattern_agrees_with_its_regular_expression(pattern: Pattern, text: str) -> None:
    assert matcher(pattern)(text) == bool(regex(pattern).match(text))


def test_a_crafted_topic_is_matched_in_time_that_grows_with_its_length() -> None:
    pattern = ("devices/", Star.LEVEL, "-", Star.LEVEL, "-", Star.LEVEL, "/commands")
    assert not matcher(pattern)("devices/" + "-" * 65_000)  # a regular expression would take hours
    assert matcher(pattern)("devices/" + "-" * 65_000 + "/commands")
