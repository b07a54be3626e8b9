"""Every fenced block of the documents is run by a named test, or parsed and validated here; no other block may exist.

========  =============================================================================================
language  what happens to a block
========  =============================================================================================
sh        bash parses it; each program is a known one; each command of ours is parsed with all its options
yaml      loaded as settings, as rules, or as values of the chart
json      parsed
promql    parsed; the runbook is generated from rules that are tested
mermaid   each line is a heading, a node or an edge, and each edge joins known nodes
python    a named test runs it; else it compiles, and what it uses of Pulsebridge exists
others    a named test runs it
========  =============================================================================================
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema
import pytest
import tomllib
import typer
import yaml

from bridge.settings.loading import load_with_origins
from pulsebridge.cli.app import COMMANDS_GROUP, register_commands
from pulsebridge.connection import Connection, Sent
from sources.option_names import OPTIONS
from streaming.alert_rules import load_rules
from tests.support.promql import parse

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))  # fmt: skip
DEVICES: Final = "test_the_device_executes_each_command_once_over_kills_and_lost_sessions"
RUN: Final = {
    ("docs/tutorials/every-tier.md", "python"): "test_the_examples_run_in_their_order",
    ("docs/devices/broadcasts.md", "python"): "test_the_readme_s_member_executes_each_broadcast_once_also_one_that_it_missed",
    ("docs/devices/offsets.md", "python"): "test_the_readme_s_device_keeps_its_position_in_a_file_and_goes_on_after_it",
    ("docs/devices/http.md", "python"): "test_the_example_of_the_readme_is_stored",
    ("docs/devices/examples.md", "python"): DEVICES,
    ("docs/devices/examples-embedded.md", "cpp"): DEVICES,
    ("docs/devices/examples-embedded.md", "c"): DEVICES,
    ("docs/guides/sparkplug.md", "sql"): "test_times_definitions_stale_metrics_and_a_device_that_is_forgotten",
    ("docs/tutorials/notebooks/first_stream.md", "python"): "test_first_stream_charts_a_stream_and_writes_what_the_job_runs",
    ("docs/tutorials/notebooks/your_broker_and_tables.md", "python"): "test_your_broker_and_tables_reads_any_payload_over_tls_with_a_login",
    ("docs/tutorials/notebooks/quality_and_history.md", "python"): "test_quality_and_history_shows_each_run_and_each_version",
    ("docs/tutorials/notebooks/commands_and_receipts.md", "python"): "test_commands_and_receipts_follows_a_device_that_leaves_and_comes_back",
    ("README.md", "text"): "test_the_table_of_the_readme_is_as_spark_shows_it",
}  # fmt: skip
"""The test that runs the blocks of a language on a page."""
CHART: Final = ROOT / "conf/deploy/helm/pulsebridge"
PICTURES: Final = {"ARCHITECTURE.md"}
"""Documents with blocks that have no language: the way of a message, drawn with letters."""
PROGRAMS: Final = frozenset(
    [
        "pip",
        "make",
        "cd",
        "mkdir",
        "mv",
        "curl",
        "sed",
        "java",
        "python",
        "python3",
        "source",
        "kubectl",
        "systemctl",
        "mpremote",
        "spark-submit",
        "env",
        "apt-get",
        "docker",
        "helm",
        "openssl",
    ]
)
"""Programs that are not ours, and ``.``."""


USAGE_ERROR: Final = typer.BadParameter.__mro__[1]


class Block(NamedTuple):
    """A fenced block: its document, its line, its language and its text."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}:{self.language}"


