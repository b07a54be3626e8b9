from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import PositionTags, read_position

names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
places = st.builds(CommandPosition, st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1), st.integers(-1, 999))


@given(st.tuples(st.binary(min_size=1), places, names), st.tuples(st.binary(min_size=1), places, names))
def test_h36_a_tag_proves_one_position_of_one_device_under_one_secret(
    one: tuple[bytes, CommandPosition, str], other: tuple[bytes, CommandPosition, str]
) -> None:
    secret, position, device = one
    tags = PositionTags(secret, 4)
    back = read_position(tags.tagged(position, device))
    assert (back.generation, back.partition, back.position) == (0, 4, position)
    assert back == read_position(tags.tagged(position, device).replace(".", "/"))
    assert tags.proves(back.tag, position, device)
    assert not PositionTags(secret, 5).proves(back.tag, position, device)
    same_key = secret.rstrip(b"\0") == other[0].rstrip(b"\0")  # HMAC pads a key with zeros (RFC 2104)
    if (position, device) != other[1:] or not same_key:
        assert not PositionTags(other[0], 4).proves(back.tag, *other[1:])
