"""Which rows a command means, and what it prints of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.quarantine.listing import Example, Summary, outcome_json, outcome_text
from streaming.quarantine.replay import Outcome
from streaming.quarantine.selection import Selection

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(names), names, names, st.integers(0, 2**60))
def test_a_selection_comes_back_from_the_record_of_a_replay(
    rules: list[str], topic: str, device: str, since: int
) -> None:
    one = Selection(tuple(rules), topic, device, since)
    assert Selection.from_recipe(one.as_recipe()) == one


def matches(pattern: str | None, text: str) -> bool:
    # Java's \x{..} is Python's \x.. for the characters used here
    found = re.sub(r"\\x\{(\w+)\}", lambda m: re.escape(chr(int(m.group(1), 16))), pattern or r"(?!)")
    return re.search(found, text) is not None


@pytest.mark.parametrize(
    ("topic", "pulsar", "expected"),
    [
        ("plant", "persistent://public/readings/plant", True),
        ("plant", "persistent://public/readings/plant-partition-3", True),
        ("persistent://public/readings/plant", "persistent://public/readings/plant-partition-3", True),
        ("plant-partition-3", "persistent://public/readings/plant-partition-1", True),
        ("plant", "persistent://public/readings/implant", False),
        ("a.b", "persistent://public/readings/aXb", False),
    ],
)
def test_a_pulsar_topic_is_meant_by_its_full_or_its_local_name(
    topic: str, pulsar: str, expected: bool
) -> None:
    assert matches(Selection(topic=topic).topic_patterns[0], pulsar) is expected


def test_what_cannot_be_an_mqtt_filter_is_a_pulsar_topic_alone() -> None:
    assert Selection(topic="a#").topic_patterns[1] is None
    assert matches(Selection(topic="plant/+/press").topic_patterns[1], "plant/7/press")


def test_the_list_says_how_many_of_what_and_shows_the_newest() -> None:
    example = Example(
        1_700_000_000_000_000, "d", "plant/d", ("range", "unit"), "expect … on value", b'{"v": 1}'
    )
    found = Summary(
        30, 1_600_000_000_000_000, 1_700_000_000_000_000,
        {f"r{n:02d}": 30 - n for n in range(25)}, {"plant": 30}, (example,),
    )  # fmt: skip
    text = found.as_text()
    for shown in ("30 rows are held", "       30  r00", "and 5 more", "plant/d  range, unit", '{"v": 1}'):
        assert shown in text
    body = found.as_json()
    assert (body["rules"]["r24"], body["examples"][0]["payload"]) == (6, '{"v": 1}')
    assert Summary().as_text() == "nothing is held"
    assert Summary().as_json()["newest"] is None


def test_a_replay_says_what_it_finished_and_what_stays() -> None:
    cut = Outcome(held=3, passed=2, new=1, failed=0, left=1, finished=True)
    text = outcome_text(cut, False)
    assert text.startswith("finished a replay that was cut")
    assert "2 readings pass (1 of them new in silver)" in text
    assert "1 stay as they are" in text
    assert outcome_json(Outcome(failed=1, rules={"r": 1}), True)["rules"] == {"r": 1}
