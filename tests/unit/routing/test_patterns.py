"""Whether two sets of strings meet, against matching by example."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.routing.patterns import Pattern, Star, matcher, meet, regex
from bridge.routing.rules import subscriptions
from bridge.routing.templates import Filter
from bridge.settings.ingest import IngestSettings
from bridge.settings.rules import TopicRule

parts = st.one_of(st.sampled_from(["a", "b", "/", "ab"]), st.sampled_from(list(Star)))
patterns = st.lists(parts, max_size=4).map(tuple)
strings = st.text(alphabet="ab/", max_size=7)


@settings(deadline=None, max_examples=500)
@given(patterns, patterns, strings)
def test_a_common_string_means_that_they_meet(a: Pattern, b: Pattern, text: str) -> None:
    if regex(a).match(text) and regex(b).match(text):
        assert meet(a, b)


@settings(deadline=None, max_examples=200)
@example(("ab", "ab", "ab", Star.LEVEL), (Star.LEVEL, "a", "a", "ab"))
@given(patterns, patterns)
def test_meeting_is_symmetric_and_has_a_witness(a: Pattern, b: Pattern) -> None:
    assert meet(a, b) == meet(b, a)
    if meet(a, b):
        assert _witness(a, b)


def _witness(a: Pattern, b: Pattern) -> bool:
    """Whether there is a string of both: no shortest one is longer than what both say letter by letter."""
    x, y = _beginnings(a), _beginnings(b)
    todo = [""]
    for _ in range(len(x) + len(y)):
        if any(x[-1].match(t) and y[-1].match(t) for t in todo):
            return True
        longer = (t + c for t in todo for c in "ab/")
        todo = [t for t in longer if all(any(p.match(t) for p in some) for some in (x, y))]
    return False


def _beginnings(pattern: Pattern) -> list[re.Pattern[str]]:
    """The pattern up to each of its letters and stars; what begins a string of it matches one of them."""
    letters = tuple(c for part in pattern for c in ([part] if isinstance(part, Star) else part))
    return [regex(letters[:end]) for end in range(len(letters) + 1)]


def test_a_filter_with_a_rest_matches_its_parent() -> None:
    whole, parent = Filter.parse("a/#").patterns
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


filter_texts = st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)
levels_of_topics = st.lists(st.sampled_from(["a", "b", "", "c"]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=500)
@given(filter_texts, filter_texts, levels_of_topics)
def test_a_filter_that_covers_another_matches_all_of_its_topics(one: str, other: str, levels: list[str]) -> None:
    wide, narrow = Filter.parse(one), Filter.parse(other)
    if wide.covers(narrow) and narrow.match(levels) is not None:
        assert wide.match(levels) is not None
    assert wide.covers(wide)


@settings(deadline=None, max_examples=300)
@given(filter_texts, levels_of_topics)
def test_the_parts_of_a_filter_s_topics_cover_all_that_it_matches(text: str, levels: list[str]) -> None:
    one = Filter.parse(text)
    if one.match(levels) is not None:
        assert matcher(one.topic_parts)("/".join(levels))


def test_subscriptions_leave_out_what_another_covers() -> None:
    rules = [TopicRule(name=f"r{n}", filter=f) for n, f in enumerate(["a/b/+x", "a/#rest", "a/+y/c", "a", "+z/b"])]
    assert subscriptions(IngestSettings(routes=tuple(rules))) == ("a/#", "+/b")
