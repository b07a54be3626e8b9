"""The generated pages: commands, settings, and the runbook with a section for each alert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from pydantic.fields import FieldInfo

from bridge.settings import Settings
from bridge.settings.base import Section
from bridge.settings.fields import is_common, is_secret, model_within, section_of
from pulsebridge.cli.app import COMMAND_GROUPS, COMMANDS_GROUP, register_commands
from pulsebridge.cli.default_file import bounds_of, yaml_value
from tests.docs.devices import devices_page, embedded_page
from tests.docs.hazards import hazards_page
from tests.docs.plain_words import phrases_rule, words_rule
from tests.docs.reference import cell, http_page, metrics_page, python_page, receipts_page, tables_page

__all__ = ["PAGES"]

_ROOT: Final = Path(__file__).resolve().parents[2]


# --- commands ---------------------------------------------------------------------------------------------------

_COMMANDS: Final = """\
# Commands

Exit codes: 0 done, 1 failed, 2 wrong use or settings, 130 interrupted. An error is one line on stderr; with `--json` it is
an object with `error` and `remedy`. Options that many commands share:

| option | meaning |
|---|---|
| `--config`, `-c` | YAML file of the settings; else `$PULSEBRIDGE_CONFIG`, else `./pulsebridge.yaml` if it exists |
| `--set PATH=VALUE` | One setting, for example `--set mqtt.host=broker.example`; may be repeated |
| `--json` | Print JSON, for programs |
"""
_SHARED: Final = {"--config", "--set", "--json", "--help", "--install-completion", "--show-completion"}


def commands_page() -> str:
    """Return the page of all commands, under the headings of the help."""
    app = typer.Typer()
    app.callback()(lambda: None)
    register_commands(app, entry_points(group=COMMANDS_GROUP))
    root: Any = typer.main.get_command(app)
    parts = [_COMMANDS]
    for heading, names in COMMAND_GROUPS.items():
        parts.append(f"\n## {heading}\n")
        for name in names:
            parts.extend(_command(root.commands[name], f"pulsebridge {name}"))
    return "".join(parts)


def _command(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner:
        for name, one in inner.items():
            yield from _command(one, f"{path} {name}")
        return
    text, _, examples = (command.help or "").partition("Example")
    yield f"\n### {path}\n\n{_paragraphs(text)}"
    rows = [
        _parameter(one) for one in command.params if not _SHARED & set(one.opts) and not getattr(one, "hidden", False)
    ]
    if rows:
        yield "\n| argument or option | meaning |\n|---|---|\n" + "".join(rows)
    lines = [line.strip() for line in examples.splitlines() if re.match(r"\s*([A-Z_]+=\S+ )*pulsebridge ", line)]
    lines += re.findall(r"^: (.*)$", examples, re.MULTILINE)
    if lines:
        yield "\n```sh\n" + "\n".join(lines) + "\n```\n"


def _paragraphs(text: str) -> str:
    return "\n\n".join(cell(part).replace("\\|", "|") for part in text.split("\n\n") if part.strip()) + "\n"


def _parameter(one: Any) -> str:
    name = one.metavar or one.name.upper() if one.param_type_name == "argument" else ", ".join(one.opts)
    value = "" if one.param_type_name == "argument" or getattr(one, "is_flag", False) else f" {one.metavar}" if one.metavar else ""  # fmt: skip
    default = one.default if isinstance(one.default, str | int | float) and not isinstance(one.default, bool) else None
    note = f" Default: {default}." if default not in (None, "") else ""
    return f"| `{cell(name + value)}` | {cell(one.help or '')}{note} |\n"


# --- settings ---------------------------------------------------------------------------------------------------

_SETTINGS: Final = """\
# Settings

A flag takes precedence over the environment, the environment over the file, the file over the default:

