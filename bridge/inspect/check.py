"""``pulsebridge check``: whether every endpoint answers, and the rights of a tier.

It dials every endpoint once, with a separate client id, and consumes nothing. It decides which result is an answer and
which remedy belongs to a failure; the clients dial.

The rights of a tier's credentials are checked without a write, a read or an acknowledgement: it tries a subscription in
a separate session, which it closes at once, and it opens and closes a producer or reader. It does not check the right
to publish at the MQTT broker, because that requires a publish.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final

from bridge.contract import COMMANDS_TOPIC, CURSORS_TOPIC, DEAD_LETTERS_TOPIC, RECEIPTS_TOPIC, partition_name
from bridge.errors import DeniedError, MissingExtraError, PulsebridgeError, RefusedError, TransientError
from bridge.mqtt.device import probe, try_subscribing
from bridge.mqtt.refusals import subscriber
from bridge.mqtt.types import Connected
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.dial import dial
from bridge.pulsar.provisioning import look, partitions_ready, try_rights, verify
from bridge.pulsar.provisioning_plan import Needs, ingest_needs, push_needs, topic_need
from bridge.push.inbound import push_filters
from bridge.routing.readings_topics import static_topics, topics_to_read
from bridge.routing.rules import subscriptions, with_resume
from bridge.settings import MqttSettings, Settings
from bridge.settings.fetch import FetchSettings, fetched_topics
from bridge.settings.http import HttpSettings

__all__ = ["TIERS", "Finding", "check_endpoints", "check_rights"]

TIERS: Final = ("ingest", "source", "sink", "push")
_NAMED_ABOVE: Final = "the settings named above"
_TIMEOUT_S: Final = 5.0
"""Time for one endpoint to answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    address: str
    ok: bool
    detail: str
    remedy: str = ""
    took_ms: int = 0


def check_endpoints(settings: Settings) -> list[Finding]:
    """Dial each MQTT link, Pulsar and Pulsar's admin; return a finding for each. Failures are findings, not errors."""
    pulsar = settings.pulsar
    found = []
    for name, mqtt in settings.links().items():
        label = f"MQTT link {name}" if settings.ingest.links else "MQTT broker"
        address = f"{mqtt.host}:{mqtt.port}"
        found.append(_finding(label, address, "mqtt.host, mqtt.port, mqtt.tls", partial(_dial_mqtt, mqtt)))
    found.append(_finding("Pulsar", pulsar.service_url, "pulsar.service_url", lambda: _dial_pulsar(settings)))
    if pulsar.provision != "off":  # else no tier uses it
        found.append(_finding("Pulsar admin", pulsar.admin_url, "pulsar.admin_url", lambda: _dial_admin(settings)))
    ports = (("HTTP", settings.http.port, False), ("HTTPS", settings.http.tls_port, True))
    for name, port, tls in ports if "http" in settings.messaging_protocols else ():
        if port is not None:
            act = partial(_listener, settings.http, port, tls=tls)
            found.append(_finding(name, f"{settings.http.host}:{port}", "http.host, http.port, http.tls_port", act))
    return found


def _finding(name: str, address: str, setting: str, act: Callable[[], str]) -> Finding:
    """Return the result of ``act``, or its error, as a finding; ``setting`` names the settings of the endpoint."""
    start = time.monotonic()
    try:
        detail = act()
    except PulsebridgeError as e:
        if e.remedy:
            remedy = e.remedy
        elif isinstance(e, RefusedError):
            remedy = "the endpoint answers, but refuses: check the user, password, token or certificate in the settings"
        else:
            remedy = f"start the server (pulsebridge up starts local ones), or set {setting}"
        return Finding(name, address, False, e.what, remedy, round((time.monotonic() - start) * 1000))
    return Finding(name, address, True, detail, "", round((time.monotonic() - start) * 1000))


def _dial_mqtt(settings: MqttSettings) -> str:
    found = probe(settings)
    if isinstance(found, Connected):
        return f"supports MQTT {settings.protocol}, receive maximum {found.receive_maximum}"
    if found.remedy is not None:
        raise DeniedError(found.why, remedy=found.remedy)
    raise TransientError(found.why)


