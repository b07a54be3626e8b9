from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.decoding import LAST_US
from bridge.contract.presence import PresenceRecord
from bridge.errors import ContractError


@given(st.integers(0, LAST_US), st.text())
def test_a_record_comes_back_as_it_was(seen_us: int, link: str) -> None:
    record = PresenceRecord(seen_us, link)
    assert PresenceRecord.decode(record.encode()) == record


@pytest.mark.parametrize("payload", [b"", b"1", b"{}", b'{"v":1}', b'{"v":2,"seen_us":1}', b'{"v":1,"seen_us":"x"}'])
def test_what_is_no_record_of_this_version_is_refused(payload: bytes) -> None:
    with pytest.raises(ContractError, match="presence"):
        PresenceRecord.decode(payload)
