"""The addresses of Pulsar: several hosts, and what users typed instead."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bridge.settings.pulsar import PulsarSettings, hosts_of


def test_several_hosts_each_with_its_port_or_the_usual_one() -> None:
    settings = PulsarSettings(service_url="pulsar://a:1,b", admin_url="http://a:8080,[::1]:8081/")
    assert hosts_of(settings.service_url) == [("a", 1), ("b", 6650)]
    assert settings.admin_urls == ["http://a:8080", "http://[::1]:8081"]


@pytest.mark.parametrize(
    ("field", "url", "what"),
    [
        ("service_url", "http://a:6650", "should begin with pulsar://"),
        ("service_url", "a:6650", "does not begin with pulsar://"),
        ("service_url", "pulsar://a:6650,,b:6650", "is not of the form pulsar://host:port,host:port"),
        ("service_url", "pulsar://a:6650,pulsar://b:6650", "is not of the form pulsar://host:port,host:port"),
        ("service_url", "pulsar://a:six", "has an invalid port"),
        ("service_url", "pulsar://me:secret@a:six", "'pulsar://a:six' has an invalid port"),
        ("admin_url", "pulsar://a:8080", "should begin with http://"),
        ("admin_url", "http://", "is not of the form http://host:port,host:port"),
        ("admin_url", "http://a:70000", "has an invalid port"),
    ],
)
def test_what_is_no_url_of_hosts_is_refused(field: str, url: str, what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        PulsarSettings(**{field: url})  # type: ignore[arg-type]
