"""The command ``pulsebridge``: commands of the installed tiers, and errors as one line.

It decides exit codes and the format of errors. Each tier registers its commands through the entry points
``pulsebridge.commands`` (a function of the Typer app), so that third parties can add commands. Those modules import
large packages inside their functions, so that ``--help`` is quick and needs no extra.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Final

import typer

from bridge.display import accept_every_character
from bridge.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ConfigError, MissingExtraError, PulsebridgeError
from pulsebridge.output.text import text_of

__all__ = [
    "COMMANDS_GROUP",
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
}

app = typer.Typer(
    name="pulsebridge",
    no_args_is_help=True,
    add_completion=False,
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
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """MQTT to Apache Pulsar to Spark and Delta Lake, with commands to the devices.

    Start with: pulsebridge demo
    """


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
    """Run the command line. Exit codes: 0 success, 1 failed, 2 wrong use or settings, 130 interrupted."""
    accept_every_character()
    for problem in register_commands(app, entry_points(group=COMMANDS_GROUP)):
        _print_error(problem, "yellow")
    try:
        app()
    except ConfigError as e:
        _print_error(str(e), "red")
        sys.exit(EXIT_USAGE)
    except PulsebridgeError as e:
        _print_error(str(e), "red")
        sys.exit(EXIT_FAILED)
    except ModuleNotFoundError as e:
        missing = _missing(e)
        if missing is None:
            raise
        _print_error(str(missing), "red")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error for a missing module of an extra, None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return MissingExtraError(
        f"the Python package {module} is not installed",
        remedy=f'pip install "pulsebridge[{_EXTRAS[module]}]"',
    )


def _print_error(line: str, colour: str) -> None:
    typer.secho(text_of(f"pulsebridge: {line}".split("\n")), err=True, fg=colour)
