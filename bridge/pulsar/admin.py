"""Pulsar's admin REST, as far as Pulsebridge needs it: provisioning, statistics, positions.

Provisioning precedes the first message. A topic with no subscription and no retention loses its messages at once
(H11). Time-to-live or eviction would consume messages that a subscription retains (H13).
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from bridge.backoff import backoff_s
from bridge.contract import Position, base_topic
from bridge.errors import DeniedError, ForbiddenError, RefusedError, TransientError
from bridge.pulsar.http import ROOT, AdminHttp
from bridge.pulsar.provisioning_plan import (
    Step,
    namespace_steps,
    policies_lack,
    rest_path,
    subscription_path,
    tenant_step,
)
from bridge.settings.pulsar import PulsarSettings

__all__ = ["PulsarAdmin", "position_at", "rest_path", "subscription_path"]

_BUSY_ATTEMPTS: Final = 8
_BUSY_WAIT_S: Final = 0.1
_BUSY_LONGEST_S: Final = 1.0
_VISIBLE_S: Final = 10.0
_VISIBLE_EVERY_S: Final = 0.05
_PASSES: Final = ("Subscription Busy", "unable to persist")
"""Texts of a 412 that passes. Another process makes or moves the same subscription now, or Pulsar could not write its
cursor, as just after a restart."""


class PulsarAdmin:
    """A client of Pulsar's admin REST. Raises TransientError if it cannot be reached, RefusedError on 4xx,
    DeniedError (a RefusedError) if credentials, certificates or rights are the cause.
    """

    def __init__(self, settings: PulsarSettings, *, timeout_s: float = 10.0) -> None:
        self.settings = settings
        self._http = AdminHttp(settings, timeout_s=timeout_s)

    def __enter__(self) -> PulsarAdmin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(
        self, method: str, path: str, *, body: Any = None, accept: tuple[int, ...] = (), root: str = ROOT
    ) -> Any:
        """Send one request below ``root`` and return the answer's JSON body, None if it is empty.

        ``accept`` lists further status codes that count as success (409 for something that exists already).
        Raises TransientError if the server cannot be reached or answers 5xx, DeniedError on 401 and 403,
        RefusedError on other codes.
        """
        for attempt in range(_BUSY_ATTEMPTS):
            answer = self._http.send(method, path, body=body, root=root)
            if answer.status_code != 412 or not any(why in answer.text for why in _PASSES):
                break
            time.sleep(backoff_s(attempt, _BUSY_WAIT_S, _BUSY_LONGEST_S, random.random()))
        else:
            raise TransientError(
                f"Pulsar's admin answered 412 to {method} {path}: the subscription cannot be moved now"
            )
        if answer.status_code >= 400 and answer.status_code not in accept:
            raise self._http.refusal(method, path, answer)
        if answer.status_code >= 400 or not answer.content:
            return None
        try:
            return answer.json()
        except ValueError:
            return answer.text

    # --- namespaces and topics ---

    def do(self, step: Step) -> None:
        """Do one step of provisioning. Raises DeniedError with the command for an operator if it is not allowed."""
        try:
            self.request(step.method, step.path, body=step.body, accept=step.accept)
        except ForbiddenError as e:
            raise ForbiddenError(
                e.what,
                remedy=f"let an operator run: {step.shell} (all commands: pulsebridge provision --dry-run), and set "
                "pulsar.provision=verify",
            ) from e

    def provision_namespaces(self) -> None:
        """Create all namespaces and set their policies: retention, no TTL, producers blocked at the quota."""
        s = self.settings
        for tenant in dict.fromkeys(name.split("/")[0] for name in s.all_namespaces):
            if not self.has_tenant(tenant):
                self.do(tenant_step(tenant, self.clusters()))
        for namespace in s.all_namespaces:
            for step in namespace_steps(namespace, s):
                self.do(step)
            self._await_policies(namespace)

    def _await_policies(self, namespace: str) -> None:
        """Wait until the new policies are visible. For a moment Pulsar may answer from an older cache. Callers that
        read the policies report those that are still missing.
        """
        deadline = time.monotonic() + _VISIBLE_S
        with suppress(DeniedError):  # this role may set policies, but not read them
            while policies_lack(namespace, self.request("GET", f"/namespaces/{namespace}"), self.settings):
                if time.monotonic() > deadline:
                    return
                time.sleep(_VISIBLE_EVERY_S)

    def has_tenant(self, tenant: str) -> bool:
        """Return whether the tenant exists; False for roles other than its administrators, which may not ask."""
        try:
            return self.request("GET", f"/namespaces/{tenant}", accept=(404,)) is not None
        except ForbiddenError:
            return False

    def create_partitioned(self, topic: str, partitions: int) -> int:
        """Create a partitioned topic if it does not exist. Returns its number of partitions."""
        self.request("PUT", f"/{rest_path(topic)}/partitions", body=partitions, accept=(409,))
        return self.partition_count(topic)

    def make(self, topic: str, partitions: int) -> bool:
        """Create a topic with so many partitions, 0 for none, if it does not exist.

        Returns False if it exists, or if partitions that belong to no topic prevent it.
        """
        if self.exists(topic):
            return False
        if partitions:
            return self.create_partitioned(topic, partitions) > 0
        self.request("PUT", f"/{rest_path(topic)}", accept=(409,))
        return self.exists(topic)

    def exists(self, topic: str) -> bool:
        """Return whether a topic exists, with partitions or without."""
        return self.request("GET", f"/{rest_path(topic)}/partitions", accept=(404,)) is not None

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; 0 if the topic is not partitioned or does not exist."""
        found = self.request("GET", f"/{rest_path(topic)}/partitions", accept=(404,))
        return 0 if found is None else int(found["partitions"])

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics of a namespace (``tenant/namespace``).

        Partitioned topics have their base name, others their own.
        """
        partitioned = set(self.request("GET", f"/persistent/{namespace}/partitioned", accept=(404,)) or [])
        plain = {
            t
            for t in self.request("GET", f"/persistent/{namespace}", accept=(404,)) or []
            if base_topic(t) not in partitioned
        }
        return sorted(partitioned | plain)

    def properties(self, topic: str, prefix: str) -> dict[str, str]:
        """Return the properties of a topic whose names begin with ``prefix``, without it; none of a missing topic."""
        found = self.request("GET", f"/{rest_path(topic)}/properties", accept=(404,)) or {}
        return {name.removeprefix(prefix): value for name, value in sorted(found.items()) if name.startswith(prefix)}

    def set_property(self, topic: str, name: str, value: str) -> None:
        """Set a property of a topic; only the tenant's administrator may."""
        self.request("PUT", f"/{rest_path(topic)}/properties", body={name: value})

    def remove_property(self, topic: str, name: str) -> None:
        """Remove a property of a topic."""
        self.request("DELETE", f"/{rest_path(topic)}/properties?key={quote(name, safe='')}", accept=(404,))

    def subscriptions(self, partition: str) -> list[str]:
        """Return the names of the subscriptions of a partition; none of a missing one."""
        return list(self.request("GET", f"/{rest_path(partition)}/subscriptions", accept=(404,)) or [])

    # --- statistics ---

    def internal_stats(self, partition: str) -> dict[str, Any]:
        """Return one partition's ``internalStats``: its ledgers, its cursors and its last confirmed entry."""
        return dict(self.request("GET", f"/{rest_path(partition)}/internalStats"))

    def stats(self, partition: str) -> dict[str, Any]:
        """Return one partition's ``stats``: counters, backlog, subscriptions."""
        return dict(self.request("GET", f"/{rest_path(partition)}/stats"))

    def entry_headers(self, partition: str, ledger: int, entry: int) -> tuple[int, dict[str, str]]:
        """Request one stored entry; return the status and the headers, by lower-case name, that describe it.

        The entry's bytes are not read. Raises TransientError if the server cannot be reached.
        """
        path = f"/{rest_path(partition)}/ledger/{ledger}/entry/{entry}"
        with self._http.stream("GET", path) as answer:
            return answer.status_code, {name.lower(): value for name, value in answer.headers.items()}

    def owner(self, partition: str) -> str:
        """Return the service URL of the broker that owns a partition. A partition without an owner gets one."""
        found = self.request("GET", f"/{rest_path(partition)}", root="/lookup/v2/topic")
        return str(found.get("brokerUrl") or found.get("brokerUrlTls") or found.get("nativeUrl") or "")

    def clusters(self) -> list[str]:
        """Return the names of the clusters, and wait for the first one. A Pulsar that has just started passes its
        health check before it lists one, and refuses a tenant without one.

        Raises TransientError if it lists none after ten seconds.
        """
        deadline = time.monotonic() + _VISIBLE_S
        while not (found := sorted(self.request("GET", "/clusters"))):
            if time.monotonic() > deadline:
                raise TransientError("Pulsar's admin lists no cluster: Pulsar has not finished its start")
            time.sleep(_VISIBLE_EVERY_S)
        return found

    def cluster(self) -> str:
        """Return the name of the cluster."""
        return ",".join(self.clusters())

    def healthy(self) -> bool:
        """Return whether the broker passes its own health check (it produces and reads a message)."""
        try:
            self.request("GET", "/brokers/health")
        except (TransientError, RefusedError):
            return False
        return True


def position_at(admin: PulsarAdmin, partition: str, time_ms: int) -> Position | None:
    """Return the first entry published at ``time_ms`` or later, or where it will be; None if there is no entry yet."""
    answer = admin.request("GET", f"/{rest_path(partition)}/messageid/{time_ms}", accept=(404,))
    if answer is None or int(answer["ledgerId"]) < 0:
        return None
    return Position(int(answer["ledgerId"]), max(0, int(answer["entryId"])))
