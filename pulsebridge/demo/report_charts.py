"""The report's charts as Vega-Lite specifications. Colours and fonts are set where the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.errors import MissingExtraError
from pulsebridge.audit.measures import Recovery
from pulsebridge.audit.records import Records
from pulsebridge.demo.report_data import (
    device_rows,
    kill_rows,
    latency_over_time,
    latency_shares,
    rate_rows,
    start_us,
    talkative,
)

__all__ = ["charts"]

_BLUE, _TEAL, _ORANGE, _RED = "#3b82c4", "#1a9e83", "#e08a1e", "#d6453d"
_STAGES = (["published by the devices", "stored in Pulsar", "committed to silver"], [_BLUE, _TEAL, _ORANGE])
_WAYS = (["device → table", "device → command at the device"], [_BLUE, _ORANGE])


def charts(records: Records, kills: Sequence[Recovery]) -> dict[str, dict[str, Any]]:
    """Return the specifications by name: rates, latency, distribution, device. Raises MissingExtraError."""
    try:
        import altair as alt
    except ImportError as e:
        raise MissingExtraError("the report needs altair", remedy="pip install 'pulsebridge[demo]'") from e
    # The rows stay in the page: a run has more of them than altair's limit for notebooks.
    with alt.data_transformers.enable("default", max_rows=None):
        start = start_us(records)
        marks = _kill_marks(alt, kill_rows(kills, start))
        made = {
            "rates": _rates(alt, rate_rows(records, start), marks),
            "latency": _latency(alt, latency_over_time(records, start), marks),
            "distribution": _distribution(alt, latency_shares(records)),
            "device": _device(alt, records),
        }
        return {name: chart.to_dict() for name, chart in made.items()}


def _kill_marks(alt: Any, rows: list[dict[str, Any]]) -> list[Any]:
    if not rows:
        return []
    data = alt.Data(values=rows)
    tip = [alt.Tooltip("what:N", title="what"), alt.Tooltip("back:N", title="output back after")]
    outage = alt.Chart(data).mark_rect(color=_RED, opacity=0.10).encode(x="second:Q", x2="end:Q", tooltip=tip)
    rule = (
        alt.Chart(data)
        .mark_rule(color=_RED, strokeWidth=1.5, strokeDash=[4, 3])
        .encode(x="second:Q", tooltip=tip)
    )
    label = (
        alt.Chart(data)
        .mark_text(align="left", baseline="top", dx=4, dy=2, color=_RED, fontSize=11, fontWeight=600)
        .encode(x="second:Q", y=alt.value(0), text="what:N", tooltip=tip)
    )
    return [outage, rule, label]


def _second(alt: Any) -> Any:
    return alt.X("second:Q", title="seconds since the first reading", axis=alt.Axis(grid=False))


def _colours(alt: Any, field: str, scale: tuple[list[str], list[str]]) -> Any:
    domain, colours = scale
    legend = alt.Legend(title=None, orient="top", direction="horizontal", labelLimit=300)
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain, range=colours), legend=legend)


def _rates(alt: Any, rows: list[dict[str, Any]], marks: list[Any]) -> Any:
    lines = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=_second(alt),
            # Spark commits in batches: on a linear axis they would press the steady rates flat.
            y=alt.Y(
                "rate:Q",
                title="readings per second",
                scale=alt.Scale(type="symlog", constant=100),
                axis=alt.Axis(values=[0, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000]),
            ),
            color=_colours(alt, "stage", _STAGES),
            tooltip=[
                "stage:N",
                alt.Tooltip("second:Q"),
                alt.Tooltip("rate:Q", format=".0f", title="per second"),
            ],
        )
    )
    return alt.layer(*marks, lines).properties(width="container", height=280)


def _latency(alt: Any, rows: list[dict[str, Any]], marks: list[Any]) -> Any:
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=_second(alt),
        color=_colours(alt, "way", _WAYS),
        tooltip=[
            "way:N",
            "second:Q",
            alt.Tooltip("p50:Q", title="p50, s"),
            alt.Tooltip("p99:Q", title="p99, s"),
            alt.Tooltip("readings:Q", title="records"),
        ],
    )
    y = alt.Y("p50:Q", title="seconds, p50 (line) to p99 (band)", axis=alt.Axis(tickCount=6))
    band = base.mark_area(opacity=0.18, interpolate="monotone").encode(y=y, y2="p99:Q")
    line = base.mark_line(strokeWidth=2, interpolate="monotone", point={"size": 14}).encode(y=y)
    return alt.layer(*marks, band, line).properties(width="container", height=280)


def _distribution(alt: Any, rows: list[dict[str, Any]]) -> Any:
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=2, interpolate="step-after")
        .encode(
            x=alt.X(
                "seconds:Q",
                scale=alt.Scale(type="log"),
                title="seconds (logarithmic)",
                axis=alt.Axis(format="~g", tickCount=8),
            ),
            y=alt.Y("share:Q", axis=alt.Axis(format="%"), title="share that took at most so long"),
            color=_colours(alt, "way", _WAYS),
            tooltip=["way:N", alt.Tooltip("seconds:Q", format=".3f"), alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width="container", height=260)
    )


def _device(alt: Any, records: Records) -> Any:
    readings, commands = device_rows(records, talkative(records))
    x = alt.X(
        "time:T", title="time of the recording", axis=alt.Axis(grid=False, format="%d %b, %H:%M", tickCount=8)
    )
    y = alt.Y("value:Q", title="glucose, mg/dL", scale=alt.Scale(zero=False))
    limits = [
        {"limit": r.limit, "name": f"{r.name}: below {r.limit:g}"} for r in records.rules if r.kind == "below"
    ]
    line = alt.Chart(alt.Data(values=readings)).mark_line(color=_BLUE, strokeWidth=1.4).encode(x=x, y=y)
    rule = (
        alt.Chart(alt.Data(values=limits))
        .mark_rule(color=_RED, strokeDash=[3, 3], opacity=0.7)
        .encode(y="limit:Q")
    )
    legend = alt.Legend(title="command sent back", orient="top", direction="horizontal")
    dots = (
        alt.Chart(alt.Data(values=commands))
        .mark_point(size=95, filled=True, opacity=0.95, stroke="white", strokeWidth=1)
        .encode(
            x="time:T",
            y="value:Q",
            color=alt.Color("rule:N", legend=legend, scale=alt.Scale(range=[_ORANGE, _RED, _TEAL])),
            shape=alt.Shape("rule:N", legend=legend),
            tooltip=[
                alt.Tooltip("time:T", format="%d %b %Y %H:%M"),
                "value:Q",
                "rule:N",
                alt.Tooltip("arrived:N", title="command arrived"),
                alt.Tooltip("command:N", title="command id"),
            ],
        )
    )
    return alt.layer(line, rule, dots).properties(width="container", height=300)
