"""``topics discover`` at a broker with users and rights: it reads what its user may, and says what that may not."""

from __future__ import annotations

import pytest

from bridge.errors import DeniedError, RefusedError
from pulsebridge.topics.listening import discover
from tests.support.ingest import device
from tests.support.secured import SecuredArtemis

pytestmark = pytest.mark.stack


def test_discover_reads_what_its_user_may_and_names_the_right_that_is_missing(
    artemis: SecuredArtemis,
) -> None:
    reader = artemis.settings("ingest")
    with pytest.raises((DeniedError, RefusedError), match="the broker refused a subscription") as refused:
        discover(reader, ["#"], 60)
    assert refused.value.remedy
    assert "'ingest'" in refused.value.remedy
    with device(artemis.settings("device"), "dev") as dev:
        dev.publish("plant/press-1/temperature", b"21.5", retain=True)
        assert dev.flush()
        report = discover(reader, ["plant/#"], 5)
        dev.publish("plant/press-1/temperature", b"", retain=True)  # other tests read below plant/ too
        assert dev.flush()
    assert (report["messages"], report["retained"]) == (1, 1)
    assert report["routes"][0]["filter"] == "plant/+device/+metric"