def blocks_of(document: str) -> Iterator[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```([\w+-]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        indent, language, body = found.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        yield Block(document, text.count("\n", 0, found.start()) + 1, language, "\n".join([*lines, ""]))


BLOCKS: Final = [block for document in DOCUMENTS for block in blocks_of(document)]


def of(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages and (one.document, one.language) not in RUN]


def test_every_block_is_of_a_known_kind_or_has_its_test() -> None:
    known = {"sh", "yaml", "json", "promql", "mermaid", "python"}
    unknown = [str(one) for one in BLOCKS if one.language not in known and (one.document, one.language) not in RUN and not (one.language == "" and one.document in PICTURES)]  # fmt: skip
    assert unknown == []
    for document in DOCUMENTS:
        fences = re.findall(r"^ *```", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(list(blocks_of(document))), f"{document}: a fence is not closed"


def test_the_tests_that_run_blocks_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    for (document, language), name in RUN.items():
        assert [one for one in BLOCKS if (one.document, one.language) == (document, language)], document
        assert any(re.search(rf"^ *(?:async )?def {name}\b", text, re.MULTILINE) for text in texts), name


# --- shell --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command() -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    assert register_commands(app, entry_points(group=COMMANDS_GROUP)) == []
    return typer.main.get_command(app)


def commands_of(text: str) -> Iterator[list[str]]:
    """Give the words of each simple command, without variables before it and redirections behind it."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;()"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_]+=", word):
                words.append(word)


def parse_arguments(command: Any, words: list[str], name: str = "pulsebridge") -> None:
    """Parse as click does: unknown commands and options, missing values and values of another type are errors."""
    inner = getattr(command, "commands", None)
    if not inner:
        command.make_context(name, list(words))
        return
    at = next((n for n, word in enumerate(words) if not word.startswith("-")), len(words))
    known = {option for one in command.params for option in one.opts} | {"--help", "-h"}
    assert set(words[:at]) <= known, f"{name}: unknown option"
    if at < len(words):
        assert words[at] in inner, f"{name} has no command {words[at]}"
        parse_arguments(inner[words[at]], words[at + 1 :], f"{name} {words[at]}")


@pytest.mark.parametrize("line", ["strem", "stream --onli bronze", "ingest --workers", "ingest --workers four", "commands sent x", "commands show"])  # fmt: skip
def test_a_wrong_command_line_is_found(line: str, command: Any) -> None:
    with pytest.raises((AssertionError, USAGE_ERROR)):
        parse_arguments(command, line.split())


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_a_command_line_is_valid_with_all_its_options(block: Block, command: Any) -> None:
    for words in commands_of(block.text):
        program = Path(words[0]).name
        cut = next((n for n, word in enumerate(words) if set(word) <= set("<>")), len(words))
        if program == "pulsebridge":
            try:
                parse_arguments(command, words[1:cut])
            except Exception as e:
                raise AssertionError(f"{block}: {' '.join(words)}: {e}") from e
        else:
            assert program in PROGRAMS or words[0] == ".", f"{block}: {' '.join(words)}"


@pytest.mark.parametrize("document", sorted({one.document for one in of("sh")}))
def test_bash_parses_the_command_lines(document: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    text = "\n".join(one.text for one in of("sh") if one.document == document)
    done = subprocess.run([bash, "-n"], input=text, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for block in BLOCKS:
        for named in re.findall(r"pulsebridge\[([\w,]+)\]", block.text):
            assert set(named.split(",")) <= set(extras), block


def test_the_extra_for_notebooks_has_the_recordings_that_their_first_cells_replay() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("demo", "notebook"):
        assert any(needed.startswith("bokeh-sampledata") for needed in extras[extra]), extra


# --- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_settings_load(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "pulsebridge.yaml"
    file.write_text(block.text, encoding="utf-8")
    if block.text.startswith("# rules.yaml"):
        assert load_rules(file)
    elif block.text.startswith("# values.yaml"):
        values = yaml.safe_load(block.text)
        defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
        assert values.keys() <= defaults.keys()
        merged = defaults | {name: defaults[name] | given for name, given in values.items()}
        jsonschema.validate(merged, json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
        file.write_text(yaml.safe_dump(values["settings"]), encoding="utf-8")
        assert load_with_origins(file, environ={}).origins
    else:
        assert load_with_origins(file, environ={}).origins


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_valid(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", of("promql"), ids=str)
def test_a_query_of_prometheus_parses(block: Block) -> None:
    assert parse(block.text).selectors


@pytest.mark.parametrize("block", of("mermaid"), ids=str)
def test_a_drawing_has_known_nodes(block: Block) -> None:
    head, *lines = block.text.strip().splitlines()
    assert head.split()[0] == "flowchart"
    shape = r"(\w+)(?:\[\(.+?\)\]|\(\(.+?\)\)|\(\[.+?\]\)|\[.+?\])?"
    for line in lines:
        assert re.fullmatch(rf'\s+{shape}(?: --(?: "[^"]+"| [\w ]+ )?-*> {shape}| -- (?:"[^"]+"|[\w ]+) --> {shape})', line), line  # fmt: skip


# --- Python -------------------------------------------------------------------------------------------------------

OBJECTS: Final = {"bridge": Connection, "sent": Sent}
"""Names that the examples give to objects of Pulsebridge, with their classes."""


def check_names(tree: ast.Module) -> None:
    """Check that modules, their names, members of our objects, keywords and options exist."""
    modules: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(module, alias.name, None)
                modules[alias.asname or alias.name] = found or importlib.import_module(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = OBJECTS.get(node.value.id) or modules.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id} has no {node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "option":
            (name, _) = node.args
            assert isinstance(name, ast.Constant)
            assert name.value in OPTIONS, name.value


@pytest.mark.filterwarnings("ignore::DeprecationWarning:great_expectations")  # it imports sre_constants
@pytest.mark.parametrize("block", of("python"), ids=str)
def test_a_program_compiles_and_uses_what_exists(block: Block) -> None:
    check_names(ast.parse(block.text))


def test_the_table_of_the_readme_is_as_spark_shows_it() -> None:
    """Its columns are those that the program before it selects, and its row is the message that the text publishes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = (one.text for one in blocks_of("README.md") if one.language == "text")
    (program,) = (one.text for one in blocks_of("README.md") if one.language == "python" and ".show()" in one.text)
    selected = re.search(r"\.select\((.*?)\)", program)
    message = re.search(r"`(\{[^`]*\})` on `plant/([^/]+)/", text)
    assert selected
    assert message
    ((metric, value),) = json.loads(message[1]).items()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[0] == "|"]
    assert rows == [re.findall(r'"(\w+)"', selected[1]), [message[2], metric, str(value)]]
