"""The command ``pulsebridge``: gathers the commands that the installed tiers register and shows errors as one line.

It decides exit codes and what an error looks like; each command stands in its own tier, found through the entry
points ``pulsebridge.commands`` (a function that takes the Typer app), so that a third party can add some. Those
modules import what is heavy inside their functions, so that ``--help`` is quick and needs no extra.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Final

import typer

from bridge.display import accept_every_character, text_of
from bridge.errors import ConfigError, MissingExtraError, PulsebridgeError

__all__ = [
    "COMMANDS_GROUP",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "app",
    "main",
    "register_commands",
]

COMMANDS_GROUP: Final = "pulsebridge.commands"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

# Which extra brings a module that is not there. What is not listed is a fault of ours and shows its traceback.
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
    "deltalake": "demo",
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
    """MQTT to Apache Pulsar to Spark and Delta Lake, and back to the devices.

    Start with: pulsebridge demo
    """


def register_commands(target: typer.Typer, points: Iterable[EntryPoint]) -> list[str]:
    """Let each entry point add its commands. Returns a line for each that could not, the others go on."""
    problems = []
    for point in sorted(points, key=lambda p: p.name):
        try:
            point.load()(target)
        except ModuleNotFoundError as e:
            problems.append(f"the commands of {point.name!r} are left out: {_missing(e) or e}")
        except Exception as e:  # noqa: BLE001 a plug-in may fail in any way, and must not take the rest with it
            problems.append(f"the commands of {point.name!r} ({point.value}) are left out: {type(e).__name__}: {e}")
    return problems


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong use or settings, 130 interrupted."""
    accept_every_character()
    for problem in register_commands(app, entry_points(group=COMMANDS_GROUP)):
        _say(problem, "yellow")
    try:
        app()
    except ConfigError as e:
        _say(str(e), "red")
        sys.exit(EXIT_USAGE)
    except PulsebridgeError as e:
        _say(str(e), "red")
        sys.exit(EXIT_FAILED)
    except ModuleNotFoundError as e:
        missing = _missing(e)
        if missing is None:
            raise
        _say(str(missing), "red")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return what to install when an extra's module is missing, None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return MissingExtraError(
        f"the Python package {module} is not installed",
        remedy=f'pip install "pulsebridge[{_EXTRAS[module]}]"',
    )


def _say(line: str, colour: str) -> None:
    typer.secho(text_of(f"pulsebridge: {line}".split("\n")), err=True, fg=colour)
