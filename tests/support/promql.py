"""A small parser of PromQL: enough to see that an expression is well formed, and which series and labels it uses.

It knows selectors with matchers, ranges and offsets, calls, aggregations, binary operators with their modifiers,
numbers and parentheses. Sub-queries and ``@`` are not known: neither dashboard nor alerts use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Expression", "Selector", "parse"]

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+(?!\w)|\$__rate_interval|\$__interval)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<op>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],])""",
    re.VERBOSE,
)
_FUNCTIONS = {
    "rate": "range", "increase": "range", "irate": "range", "deriv": "range", "delta": "range", "resets": "range",
    "max_over_time": "range", "min_over_time": "range", "avg_over_time": "range", "changes": "range",
    "histogram_quantile": "instant", "absent": "instant", "clamp_min": "instant", "vector": "instant", "abs": "instant",
    "time": "instant",
}  # fmt: skip
_AGGREGATIONS = {"sum", "max", "min", "avg", "count", "topk", "bottomk", "quantile"}
_BINARY = [
    {"or"}, {"and", "unless"}, {"==", "!=", "<", ">", "<=", ">="}, {"+", "-"}, {"*", "/", "%"}, {"^"},
]  # fmt: skip


@dataclass
class Selector:
    """One series selector, with the functions around it, innermost first."""

    metric: str
    matchers: list[tuple[str, str, str]]
    range: str | None
    inside: list[str] = field(default_factory=list)


@dataclass
class Expression:
    """What an expression uses."""

    selectors: list[Selector] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"not PromQL at {text[at : at + 20]!r} in {text!r}")
        at = found.end()
        kind = str(found.lastgroup)
        if kind != "space":
            yield kind, found.group()
    yield "end", ""


def parse(text: str) -> Expression:
    """Parse one expression. Raises ValueError with the position for one that is not well formed."""
    parser = _Parser(text)
    parser.binary(0)
    parser.take("end")
    return parser.found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self._inside: list[str] = []
        self.found = Expression()

    @property
    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def take(self, *wanted: str) -> str:
        """Take the next token, which must be one of these texts or kinds."""
        kind, text = self._next
        if wanted and text not in wanted and kind not in wanted:
            raise ValueError(f"{text or 'the end'!r} instead of {' or '.join(wanted)} in {self._text!r}")
        self._at += 1
        return text

    def binary(self, level: int) -> None:
        if level == len(_BINARY):
            self._unary()
            return
        self.binary(level + 1)
        while self._next[1] in _BINARY[level]:
            self.take()
            if self._next[1] == "bool":
                self.take()
            if self._next[1] in ("on", "ignoring"):
                self.take()
                self._labels()
                if self._next[1] in ("group_left", "group_right"):
                    self.take()
                    self._labels()
            self.binary(level + 1)

    def _unary(self) -> None:
        if self._next[1] in ("-", "+"):
            self.take()
        kind, text = self._next
        if kind == "number":
            self.take()
        elif text == "(":
            self.take()
            self.binary(0)
            self.take(")")
        elif text in _AGGREGATIONS:
            self._aggregation()
        elif text in _FUNCTIONS:
            self._call()
        else:
            self._selector()

    def _aggregation(self) -> None:
        name = self.take()
        grouped = self._grouping()
        self._arguments(name)
        if not grouped:
            self._grouping()

    def _grouping(self) -> bool:
        if self._next[1] not in ("by", "without"):
            return False
        self.take()
        self._labels()
        return True

    def _labels(self) -> None:
        self.take("(")
        while self._next[1] != ")":
            self.found.labels.add(self.take("name"))
            if self._next[1] != ")":
                self.take(",")
        self.take(")")

    def _call(self) -> None:
        name = self.take()
        before = len(self.found.selectors)
        self._arguments(name)
        if _FUNCTIONS[name] == "range":
            inner = self.found.selectors[before:]
            if len(inner) != 1 or inner[0].range is None:
                raise ValueError(f"{name}() takes one range of a series in {self._text!r}")

    def _arguments(self, name: str) -> None:
        self._inside.append(name)
        self.take("(")
        while self._next[1] != ")":
            self.binary(0)
            if self._next[1] != ")":
                self.take(",")
        self.take(")")
        self._inside.pop()

    def _selector(self) -> None:
        metric = self.take("name")
        matchers: list[tuple[str, str, str]] = []
        if self._next[1] == "{":
            self.take()
            while self._next[1] != "}":
                label = self.take("name")
                operator = self.take("=", "!=", "=~", "!~")
                matchers.append((label, operator, self.take("string")[1:-1]))
                if self._next[1] != "}":
                    self.take(",")
            self.take("}")
        length = None
        if self._next[1] == "[":
            self.take()
            length = self.take("duration")
            self.take("]")
            if not self._inside or _FUNCTIONS.get(self._inside[-1]) != "range":
                raise ValueError(f"a range of {metric} outside of a function over ranges in {self._text!r}")
        if self._next[1] == "offset":
            self.take()
            self.take("duration")
        self.found.selectors.append(Selector(metric, matchers, length, list(reversed(self._inside))))
