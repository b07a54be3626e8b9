"""Pages that ask nobody for anything."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.data_docs import offline

PAGE = """<!DOCTYPE html><html><head><title>Docs</title>
<link rel="stylesheet" href="https://cdn.example/b.css"/><style>p { color: red }
.logo { background: url('https://cdn.example/l.png') }</style>
<script src="https://cdn.example/x.js"></script><script>if (a < b) { track("</div>") }</script></head>
<body onload="go()"><nav><a href="../../index.html"><img src="https://cdn.example/l.png?id=7"/></a></nav>
<a href="#section-1">to</a><a href="https://shop.example">shop</a>
<div id="section-1" class="card" style="background: url(//x.example/y)" onclick="x()">5 &lt; 6 &amp; ok</div>
<footer><p>news <a href="https://news.example">Subscribe</a></p></footer></body></html>"""


class Loads(HTMLParser):
    """Collects what a browser would ask others for, or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed"):
            self.found.append(tag)
        self.found += [name for name, value in attrs if name.startswith("on") or "//" in (value or "")]
        self.found += [name for name, value in attrs if "url(" in (value or "")]


def test_what_a_page_would_load_is_taken_out_and_what_it_says_stays() -> None:
    found = offline(PAGE, "silver: <5> rows")
    assert Loads(PAGE).found
    assert Loads(found).found == []
    assert "cdn.example" not in found
    for kept in (
        "<!DOCTYPE html>", "5 &lt; 6 &amp; ok", '<a href="#section-1">', '<a href="index.html">',
        '<a href="suite.html">', "silver: &lt;5&gt; rows", "p { color: red }", "<a>shop</a>",
    ):  # fmt: skip
        assert kept in found
    assert "news" not in found
    assert "track" not in found


pieces = st.sampled_from(
    ["<div>", "</div>", "<script src=//x>", "</script>", "<img src='http://x'>", "text", "<p onclick=a>", "<link href=//x>",
     "<style>", "</style>", "a{b:url(//x)}", "<!-- c -->", "<footer>", "</footer>", "<body>", "</head>", "&amp;", "<"]
)  # fmt: skip


@given(st.lists(pieces, max_size=30).map("".join))
def test_whatever_the_page_is_nothing_is_loaded(page: str) -> None:
    assert Loads(offline(page, "t")).found == []


@pytest.mark.parametrize("title", ["<script>alert(1)</script>", '"><img src=x>'])
def test_a_title_is_text(title: str) -> None:
    assert Loads(offline("<body></body>", title)).found == []
