"""Any messages that a protocol handler can deliver, also those that a correct broker refuses: for fuzzing."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from bridge.mqtt.types import Message, PublishProperties

anything = st.text(st.characters(exclude_categories=()), max_size=12)  # with halves of surrogate pairs
arriving = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
_levels = st.sampled_from(
    ["a", "b", "s", "", ".", "..", "$SYS", "__x", "a-partition-1", "+", "#", "é", "=2E", "x" * 300]
)

payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(["a", "a/b", "+", "", 7, None, "\ud800", ["x"]]).map(lambda v: json.dumps({"id": v}).encode()),
)


@st.composite
def messages(draw: st.DrawFn, texts: st.SearchStrategy[str] = anything) -> Message:
    topics = st.lists(_levels | texts, min_size=1, max_size=5).map("/".join)
    pairs = st.lists(st.tuples(st.sampled_from(["u", "v"]) | texts, texts), max_size=3).map(tuple)
    properties = draw(
        st.none()
        | st.builds(
            PublishProperties,
            user=pairs,
            content_type=st.none() | texts,
            response_topic=st.none() | texts,
            correlation_data=st.none() | st.binary(max_size=20),
            payload_format=st.none() | st.integers(0, 1),
            expiry_s=st.none() | st.integers(0, 2**32 - 1),
        )
    )
    flags = draw(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()))
    return Message(draw(topics), draw(payloads), *flags, 7, properties)
