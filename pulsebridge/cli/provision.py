"""The command ``pulsebridge provision``: creates the required resources in Pulsar, or prints the commands for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.options import ConfigOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.pulsar.admin import PulsarAdmin
    from bridge.pulsar.provisioning_plan import Step, TopicNeed
    from bridge.settings import Settings

__all__ = ["carry_out", "register", "whole_plan"]

_HEAD = """\
# Required resources of Pulsebridge in Pulsar at {admin}, for an administrator of the tenant
# (creating the tenant itself needs a super-user). Commands for existing resources report an error and change nothing.
"""
_GRANTS = """\
# Rights of each tier's role, if authorization is on in Pulsar (--ingest-role and so on fill these in):
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("provision", short_help="Create what is needed in Pulsar, or print the commands.")(_provision)


def _role(tier: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        f"--{tier}-role", metavar="ROLE", help=f"Role of {tier}; it gets the least rights."
    )
    return found


def _provision(
    config: ConfigOption = None,
    sets: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the pulsar-admin commands and change nothing.")
    ] = False,
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            metavar="NAME[=PARTITIONS],…",
            help="More readings topics, in addition to those of the rules.",
        ),
    ] = None,
    ingest_role: Annotated[str | None, _role("ingest")] = None,
    source_role: Annotated[str | None, _role("source")] = None,
    sink_role: Annotated[str | None, _role("sink")] = None,
    push_role: Annotated[str | None, _role("push")] = None,
) -> None:
    """Create the missing namespaces, policies, topics, subscriptions and rights in Pulsar.

    It is for clusters in which ingest and push lack the rights for this (pulsar.provision: verify or off). The role of
    the credentials in pulsar.* must administer the tenant.

    Examples:

        pulsebridge provision --dry-run --ingest-role bridge --source-role spark > provision.sh

        pulsebridge provision --set pulsar.token_file=admin.jwt --push-role bridge
    """
    settings = settings_from(config, sets)
    given = {"ingest": ingest_role, "source": source_role, "sink": sink_role, "push": push_role}
    roles = {tier: role for tier, role in given.items() if role}
    extra = _topics(topics, settings)
    if dry_run:
        typer.echo(_script(settings, extra, roles), nl=False)
        return
    from bridge.pulsar.admin import PulsarAdmin

    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        carry_out(admin, whole_plan(settings, extra, roles), lambda step: typer.echo(f"ok  {step.shell}"))


def carry_out(admin: PulsarAdmin, steps: Iterable[Step], done: Callable[[Step], None] = lambda _step: None) -> None:
    """Do the steps in order; ``done`` is called after each. An existing tenant is left unchanged."""
    from bridge.pulsar.provisioning_plan import tenant_step

    for step in steps:
        if step.command[0] == "tenants":
            tenant = step.command[-1]
            if admin.has_tenant(tenant):
                continue
            step = tenant_step(tenant, admin.clusters())
        admin.do(step)
        done(step)


def whole_plan(
    settings: Settings, extra: tuple[TopicNeed, ...] = (), roles: dict[str, str] | None = None
) -> list[Step]:
    """Return every step in the order of execution. ``extra``: more readings topics."""
    from bridge.contract import ALERTS_TOPIC, partition_name
    from bridge.pulsar.provisioning_plan import (
        compact_step,
        grant_steps,
        ingest_needs,
        namespace_steps,
        push_needs,
        tenant_step,
        topic_need,
        topic_steps,
    )
    from bridge.routing.readings_topics import static_topics

    pulsar, streaming = settings.pulsar, settings.streaming
    namespaces = pulsar.all_namespaces
    steps = [tenant_step(name) for name in dict.fromkeys(n.split("/")[0] for n in namespaces)]
    for namespace in namespaces:
        steps += namespace_steps(namespace, pulsar)
    needs = (
        *ingest_needs(pulsar, static_topics(settings), presence=False, resume=False).topics,
        *extra,
        *push_needs(pulsar).topics,
        *([topic_need(pulsar, ALERTS_TOPIC, streaming.subscription_of("alerts"))] if streaming.alerts else []),
    )
    for need in {need.topic: need for need in needs}.values():
        steps += topic_steps(need)
        if need.compacted:
            steps += [compact_step(partition_name(need.topic, n)) for n in range(need.partitions)]
    return steps + grant_steps(pulsar, roles or {})


def _script(settings: Settings, extra: tuple[TopicNeed, ...], roles: dict[str, str]) -> str:
    from bridge.pulsar.provisioning_plan import grant_steps

    lines = [_HEAD.format(admin=settings.pulsar.admin_url)]
    why = ""
    for step in whole_plan(settings, extra, roles):
        if step.why != why:
            why = step.why
            lines.append(f"# {why}\n")
        lines.append(f"{step.shell}\n")
    missing = {tier: f"{tier.upper()}_ROLE" for tier in ("ingest", "source", "sink", "push") if tier not in roles}
    if missing:
        lines.append(_GRANTS)
        lines += [f"# {step.shell}\n" for step in grant_steps(settings.pulsar, missing)]
    return "".join(lines)


def _topics(text: str | None, settings: Settings) -> tuple[TopicNeed, ...]:
    from bridge.pulsar.provisioning_plan import TopicNeed

    found = []
    for part in (text or "").split(","):
        name, _, count = part.strip().partition("=")
        if not name:
            continue
        if count and not count.isdecimal():
            raise ConfigError(f"--topics {text}: {count!r} is not a number", remedy="for example --topics plant=8,lab")
        topic = name if "://" in name else settings.pulsar.readings_topic(name)
        found.append(TopicNeed(topic, int(count or settings.pulsar.partitions), why="readings"))
    return tuple(found)