def _dial_pulsar(settings: Settings) -> str:
    dial(settings.pulsar, _TIMEOUT_S)  # reports at once a failure that the client reports only after its timeout
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _TIMEOUT_S})
    with PulsarClient(pulsar) as client:
        # A look-up creates no topic and reads no message, but passes authentication.
        client.partitions(pulsar.readings_topic("pulsebridge-check"))
    return "answers look-ups"


def _dial_admin(settings: Settings) -> str:
    with PulsarAdmin(settings.pulsar, timeout_s=_TIMEOUT_S) as admin:
        return f"cluster {admin.cluster()}"


def _listener(http: HttpSettings, port: int, *, tls: bool) -> str:
    """Try the certificate and the port of a listener of ingest, which need not run."""
    from bridge.http.handler import server_context

    if find_spec("h11") is None:
        raise MissingExtraError("the protocol http needs h11", remedy='pip install "pulsebridge[http]"')
    if tls:
        server_context(http)
    try:
        socket.create_server((http.host, port), family=_family(http.host)).close()
    except OSError as e:
        if e.errno != errno.EADDRINUSE:
            what = f"ingest cannot listen on {http.host}:{port}: {e.strerror or e}"
            raise RefusedError(what, remedy="set http.host to an address of this machine") from e
        return "the port is in use, as while ingest runs" + (", the certificate is valid" if tls else "")
    return "ingest can listen" + (", the certificate is valid" if tls else "")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


# --- rights ---


def check_rights(settings: Settings, tier: str) -> list[Finding]:
    """Return a finding for each server that the tier uses; failures are findings, not errors."""
    pulsar = settings.pulsar
    found = [_finding("Pulsar rights", pulsar.service_url, _NAMED_ABOVE, lambda: _pulsar_rights(settings, tier))]
    tries = {"ingest": _filters, "push": _push_filters}
    if tier in tries:
        for name, mqtt in settings.links().items():
            address = f"{mqtt.host}:{mqtt.port}"
            label = "MQTT rights" if name == "mqtt" else f"MQTT {name} rights"
            one = settings.model_copy(update={"mqtt": mqtt})
            found.append(_finding(label, address, _NAMED_ABOVE, partial(tries[tier], one)))
    fetch = settings.http.commands
    if tier == "ingest" and "http" in settings.messaging_protocols and fetch.topics:
        mqtt = settings.fetch_mqtt(fetch)
        address = f"{mqtt.host}:{mqtt.port}"
        found.append(_finding("MQTT rights for HTTP", address, _NAMED_ABOVE, partial(_fetched, mqtt, fetch)))
    return found


def _pulsar_rights(settings: Settings, tier: str) -> str:
    pulsar = settings.pulsar
    if tier in ("source", "sink"):
        return _source(settings) if tier == "source" else _sink(settings)
    topics = static_topics(settings) if tier == "ingest" else []
    needs = push_needs(pulsar)
    if tier == "ingest":
        presence, resume = settings.ingest.presence_interval > 0, settings.ingest.resume_topic is not None
        needs = ingest_needs(pulsar, topics, presence=presence, resume=resume)
    detail = "not checked: pulsar.provision is off" if pulsar.provision == "off" else _needs(settings, needs)
    if tier == "ingest":
        try_rights(pulsar, write=(pulsar.system_topic(DEAD_LETTERS_TOPIC), *topics))
    else:
        writes, reads = pulsar.system_topic(RECEIPTS_TOPIC), pulsar.system_topic(CURSORS_TOPIC)
        try_rights(pulsar, write=(writes,), read=(reads,))
    return detail


def _source(settings: Settings) -> str:
    """Try the topics that `pulsebridge stream` reads: their statistics, which plan a batch, and a reader."""
    pulsar = settings.pulsar
    with PulsarAdmin(pulsar) as admin:
        topics = topics_to_read(settings, admin.topics)
        missing = [topic for topic in topics if not admin.exists(topic)]
        if missing or not topics:
            raise RefusedError(
                f"missing topics: {', '.join(missing)}" if missing else "no topic to read exists",
                remedy="start `pulsebridge ingest` first, or correct streaming.topics",
            )
        for topic in topics:
            admin.internal_stats(partition_name(topic, 0) if admin.partition_count(topic) else topic)
    try_rights(pulsar, read=topics)
    return f"may read {', '.join(topics)}"


