"""Any messages that a link could hand over, also those that no honest broker would let through: for fuzzing."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from bridge.mqtt.types import Message, PublishProperties

anything = st.text(st.characters(exclude_categories=()), max_size=12)  # with halves of surrogate pairs
level = st.one_of(
    st.sampled_from(
        ["a", "b", "s", "", ".", "..", "$SYS", "__x", "a-partition-1", "+", "#", "é", "=2E", "x" * 300]
    ),
    anything,
)
topics = st.lists(level, min_size=1, max_size=5).map("/".join)

payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(["a", "a/b", "+", "", 7, None, "\ud800", ["x"]]).map(
        lambda v: json.dumps({"id": v}).encode()
    ),
)
pairs = st.lists(st.tuples(st.sampled_from(["u", "v"]) | anything, anything), max_size=3).map(tuple)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    properties = draw(
        st.none()
        | st.builds(
            PublishProperties,
            user=pairs,
            content_type=st.none() | anything,
            response_topic=st.none() | anything,
            correlation_data=st.none() | st.binary(max_size=20),
            payload_format=st.none() | st.integers(0, 1),
            expiry_s=st.none() | st.integers(0, 2**32 - 1),
        )
    )
    flags = draw(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()))
    return Message(draw(topics), draw(payloads), *flags, 7, properties)
