"""The plots of the notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

__all__ = ["plot_commands", "plot_device", "plot_failures", "plot_live", "plot_versions"]

_BLUE: Final = "#35608d"
_RED: Final = "#b0413e"
_AMBER: Final = "#e0a03b"
_GREY: Final = "#9aa5b1"
_WIDTH: Final = 760


def plot_device(readings: pd.DataFrame, alerts: pd.DataFrame, limit: float = 70.0) -> alt.LayerChart:
    """Return a device's readings as a line, the limit, and each alert as a mark with what it said."""
    import altair as alt
    import pandas as pd

    time_axis = alt.X("event_time:T", title="device's own time")
    line = (
        alt.Chart(readings)
        .mark_line(color=_BLUE, strokeWidth=1.5)
        .encode(x=time_axis, y=alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False)))
    )
    rule = (
        alt.Chart(pd.DataFrame({"limit": [limit]}))
        .mark_rule(color=_RED, strokeDash=[4, 4])
        .encode(y="limit:Q")
    )
    marks = (
        alt.Chart(alerts)
        .mark_point(size=70, filled=True, opacity=0.9)
        .encode(
            x=time_axis,
            y="value:Q",
            color=alt.Color("rule:N", title="alert", scale=alt.Scale(range=[_AMBER, _RED])),
            tooltip=["rule:N", "message:N", "event_time:T"],
        )
    )
    chart: alt.LayerChart = alt.layer(line, rule, marks).properties(width=_WIDTH, height=280)
    return chart


def plot_live(rows: pd.DataFrame) -> alt.Chart:
    """Return the readings as they arrived, straight from the stream."""
    import altair as alt

    chart: alt.Chart = (
        alt.Chart(rows)
        .mark_circle(size=18, color=_BLUE)
        .encode(
            x=alt.X("arrival_time:T", title="arrival at ingest"),
            y=alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False)),
            tooltip=["_id:N", "event_time:T", "value:Q"],
        )
        .properties(width=_WIDTH, height=200)
    )
    return chart


def plot_failures(quarantine: pd.DataFrame) -> alt.Chart:
    """Return how many messages each rule held back, by device; one that fails two rules counts for both."""
    import altair as alt

    failed = quarantine.explode("failed_rules").rename(columns={"failed_rules": "rule"})
    chart: alt.Chart = (
        alt.Chart(failed[["device", "rule"]])
        .mark_bar()
        .encode(
            x=alt.X("count():Q", title="messages held back", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("rule:N", title=None, sort="-x"),
            color=alt.Color("device:N", scale=alt.Scale(scheme="tableau10")),
            tooltip=["rule:N", "device:N", alt.Tooltip("count():Q", title="messages")],
        )
        .properties(width=_WIDTH, height=alt.Step(32))
    )
    return chart


def plot_versions(then: pd.DataFrame, now: pd.DataFrame) -> alt.LayerChart:
    """Return a device's readings as they are now, and over them what an earlier version of the table knew."""
    import altair as alt

    x = alt.X("event_time:T", title="device's own time")
    y = alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False))
    later = alt.Chart(now[["event_time", "value"]]).mark_line(color=_GREY, strokeWidth=1.2).encode(x=x, y=y)
    known = alt.Chart(then[["event_time", "value"]]).mark_line(color=_BLUE, strokeWidth=2).encode(x=x, y=y)
    chart: alt.LayerChart = alt.layer(later, known).properties(
        width=_WIDTH, height=280, title="blue: known then; grey: what came since"
    )
    return chart


def plot_commands(receipts: pd.DataFrame) -> alt.LayerChart:
    """Return the way of each command: when it was written, when push sent it, when it was confirmed."""
    import altair as alt

    y = alt.Y("command_id:N", title=None, sort=list(receipts["command_id"]))
    tips = ["device:N", "state:N", "attempts:Q", "emitted_at:T", "pushed_at:T", "confirmed_at:T"]
    base = alt.Chart(receipts[["command_id", *(tip.partition(":")[0] for tip in tips)]])
    bars = base.mark_bar(height=10, opacity=0.7).encode(
        x=alt.X("emitted_at:T", title="time"),
        x2="confirmed_at:T",
        y=y,
        color=alt.Color("state:N", scale=alt.Scale(range=[_BLUE, _AMBER, _RED, _GREY])),
        tooltip=tips,
    )
    pushed = base.mark_tick(color="black", thickness=2, height=16).encode(x="pushed_at:T", y=y, tooltip=tips)
    chart: alt.LayerChart = alt.layer(bars, pushed).properties(width=_WIDTH, height=alt.Step(26))
    return chart