```sh
PULSEBRIDGE_MQTT__PORT=8883 pulsebridge config show --origin --set mqtt.tls=true
pulsebridge config default --common   # the settings that most installations set
pulsebridge config default            # all of them
pulsebridge config schema             # for editors
```

- A duration has a unit (`250ms`, `30s`, `5m`, `12h`, `7d`), and so has a size (`500B`, `10MB`, `64MiB`, `2GiB`).
- A secret can be in a file of its own: `password_file`, or `PULSEBRIDGE_MQTT__PASSWORD_FILE`. It is never printed.
- An unknown name is refused with the nearest known one. All problems are listed at once.

**Bold** settings are those that most installations set.
"""


def settings_page() -> str:
    """Return the page of all settings, a table for each section."""
    return _SETTINGS + "".join(_section(Settings, ""))


def _section(model: type[Section], path: str) -> Iterator[str]:
    rows = [
        _setting(model, name, field)
        for name, field in model.model_fields.items()
        if section_of(field.annotation) is None
    ]
    if rows:
        yield f"\n## {path or 'Top level'}\n\n| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)
    for name, field in model.model_fields.items():
        member = model_within(field.annotation)
        inner = section_of(field.annotation)
        if inner is not None:
            yield from _section(inner, f"{path}.{name}".lstrip("."))
        elif member is not None:
            yield f"\n### Fields of each of {f'{path}.{name}'.lstrip('.')}\n\n| field | default | meaning |\n|---|---|---|\n"
            yield from (_setting(member, one, known) for one, known in member.model_fields.items())


def _setting(model: type[Section], name: str, field: FieldInfo) -> str:
    mark = "**" if is_common(field) else ""
    default = (
        "required" if field.is_required() else f"`{cell(yaml_value(field.get_default(call_default_factory=True)))}`"
    )
    meaning = cell(model.description_of(name)).replace("``", "`")
    return (
        f"| {mark}`{name}`{mark} | {'' if is_secret(field.annotation) else default} | {meaning}{bounds_of(field)} |\n"
    )


# --- runbook ----------------------------------------------------------------------------------------------------

_RUNBOOK: Final = """\
# Runbook

A section for each alert of `prometheus/alerts.yaml` (`pulsebridge config export prometheus/alerts.yaml`).
Nothing that is acknowledged is lost while you look: the MQTT broker and Pulsar keep what waits.
"""


def runbook_page() -> str:
    """Return the page with a section for each alert."""
    groups = yaml.safe_load((_ROOT / "conf/prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return _RUNBOOK + "".join(_alert(rule) for rule in rules)


def _alert(rule: dict[str, Any]) -> str:
    notes = rule["annotations"]
    summary = re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"`\1`", notes["summary"])
    after = f", for {rule['for']}" if "for" in rule else ""
    return (
        f"\n## {rule['alert']}\n\n{cell(summary)} ({rule['labels']['severity']}{after})\n\n**Action.** {cell(notes['advice'])}\n"
        f"\n```promql\n{rule['expr'].strip()}\n```\n"
    )


PAGES: Final = {
    _ROOT / "docs/reference/commands.md": commands_page,
    _ROOT / "docs/reference/settings.md": settings_page,
    _ROOT / "docs/operate/runbook.md": runbook_page,
    _ROOT / "docs/devices/examples.md": devices_page,
    _ROOT / "docs/devices/examples-embedded.md": embedded_page,
    _ROOT / "docs/explain/hazards.md": hazards_page,
    _ROOT / "docs/.vale/Pulsebridge/Words.yml": words_rule,
    _ROOT / "docs/.vale/Pulsebridge/Phrases.yml": phrases_rule,
    _ROOT / "docs/reference/tables.md": tables_page,
    _ROOT / "docs/reference/receipts.md": receipts_page,
    _ROOT / "docs/reference/metrics.md": metrics_page,
    _ROOT / "docs/reference/http.md": http_page,
    _ROOT / "docs/reference/python.md": python_page,
}
"""The function that returns the text of each page, by its path."""
