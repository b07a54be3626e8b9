from __future__ import annotations

import pytest

from bridge.contract.cursors import OwnerRecord
from bridge.errors import ContractError


def test_an_owner_record_survives_encoding() -> None:
    record = OwnerRecord.decode(OwnerRecord("host/1/x", 3, clean=True).encode())
    assert record == OwnerRecord("host/1/x", 3, clean=True)
    with pytest.raises(ContractError):
        OwnerRecord.decode(b'{"v":7}')
