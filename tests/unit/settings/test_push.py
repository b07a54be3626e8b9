"""Settings of push that contradict those of ingest."""

from __future__ import annotations

import pytest

from bridge.errors import ConfigError
from bridge.settings.loading import load


@pytest.mark.parametrize("silence_s", [0, 60, 3600])
def test_a_silence_that_what_is_noted_can_tell_is_taken(silence_s: int) -> None:
    assert load(None, [f"push.presence.silence={silence_s}s"]).push.presence.silence == silence_s


def test_a_silence_shorter_than_what_is_noted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"records a publishing device every 30s .*at least twice that"):
        load(None, ["push.presence.silence=59s"])
    assert load(None, ["push.presence.silence=59s", "ingest.presence_interval=20s"]).push.presence.silence == 59
