"""Charts: every number fits in the box, peaks stay, hostile numbers break nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsebridge.ui.charts import HEIGHT, WIDTH, charts
from pulsebridge.ui.lakehouse import Reading

READINGS = st.lists(
    st.builds(
        Reading,
        st.integers(0, 2**52),
        st.sampled_from(["a", "b", "<b>"]),
        st.one_of(st.none(), st.floats()),
        st.none(),
    ),
    max_size=40,
).map(lambda found: sorted(found, key=lambda one: one.us))


@given(READINGS)
def test_all_points_are_in_the_box(readings: list[Reading]) -> None:
    for chart in charts(readings):
        points = [tuple(map(float, point.split(","))) for point in chart.points.split()]
        assert 1 <= len(points) <= chart.count
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_a_long_series_keeps_its_peak_and_few_points() -> None:
    readings = [Reading(n, "t", 1000.0 if n == 4321 else float(n % 7), None) for n in range(5000)]
    (chart,) = charts(readings)
    assert len(chart.points.split()) <= 402
    assert chart.highest == "1,000"
    assert any(point.endswith(",0.0") for point in chart.points.split())


def test_text_and_no_numbers_give_no_chart() -> None:
    assert charts([Reading(1, "t", None, "on"), Reading(2, "t", float("nan"), None)]) == []
