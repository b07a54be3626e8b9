from __future__ import annotations

import pytest

from bridge.errors import ConfigError
from bridge.settings import PulsarSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.topics.existing import refuse_missing


def test_an_admin_that_is_away_refuses_no_topic_because_the_source_reads_without_it() -> None:
    away = PulsarSettings(admin_url=f"http://127.0.0.1:{free_ports(1)[0]}")
    refuse_missing(["persistent://public/pulsebridge/plant"], away)


def test_a_name_of_mqtt_is_refused_without_an_admin() -> None:
    with pytest.raises(ConfigError, match="topics explain"):
        refuse_missing(["plant/press-1"], PulsarSettings())
