"""The command ``pulsebridge``: commands of the installed tiers, and errors as one line.

It decides exit codes and the format of errors. Each tier registers its commands through the entry points
``pulsebridge.commands`` (a function of the Typer app), so that third parties can add commands. Those modules import
large packages inside their functions, so that ``--help`` is quick and needs no extra.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from bridge.display import accept_every_character
from bridge.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ConfigError, MissingExtraError, PulsebridgeError
from pulsebridge.output.text import json_text, text_of

__all__ = [
    "COMMANDS_GROUP",
    "COMMAND_GROUPS",
    "app",
    "main",
    "register_commands",
]

COMMANDS_GROUP: Final = "pulsebridge.commands"

# Extra that installs a missing module. A missing module that is not listed is a bug and shows its traceback.
_EXTRAS: Final = {
    "pyspark": "local",
    "delta": "local",
    "pandas": "spark",
    "pyarrow": "spark",
    "great_expectations": "quality",
    "altair": "notebook",
    "vl_convert": "demo",
    "h11": "http",
    "bokeh_sampledata": "demo",
    "deltalake": "audit",
    "numpy": "audit",
    "nbclient": "notebook",
    "nbformat": "notebook",
    "starlette": "ui",
    "uvicorn": "ui",
    "jinja2": "ui",
}

COMMAND_GROUPS: Final = {
    "Run": ("ingest", "push", "stream", "sparkplug"),
    "Inspect": (
        "status",
        "ui",
        "check",
        "audit",
        "topics",
        "devices",
        "commands",
        "dead-letters",
        "quarantine",
        "quality",
        "offsets",
        "subscriptions",
    ),
    "Repair": ("resend", "tables"),
    "Configure": ("init", "config", "provision", "package"),
    "Local": ("up", "down", "demo", "simulate"),
}
"""Headings of the help, with their commands. Commands of others come last."""


class _Grouped(TyperGroup):
    """The commands under headings. Without a command it prints the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, a heading for each group."""
        known = {name for names in COMMAND_GROUPS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in known)
        for heading, names in {**COMMAND_GROUPS, "Others": others}.items():
            lines = [
                (name, command.get_short_help_str(formatter.width))
                for name in names
                if (command := self.get_command(ctx, name)) is not None and not command.hidden
            ]
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


_UsageError: Final[Any] = typer.BadParameter.__base__
"""The error of typer for each wrong use. Newer releases bring their own click, so it has no other public name."""
_WRONG: Final = {
    "greater_than_equal": "must be at least {}",
    "less_than_equal": "must be at most {}",
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "bool_parsing": "is not true or false",
}

app = typer.Typer(
    name="pulsebridge",
    cls=_Grouped,
    invoke_without_command=True,
    rich_markup_mode=None,  # rich takes longer to import than everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pulsebridge {version('pulsebridge')}")
        raise typer.Exit


@app.callback()
def pulsebridge(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
) -> None:
    """MQTT to Apache Pulsar to Spark and Delta Lake, with commands to the devices."""
    if quiet:
        os.environ["PULSEBRIDGE_LOG__LEVEL"] = "warning"
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        typer.echo("\nNext: `pulsebridge init` for your own devices, or `pulsebridge demo` to see everything run.")


def register_commands(target: typer.Typer, points: Iterable[EntryPoint]) -> list[str]:
    """Register the commands of each entry point. Return a line for each that failed; the others are registered."""
    problems = []
    for point in sorted(points, key=lambda p: p.name):
        try:
            point.load()(target)
        except ModuleNotFoundError as e:
            problems.append(f"the commands of {point.name!r} are left out: {_missing(e) or e}")
        except Exception as e:  # noqa: BLE001 a plug-in may fail in any way, and must not affect the others
            problems.append(f"the commands of {point.name!r} ({point.value}) are left out: {type(e).__name__}: {e}")
    return problems


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 failed, 2 wrong use or settings, 130 interrupted.

    An error is one line on stderr; with ``--json`` an object with ``error`` and ``remedy``.
    """
    accept_every_character()
    for problem in register_commands(app, entry_points(group=COMMANDS_GROUP)):
        _print_line(problem, "yellow")
    try:
        code = app(standalone_mode=False, prog_name="pulsebridge") or 0
    except ConfigError as e:
        code = _failed(e, EXIT_USAGE)
    except PulsebridgeError as e:
        code = _failed(e, EXIT_FAILED)
    except _UsageError as e:
        if e.ctx is not None and e.format_message() == e.ctx.get_help():  # a group of commands without one
            typer.echo(e.ctx.get_help())
            code = EXIT_USAGE
        else:
            code = _failed(_wrong_use(e), EXIT_USAGE)
    except ModuleNotFoundError as e:
        missing = _missing(e)
        if missing is None:
            raise
        code = _failed(missing, EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error for a missing module of an extra, None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return MissingExtraError(
        f"the Python package {module} is not installed",
        remedy=f'pip install "pulsebridge[{_EXTRAS[module]}]"',
    )


def _wrong_use(error: Any) -> PulsebridgeError:
    """Return the error for an unknown command or option, or a value that an option does not take."""
    command = "pulsebridge" if error.ctx is None else error.ctx.command_path
    found, param = error.__cause__, getattr(error, "param", None)
    what = error.format_message().rstrip(".")
    if param is not None and isinstance(found, ValueError) and hasattr(found, "errors"):  # typer checks by pydantic
        (problem, *_) = found.errors()
        bound = next(iter(problem.get("ctx", {}).values()), "")
        why = _WRONG.get(problem["type"], "is not valid").format(bound)
        what = f"{param.opts[0]} {problem['input']}: {why}"
    option = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    settings = [path for path in _setting_paths() if path.rpartition(".")[2] == option] if option else []
    if settings:
        what = f"No such option: {error.option_name}"
        return PulsebridgeError(
            what, remedy=f"for a setting write {' or '.join(f'--set {one}=…' for one in settings[:3])}"
        )
    return PulsebridgeError(what, remedy=f"see `{command} --help`")


def _setting_paths() -> list[str]:
    from bridge.settings import Settings
    from bridge.settings.fields import leaves

    return [".".join(path) for path, _ in leaves(Settings)]


def _failed(error: PulsebridgeError, code: int) -> int:
    """Print the error. Returns the exit code."""
    if "--json" in sys.argv:
        typer.echo(json_text({"error": error.what, "remedy": error.remedy}), err=True)
    else:
        _print_line(str(error), "red")
    return code


def _print_line(line: str, colour: str) -> None:
    shown = None if "NO_COLOR" in os.environ else colour
    typer.secho(text_of(f"pulsebridge: {line}".split("\n")), err=True, fg=shown)
