from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.push.resume_answers import RefusalRate


@given(
    st.lists(st.tuples(st.text(max_size=5), st.floats(0, 2)), max_size=100),
    st.floats(0.5, 20),
    st.floats(0, 5),
)
def test_h47_each_device_and_all_together_keep_to_their_rates(
    asked: list[tuple[str, float]], per_s: float, every_s: float
) -> None:
    rate = RefusalRate(per_s, every_s)
    now, sent = 1000.0, []
    for device, later in asked:
        now += later
        if rate.allows(device, now):
            sent.append((device, now))
    assert len(sent) <= max(1.0, per_s) + (now - 1000.0) * per_s + 1e-6
    last: dict[str, float] = {}
    for device, at in sent:
        assert at - last.get(device, -9e9) >= every_s - 1e-6
        last[device] = at


def test_h47_a_device_gets_the_next_refusal_after_its_time() -> None:
    rate = RefusalRate(100, 5)
    assert [rate.allows("d", now) for now in (10.0, 14.9, 15.0)] == [True, False, True]


def test_h47_invented_names_use_memory_up_to_a_limit() -> None:
    rate = RefusalRate(1e9, 3600, max_bytes=10_000)
    for number in range(1000):
        assert rate.allows(f"{number}{'x' * 1000}", 10.0)
        assert rate.last.bytes <= 10_000 + 5000
