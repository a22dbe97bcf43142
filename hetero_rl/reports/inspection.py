"""What every page promises, checked on its text: no script, no request, titles, tables beside plots, sound markup."""

import re
from html.parser import HTMLParser

from typing_extensions import override

__all__ = ["broken_promises"]

_VOID = {"meta", "link", "br"}
_DRAWN = {"path", "circle", "rect"}
_FORBIDDEN_TAGS = {
    "script",
    "iframe",
    "object",
    "embed",
    "form",
    "img",
    "audio",
    "video",
    "base",
    "foreignobject",
}
_LOADING_ATTRIBUTES = {"src", "href", "srcset", "action", "formaction", "poster", "background", "xlink:href"}
_LOADING_STYLE = re.compile(r"url\s*\(|@import|expression\s*\(", re.IGNORECASE)


def broken_promises(html: str) -> list[str]:
    """Sentences about what is wrong with a page; empty when it keeps all promises.

    Args:
        html: A whole document of `page.render_page`.
    """
    walker = _Walker()
    walker.feed(html)
    walker.close()
    if walker.open_tags:
        walker.problems.append(f"these elements never end: {walker.open_tags}")
    if walker.figures_without_table:
        walker.problems.append(f"{walker.figures_without_table} plots have no table beside them")
    if "prefers-color-scheme:dark" not in html:
        walker.problems.append("there is no dark colour scheme")
    if 'name="viewport"' not in html:
        walker.problems.append("there is no viewport: a phone would show it tiny")
    return walker.problems


class _Walker(HTMLParser):
    """Reads the page once, with every open element at hand."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open_tags: list[str] = []
        self.problems: list[str] = []
        self.figures_without_table = 0
        self._pairs: list[list[str]] = []
        self._svg_titled = True

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)
        if tag == "div" and ("class", "pair") in attrs:
            self._pairs.append([])
        if self._pairs and tag in {"svg", "table"}:
            self._pairs[-1].append(tag)
        elif tag == "svg":
            self.figures_without_table += 1
        if tag == "svg":
            self._svg_titled = False
        if tag == "title" and "svg" in self.open_tags:
            self._svg_titled = True
        if tag not in _VOID | _DRAWN:
            self.open_tags.append(tag)
        if tag == "div" and self._pairs:
            self._pairs[-1].append("div")

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)

    @override
    def handle_endtag(self, tag: str) -> None:
        if not self.open_tags or self.open_tags[-1] != tag:
            self.problems.append(f"</{tag}> ends nothing at {self.getpos()}")
            return
        self.open_tags.pop()
        if tag == "svg" and not self._svg_titled:
            self.problems.append(f"a plot that ends at {self.getpos()} has no title")
        if tag == "div" and self._pairs:
            self._close_div()

    def _close_div(self) -> None:
        inside = self._pairs[-1]
        inside.remove("div")
        if "div" not in inside:
            self.figures_without_table += "svg" in inside and "table" not in inside
            self._pairs.pop()

    @override
    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] == "style" and _LOADING_STYLE.search(data):
            self.problems.append("the style sheet loads something")

    def _check(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _FORBIDDEN_TAGS:
            self.problems.append(f"<{tag}> at {self.getpos()}")
        for name, value in attrs:
            if name.startswith("on"):
                self.problems.append(f"an event handler {name} at {self.getpos()}")
            if name in _LOADING_ATTRIBUTES and value != "data:,":
                self.problems.append(f"{name}={value!r} at {self.getpos()} loads something")
            if name == "style":
                self.problems.append(f"an inline style at {self.getpos()}")
