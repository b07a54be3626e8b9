"""Makes pages of Great Expectations stand for themselves: a browser that opens one asks nobody for anything.

Its templates name style sheets, scripts, fonts and pictures on other people's servers, one of them with an id of the
installation. Those are taken out, and a style sheet of ours comes in. What the pages say is left as it is.
"""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from typing import Final

from bridge.settings.loading import conf_path

__all__ = ["PAGES", "offline"]

PAGES: Final = {"index.html": "Verdict", "suite.html": "Suite"}
"""The pages of a site, and what the links to them say."""

_GONE: Final = frozenset({"script", "link", "iframe", "object", "embed", "button", "footer"})
"""Elements that are taken out with all that is in them: what loads something, or is of no use without it."""
_ALONE: Final = frozenset({"link", "embed", "img", "meta", "br", "hr", "input", "source"})
"""Elements without an end."""
_KEPT: Final = frozenset(
    {
        "id",
        "class",
        "role",
        "title",
        "alt",
        "style",
        "colspan",
        "rowspan",
        "scope",
        "charset",
        "name",
        "content",
        "lang",
    }
)
"""Attributes that load nothing; of the others only a link within the site stays."""
_LOADS: Final = re.compile(r"url\s*\(|@import|expression\s*\(|://", re.IGNORECASE)


def offline(page: str, title: str) -> str:
    """Return the page without anything that a browser would load, with links to the others and a title."""
    parser = _Offline(title)
    parser.feed(page)
    parser.close()
    return "".join(parser.out)


class _Offline(HTMLParser):
    def __init__(self, title: str) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self._title = title
        self._within: list[str] = []
        """Elements that are taken out and have not ended."""
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _GONE or self._within:
            if tag not in _ALONE:
                self._within.append(tag)
            return
        if tag == "img":
            return
        if tag == "style":
            self._style = True
        written = "".join(f' {name}="{escape(value)}"' for name, value in self._kept(tag, attrs))
        self.out.append(f"<{tag}{written}>")
        if tag == "body":
            links = " · ".join(f'<a href="{name}">{escape(text)}</a>' for name, text in PAGES.items())
            self.out.append(f'<p class="pages">{links} · {escape(self._title)}</p>')

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _ALONE:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._within:
            if tag in self._within:
                while self._within.pop() != tag:
                    pass
            return
        if tag in _ALONE or tag in _GONE:
            return
        if tag == "style":
            self._style = False
        if tag == "head":
            self.out.append(f"<style>{conf_path('data-docs.css').read_text(encoding='utf-8')}</style>")
        self.out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.out.append(_plain(data) if self._style else data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")

    def _kept(self, tag: str, attrs: list[tuple[str, str | None]]) -> list[tuple[str, str]]:
        found = []
        for name, value in attrs:
            text = value or ""
            if name == "href" and tag == "a":
                if text.startswith("#"):
                    found.append((name, text))
                elif text.endswith("index.html") and "://" not in text:
                    found.append((name, "index.html"))
            elif name in _KEPT and not _LOADS.search(text):
                found.append((name, text))
        return found


def _plain(style: str) -> str:
    """Return a style sheet without the rules that load something."""
    return "\n".join(line for line in style.splitlines() if not _LOADS.search(line))
