"""A link that its broker refuses: it pauses and reconnects, and no other link is affected."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge import contract
from bridge.ingest import mqtt_handler
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.links import LinkSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from bridge.settings.secret_file import SecretFile
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import device, running_ingest, stored
from tests.support.secured import PASSWORD, SecuredArtemis
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.mark.thorough
def test_a_refused_link_pauses_and_reconnects_with_the_right_password(
    stack: LocalStack,
    artemis: SecuredArtemis,
    namespaces: PulsarSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt_handler, "_RETRY_S", 0.5)
    password = tmp_path / "password"
    password.write_text("wrong")
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    secured = artemis.settings("operator")
    guarded = LinkSettings(
        name="guarded",
        **{f: getattr(secured, f) for f in ("host", "port", "client_id", "tls", "tls_ca", "username")},  # type: ignore[arg-type]
        password=SecretFile(password),  # type: ignore[call-arg]
    )
    rule = TopicRule(name="fleet", filter=f"plant/{root}/+device", topic="fleet", device="{device}")
    settings = Settings(
        mqtt=mqtt,
        pulsar=namespaces,
        ingest=IngestSettings(routes=(rule,), links=(LinkSettings(name="open"), guarded)),
    )

    def came_by(link: str, payload: bytes) -> bool:
        return (link, payload) in {(m.properties[contract.P_LINK], m.payload) for m in stored(namespaces, "fleet")}

    with running_ingest(settings, wait=False) as service, device(mqtt, "dev") as here:
        poll_for(
            lambda: service.running.readiness().get("mqtt") == {"open": True, "guarded": False}, 60, "the open link"
        )
        here.publish(f"plant/{root}/d", b"meanwhile")
        assert here.flush()
        poll_for(lambda: came_by("open", b"meanwhile"), 60, "the open link's message", every=0.3)
        assert not service.ended.is_set()
        password.write_text(PASSWORD)
        poll_for(lambda: all(service.running.readiness()["mqtt"].values()), 60, "the guarded link")
        with device(artemis.settings("operator"), "dev") as there:
            there.publish(f"plant/{root}/d", b"at last")
            assert there.flush()
        poll_for(lambda: came_by("guarded", b"at last"), 60, "the guarded link's message", every=0.3)
