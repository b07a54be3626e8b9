"""Displays of the notebooks: charts of streams and choices, Data Docs, the path of commands.

Charts are altair's. They are interactive in a front end that supports this, and pictures elsewhere.
"""

from __future__ import annotations

import base64
import html
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["Chart", "data_docs", "plot_commands", "show_both"]

_BLUE: Final = "#35608d"
_RED: Final = "#b0413e"
_AMBER: Final = "#e0a03b"
_GREY: Final = "#9aa5b1"
_WIDTH: Final = 700


class Chart:
    """A chart below its choices, redrawn when a choice changes. With a query it is redrawn each second while the query
    runs, and has a button that stops the query.

    ``draw`` is called with each choice by its name, and returns the chart. A choice is a list, any widget with a value,
    or a function that returns a list. The function is called at each drawing, because new devices appear during a
    stream. Its arguments are the earlier choices by their names.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        query: StreamingQuery | None = None,
        *,
        every_s: float = 1.0,
        **choices: Any,
    ) -> None:
        import ipywidgets as widgets
        from IPython import display as shown

        display: Any = shown.display
        self._draw = draw
        self._query = query
        self._every_s = every_s
        self._drawing = threading.RLock()
        self._choosing = False
        self._stopped = threading.Event()
        self._asked = {name: of for name, of in choices.items() if callable(of) and not isinstance(of, widgets.Widget)}
        self.choices = {
            name: of if isinstance(of, widgets.Widget)
            else widgets.Dropdown(description=name, options=[] if name in self._asked else list(of))
            for name, of in choices.items()
        }  # fmt: skip
        self.button = widgets.Button(description="Stop", icon="stop")
        self.button.on_click(lambda _: self.stop())
        self._ask()
        for choice in self.choices.values():
            choice.observe(lambda _: self._chosen(), "value")
        display(widgets.HBox([*self.choices.values(), *([] if query is None else [self.button])]))
        self._shown = display(self._drawn(), display_id=True)
        self._thread = threading.Thread(target=self._follow, name="chart", daemon=True)
        if query is not None:
            self._thread.start()

    def redraw(self) -> None:
        """Redraw the chart."""
        with self._drawing:
            self._ask()
            self._shown.update(self._drawn())

    def stop(self) -> None:
        """Stop the query, as the button does, and draw its last state. Raises the error of a failed query."""
        self._stopped.set()
        if self._query is not None:
            self._query.stop()
            self._thread.join()
        self.button.disabled = True
        self.redraw()
        failure = None if self._query is None else self._query.exception()
        if failure is not None:
            raise failure

    def _follow(self) -> None:
        assert self._query is not None
        while not self._stopped.wait(self._every_s) and self._query.isActive:
            self.redraw()

    def _chosen(self) -> None:
        if not self._choosing:
            self.redraw()

    def _ask(self) -> None:
        """Update the lists, without a drawing for each."""
        self._choosing = True
        try:
            before: dict[str, Any] = {}
            for name, choice in self.choices.items():
                options = tuple(self._asked[name](**before)) if name in self._asked else None
                if options is not None and options != choice.options:
                    value = choice.value
                    choice.options = options
                    choice.value = value if value in options else next(iter(options), None)
                before[name] = choice.value
        finally:
            self._choosing = False

    def _drawn(self) -> Any:
        return self._draw(**{name: choice.value for name, choice in self.choices.items()})


def data_docs(project: str | Path, height: int = 600) -> Any:
    """Return the newest page of a project's Data Docs for inline display. It has no scripts and pictures.

    Raises ConfigError if no checkpoint has run.
    """
    from IPython import display

    pages = sorted(Path(project).glob("uncommitted/data_docs/*/validations/**/*.html"), key=lambda p: p.stat().st_mtime)
    if not pages:
        raise ConfigError(f"{project} has no Data Docs", remedy="run a checkpoint first")
    page = re.sub(r"<script.*?</script>|<img[^>]*>", "", pages[-1].read_text(encoding="utf-8"), flags=re.S)
    frame = f'<iframe srcdoc="{html.escape(page)}" sandbox width="100%" height="{height}"></iframe>'
    made: Any = display.HTML
    return made(f"<div>{frame}</div>")


def plot_commands(receipts: pd.DataFrame) -> alt.LayerChart:
    """Return a chart of each command's times: emitted, pushed, confirmed."""
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


def show_both() -> None:
    """Register a renderer that outputs both JupyterLab's chart and a picture for other front ends."""
    import altair as alt

    if "both" not in alt.renderers.names():
        alt.renderers.register("both", _both)
    alt.renderers.enable("both")


def _both(spec: dict[str, Any], **_: Any) -> dict[str, Any]:
    import vl_convert

    picture = base64.b64encode(vl_convert.vegalite_to_png(spec, scale=1.0)).decode()
    # JupyterLab 4 knows Vega-Lite 5 by this name. These charts use nothing that differs in Vega-Lite 6.
    return {"application/vnd.vegalite.v5+json": spec, "image/png": picture, "text/plain": "a chart"}
