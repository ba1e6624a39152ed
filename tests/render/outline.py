"""What a reader gets of a page, one line per element, without the markup: stays the same when only the looks change."""

from __future__ import annotations

from html.parser import HTMLParser

_LISTS = ("ul", "ol", "li", "dl", "dt", "dd")
_BREAKS = frozenset(
    (*_LISTS, "p", "div", "section", "table", "tr", "h1", "h2", "h3", "h4", "pre", "details", "summary")
)
_APART = {"td": " | ", "th": " | ", "text": " ", "title": " ", "span": " "}
_SILENT = frozenset(("script", "style"))
_TOLD = ("href", "id", "aria-label", "title", "data-block", "data-later")


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = [""]
        self.depth_of_silence = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._separate(tag)
        if tag in _APART:
            self.lines[-1] += _APART[tag]
        told = " ".join(f"{name}={value}" for name, value in attributes if name in _TOLD and value)
        if told:
            self.lines[-1] += f"{{{told}}}"
        self.depth_of_silence += tag in _SILENT

    def handle_endtag(self, tag: str) -> None:
        self.depth_of_silence -= tag in _SILENT
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if not self.depth_of_silence:
            self.lines[-1] += data.replace("\n", " ")

    def _separate(self, tag: str) -> None:
        if tag in _BREAKS:
            self.lines.append("")


def outline(html: str) -> str:
    parser = _Outline()
    parser.feed(html)
    lines = (" ".join(line.split()).strip("| ") for line in parser.lines)
    return "\n".join(filter(None, lines)) + "\n"
