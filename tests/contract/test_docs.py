"""What the documents say is true: commands, targets, files, links and names of tests exist; blocks: test_doc_blocks.py."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from bridge import contract
from bridge.contract import (
    C_VERSION,
    COMMAND_VERSION,
    COMMANDS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    RECEIPT_STATES,
    RECEIPTS_TOPIC,
    Receipt,
)
from bridge.contract.commands import MAX_CAUSE_BYTES, MAX_COMMAND_BYTES, Command
from bridge.contract.groups import GroupCommand, command_message
from bridge.pulsar.provisioning_plan import RIGHTS
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.app import COMMANDS_GROUP, register_commands
from pulsebridge.command_lines import FIELDS
from pulsebridge.downloads.distributions import PULSAR

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))  # fmt: skip
TOP = r"(?:bridge|sources|sinks|streaming|sparkplug|pulsebridge|notebooks|examples|tests|conf|\.ci|\.github)"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)


def prose(name: str) -> str:
    return re.sub(r"^```.*?^```$", "", text(name), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def command() -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    assert register_commands(app, entry_points(group=COMMANDS_GROUP)) == []
    return typer.main.get_command(app)


def paths_of(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        if getattr(inner, "commands", None):
            yield from paths_of(inner, (*above, name))
        else:
            yield (*above, name)


def shell_lines(name: str) -> list[str]:
    return [
        line.split("  # ")[0].strip() for block in blocks(name, "sh") for line in block.splitlines() if line.strip()
    ]


def check_command_line(command: Any, line: str) -> None:
    words = [w for w in shlex.split(line) if not re.match(r"^[A-Z_]+=", w)]
    here = command
    for word in words[1:]:
        if word.startswith("-"):
            known = {option for p in here.params for option in (*p.opts, *p.secondary_opts)} | {
                "--help",
                "-h",
                "--version",
            }
            assert word.split("=")[0] in known, f"{line}: no option {word}"
        elif getattr(here, "commands", None):
            assert word in here.commands, f"{line}: no command {word}"
            here = here.commands[word]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_prose_exist(command: Any, document: str) -> None:
    for line in re.findall(r"`(pulsebridge [a-z][^`]*)`", prose(document)):
        check_command_line(command, re.sub(r"[|…].*", "", line))


def test_commands_in_the_texts_of_the_packages_exist(command: Any) -> None:
    """Messages, remedies and help name a command of a group only if the group has it."""
    for path in (
        path
        for top in ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge")
        for path in (ROOT / top).rglob("*.py")
    ):
        for group, name in re.findall(r"\bpulsebridge ([a-z-]+) ([a-z][a-z-]*)", path.read_text(encoding="utf-8")):
            inner = getattr(command.commands.get(group), "commands", None)
            assert not inner or name in inner, f"{path.relative_to(ROOT)} names pulsebridge {group} {name}"


def test_every_command_has_help_with_an_example(command: Any) -> None:
    for path in paths_of(command):
        here = command
        for part in path:
            here = here.commands[part]
        assert "Example" in (here.help or ""), f"pulsebridge {' '.join(path)} --help shows no example"
        assert f"pulsebridge {path[0]}" in here.help


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", prose(document)))
    named |= {m for line in shell_lines(document) for m in re.findall(r"^make ([a-z]+)", line)}
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(document)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (ROOT / document).parent / file if file else ROOT / document
        assert linked.exists(), f"{document}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in known, f"{document}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    for name in set(re.findall(rf"`({TOP}/[\w./-]+)`", text(document))) - {"bridge/_conf"}:  # in a wheel only
        if name.startswith(("pulsebridge/answers", "pulsebridge/resume", "pulsebridge/moves")):
            continue  # MQTT topics
        assert (ROOT / name).exists(), f"{document} names {name}"


@pytest.fixture(scope="module")
def tests_there() -> set[str]:
    known = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known.add(path.stem)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        known |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}
    return known


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_are_named_exist(document: str, tests_there: set[str]) -> None:
    assert set(re.findall(r"`(test_\w+)`", text(document))) - tests_there == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_that_are_named_exist(document: str) -> None:
    from bridge.settings import Settings
    from bridge.settings.fields import field_at

    sections = "|".join(Settings.model_fields)
    if document.endswith("-options.md"):
        return  # options of Spark's formats have such names as well
    properties = {value for name, value in vars(contract).items() if name.startswith("P_")}
    for name in set(re.findall(rf"`((?:{sections})\.[a-z_]+(?:\.[a-z_]+)*)`", text(document))) - properties:
        assert field_at(Settings, name.removesuffix("_file").split(".")) is not None, (
            f"{document} names the setting {name}"
        )


def test_the_least_rights_are_those_that_are_granted() -> None:
    table = re.search(r"\| tier \| Pulsar: namespaces of readings .*?\n\n", text("docs/operate/security.md"), re.DOTALL)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group().splitlines()[2:]]
    documented = {
        row[0]: {
            (where, action)
            for where, cell in (("readings", row[1]), ("system", row[2]))
            for action in re.findall(r"\w+", cell)
        }
        for row in rows
        if len(row) == 4
    }
    assert documented == {tier: set(rights) for tier, rights in RIGHTS.items()}


def test_the_page_of_push_has_the_meaning_of_every_receipt_state() -> None:
    table = text("docs/guides/push.md").split("| state | meaning |\n")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == RECEIPT_STATES


def test_the_format_of_commands_is_that_of_the_contract() -> None:
    document = text("docs/guides/any-client.md")
    table = document.split("| property | required | meaning |\n|---|---|---|\n")[1].split("\n\n")[0]
    named = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    device = Command("id", "d", "t", b"", 2, True, 1, 1, "c", link="l")
    group = GroupCommand("id", "g", "", b"", broadcast=True)
    written = {**command_message(device).properties, **command_message(group).properties}
    assert sorted(named) == sorted(written)
    assert f"| `{C_VERSION}` | yes | version of the format: `{COMMAND_VERSION}` |" in table
    assert f"at most {MAX_COMMAND_BYTES:,} bytes" in document
    assert f"at most {MAX_CAUSE_BYTES} bytes" in table
    receipt = json.loads(blocks("docs/guides/any-client.md", "json")[0])
    assert list(receipt) == list(json.loads(Receipt("i", "d", "t", "s").encode()))
    fields = document.split("| field | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "", fields, flags=re.MULTILINE))) == sorted(receipt)
    for topic in (COMMANDS_TOPIC, GROUP_COMMANDS_TOPIC, RECEIPTS_TOPIC):
        assert f"`{PulsarSettings().system_topic(topic)}`" in document
    assert f" pulsar-client {PULSAR.artifact.version} " in document
    for name in FIELDS:
        assert f"`{name}`" in document


def test_the_architecture_is_short_and_has_every_package_of_the_bridge() -> None:
    document = text("ARCHITECTURE.md")
    assert len(document.encode()) < 20_000
    table = document.split("The packages of `bridge`")[1].split("|---|---|\n")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {path.parent.name for path in (ROOT / "bridge").glob("*/__init__.py")}