def _sink(settings: Settings) -> str:
    """Try the first step of a write of commands, and the producers of its tasks."""
    pulsar = settings.pulsar
    commands = pulsar.system_topic(COMMANDS_TOPIC)
    with PulsarAdmin(pulsar) as admin:
        if not partitions_ready(admin, topic_need(pulsar, COMMANDS_TOPIC)):
            raise RefusedError(
                f"{commands} does not exist, or lacks the push tier's subscription",
                remedy="start `pulsebridge push` once, or let an operator run the commands that `pulsebridge provision "
                "--dry-run` prints",
            )
    try_rights(pulsar, write=(commands, pulsar.system_topic(DEAD_LETTERS_TOPIC)))
    return f"may write to {commands}"


def _needs(settings: Settings, needs: Needs) -> str:
    with PulsarAdmin(settings.pulsar) as admin:
        if settings.pulsar.provision == "verify":
            unchecked = verify(admin, needs)
            return "all resources exist" + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")
        found = look(admin, needs)
    if found.unchecked:
        raise DeniedError(
            f"pulsar.provision is create, and this role does not administer the tenant {settings.pulsar.tenant}",
            remedy="set pulsar.provision=verify, and let an operator run the commands that "
            "`pulsebridge provision --dry-run` prints",
        )
    return (
        f"{len(found.missing)} resources are missing: {needs.tier} creates them at its start"
        if found.missing
        else "all resources exist"
    )


def _fetched(mqtt: MqttSettings, fetch: FetchSettings) -> str:
    """Try to subscribe to the commands that devices fetch. The right to publish their status is not tried."""
    filters = fetched_topics("+", fetch)
    codes = try_subscribing(mqtt, filters)
    refused = [one for one, code in zip(filters, codes, strict=True) if code >= 0x80]
    if refused:
        who = subscriber(mqtt, f"{fetch.client_id}-<device>")
        raise RefusedError(
            f"the MQTT broker refuses the subscription to {', '.join(map(repr, refused))}",
            remedy=f"allow {who} to read http.commands.topics, and to write the status and the answers of devices",
        )
    return f"may subscribe to {', '.join(filters)}"


def _filters(settings: Settings) -> str:
    needed = subscriptions(settings.ingest)
    filters = [f for f in with_resume(needed, settings.ingest) if not f.startswith("$share/")]
    codes = try_subscribing(settings.mqtt, filters)
    refused = [f for f, code in zip(filters, codes, strict=True) if code >= 0x80]
    who = subscriber(settings.mqtt, settings.mqtt.client_id)
    if any(f in needed for f in refused):
        raise RefusedError(
            f"the MQTT broker refuses the subscription to {', '.join(repr(f) for f in refused)}",
            remedy=f"allow {who} to read it, or remove it from ingest.routes and ingest.filters",
        )
    detail = f"may subscribe to {', '.join(f for f in filters if f not in refused)}"
    if refused:  # the tier runs without it
        detail += f"; devices cannot resume: allow {who} to read {refused[0]}, or set ingest.resume_topic to null"
    return detail


def _push_filters(settings: Settings) -> str:
    push, mqtt = settings.push, settings.mqtt
    filters = push_filters(settings, 0)
    if not filters:
        return "push subscribes to nothing there"
    codes = try_subscribing(mqtt, filters)
    refused = [f for f, code in zip(filters, codes, strict=True) if code >= 0x80]
    if refused:
        raise RefusedError(
            f"the MQTT broker refuses the subscription to {', '.join(map(repr, refused))}",
            remedy=f"allow {subscriber(mqtt, f'{push.client_id}-0')} to read it; push.presence.rules and push.answers.topic "
            "name it",
        )
    return f"may subscribe to {', '.join(filters)}"
