"""The commands ``pulsebridge simulate``, ``pulsebridge demo`` and ``pulsebridge audit``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.audit import audit
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.output.text import json_text

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("simulate")(simulate)
    app.command("demo")(demo)
    app.command("audit")(audit)


def simulate(
    config: ConfigOption = None,
    sets: SetOption = None,
    wearables: Annotated[int, typer.Option(min=0, help="Devices from the glucose recording.")] = 40,
    buoys: Annotated[int, typer.Option(min=0, help="Devices from the buoy's recording.")] = 24,
    rate: Annotated[float, typer.Option(min=0.001, help="Readings per second of the whole fleet.")] = 250.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long the fleet sends, in seconds.")] = 60.0,
    faults_every: Annotated[
        int, typer.Option(min=0, help="Add a faulty message after this many readings; 0 for none.")
    ] = 0,
    journals: Annotated[Path, typer.Option(help="Folder of the devices' journals.")] = Path("build/devices"),
    stay: Annotated[bool, typer.Option("--stay", help="Receive commands until a signal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Replay real sensor recordings as many MQTT devices.

    The recordings are a wearable's glucose and a buoy's sea temperature (package bokeh-sampledata), split into one
    device per period. Each device has its own connection, and receives commands on devices/NAME/commands.

    Examples:

        pulsebridge simulate --set mqtt.host=127.0.0.1 --rate 100 --seconds 30

        pulsebridge simulate --wearables 1 --buoys 0 --rate 0.2 --seconds 120 --stay
    """
    from contextlib import closing

    from bridge.errors import EXIT_INTERRUPTED
    from bridge.stopping import CLOSE_S, stopping_on_signals
    from pulsebridge.demo.plan import Scale, make_devices, timeline
    from pulsebridge.demo.recordings import BUOY, GLUCOSE, load
    from pulsebridge.demo.simulator import Simulator

    settings = settings_from(config, sets)
    scale = Scale(wearables, buoys, rate, seconds, faults_every)
    devices, speed = make_devices(scale, {kind: load(kind) for kind in (GLUCOSE, BUOY)})
    stop = threading.Event()
    with (
        stopping_on_signals("simulate", stop.set, CLOSE_S),
        closing(Simulator(devices, settings.mqtt, journals, "sim-")) as fleet,
    ):
        fleet.connect()
        fleet.replay(timeline(devices, speed, scale.fault_every), stop)
        fleet.drain(stop)
        interrupted = stop.is_set()
        while stay and not stop.wait(1.0):
            fleet.check()
    counts = fleet.counts()
    typer.echo(json_text(counts) if as_json else fleet.summary())
    if interrupted and not stay:
        raise typer.Exit(EXIT_INTERRUPTED)
    if counts["acknowledged"] < counts["published"]:
        raise typer.Exit(1)


def demo(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small run, about a minute with a warm cache; Spark is not killed."),
    ] = False,
    chaos: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="Also kill this part: pulsar, or spark in a quick run; may be repeated."),
    ] = None,
    no_chaos: Annotated[bool, typer.Option("--no-chaos", help="Kill nothing.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all processes running at the end, until Ctrl-C.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the run; an earlier run in it is replaced.")] = Path(
        "build/demo"
    ),
    offline: Annotated[bool, typer.Option("--offline", help="Download nothing: use the cache only.")] = False,
    mqtt: Annotated[str | None, typer.Option(help="MQTT broker that runs already, mqtt://host:port.")] = None,
    pulsar: Annotated[str | None, typer.Option(help="Pulsar that runs already, pulsar://host:port.")] = None,
    admin: Annotated[str | None, typer.Option(help="Its admin REST, http://host:port.")] = None,
    sets: SetOption = None,
) -> None:
    """Run the whole way on real servers with kills; audit it.

    The route is device → MQTT → Pulsar → Spark → Delta → rule → Pulsar → MQTT → device. Meanwhile the demo kills
    ingest, push and the Spark driver with kill -9. At the end it audits every record; the exit code is 0 only if that
    passes.

    Examples:

        pulsebridge demo

        pulsebridge demo --quick

        pulsebridge demo --chaos pulsar --keep
    """
    from pulsebridge.demo.plan import FULL, KILLABLE, QUICK
    from pulsebridge.demo.run import run_demo
    from pulsebridge.demo.setup import DemoOptions

    more = tuple(chaos or ())
    unknown = [name for name in more if name not in KILLABLE]
    if unknown:
        raise ConfigError(f"--chaos {unknown[0]}: unknown part", remedy=f"give one of {', '.join(KILLABLE)}")
    if "pulsar" in more and pulsar:
        raise ConfigError("--chaos pulsar: the demo did not start this Pulsar", remedy="leave out --chaos or --pulsar")
    scale = QUICK if quick else FULL
    servers = (mqtt, pulsar, admin)
    raise typer.Exit(run_demo(DemoOptions(out, scale, not no_chaos, more, keep, offline, *servers, sets or ())))
