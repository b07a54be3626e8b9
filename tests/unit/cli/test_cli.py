"""The frame of the command line: exit codes, one line for an error, plug-ins that fail."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from bridge.errors import ConfigError, FencedError, PulsebridgeError
from pulsebridge.cli import app as cli
from pulsebridge.cli.completion import complete_setting
from pulsebridge.cli.options import seconds_of
from tests.support.waiting import patient

GROUP = cli.COMMANDS_GROUP


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments],
        capture_output=True, text=True, timeout=patient(60), check=False,
    )  # fmt: skip


def broken(app: typer.Typer) -> None:
    raise RuntimeError("no such thing")


def raises(error: BaseException) -> object:
    def register(app: typer.Typer) -> None:
        def fail() -> None:
            raise error

        app.command("fail")(fail)

    return register


def test_a_broken_plug_in_gives_one_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    monkeypatch.setitem(sys.modules, "plug_in_of_a_third_party", sys.modules[__name__])
    points = [
        EntryPoint("absent", "no_such_package.commands:register", GROUP),
        EntryPoint("broken", "plug_in_of_a_third_party:broken", GROUP),
        EntryPoint("ours", "pulsebridge.cli.check:register", GROUP),
    ]
    problems = cli.register_commands(app, points)
    assert [c.name for c in app.registered_commands] == ["check"]
    assert len(problems) == 2
    assert "'absent'" in problems[0]
    assert "no_such_package" in problems[0]
    assert "'broken'" in problems[1]
    assert "no such thing" in problems[1]
    assert all("\n" not in p for p in problems)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("2 problems"), 2, "pulsebridge: 2 problems\n"),
        (PulsebridgeError("it broke", remedy="fix it"), 1, "pulsebridge: it broke — fix it\n"),
        (FencedError("taken over"), 1, "pulsebridge: taken over\n"),
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark"),
            1,
            'pulsebridge: the Python package pyspark is not installed — pip install "pulsebridge[local]"\n',
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_with_the_exit_code_of_its_kind(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    raises(error)(app)  # type: ignore[operator]
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    monkeypatch.setattr(sys, "argv", ["pulsebridge", "fail"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code
    assert capsys.readouterr().err == line


def test_a_module_that_no_extra_brings_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    raises(ModuleNotFoundError("No module named 'bridge.typo'", name="bridge.typo"))(app)  # type: ignore[operator]
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    monkeypatch.setattr(sys, "argv", ["pulsebridge", "fail"])
    with pytest.raises(ModuleNotFoundError, match="typo"):
        cli.main()


def test_help_imports_nothing_heavy() -> None:
    heavy = (
        "pyspark",
        "pandas",
        "pyarrow",
        "great_expectations",
        "pulsar",
        "altair",
        "numpy",
        "httpx",
        "pydantic",
        "structlog",
        "yaml",
    )
    code = (
        "import sys; from pulsebridge.cli.app import main\n"
        "sys.argv = ['pulsebridge', '--help']\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        f"print('HEAVY', [m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert "left out" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("check", "--no-such-option"), ("config", "show", "--set", "x=1")]
)
def test_wrong_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_version_is_the_installed_one() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("pulsebridge ")


def test_the_shell_completes_paths_of_settings() -> None:
    assert complete_setting("pulsar.admin_u") == ["pulsar.admin_url="]
    assert len(complete_setting("")) > 100
    assert complete_setting("nothing") == []


def test_an_option_with_a_duration_takes_units_and_names_itself_otherwise() -> None:
    assert [seconds_of("--for", text) for text in ("60s", "5m", "1h", "90", "0.5s", "1d")] == [
        60,
        300,
        3600,
        90,
        0.5,
        86_400,
    ]
    assert seconds_of("--settle", "0", zero=True) == 0
    for wrong in ("", "s", "-1", "8d", "0", "1e9h"):
        with pytest.raises(ConfigError, match=r"--for .*not a duration"):
            seconds_of("--for", wrong)
