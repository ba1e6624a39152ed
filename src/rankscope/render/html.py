"""Pages: everything that comes from a trace is escaped, and nothing runs or loads but what this package wrote."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from numbers import Number

from rankscope.render.escape import escape as visible

# What one cannot see and what turns the direction of writing could disguise a text as another one.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


class Html(str):
    """Markup that a page can hold as it is. What makes or takes markup says so by this type, so that mypy finds text
    that nobody escaped."""

    __slots__ = ()

    def __add__(self, other: str) -> Html:
        return joined((self, other))

    def __radd__(self, other: str) -> Html:
        return joined((other, self))


NOTHING = Html()
_SAFE = (Html, Number)


def text(value: object) -> Html:
    """Text for between tags and for attributes in double quotes: the only way from text to Html."""
    return Html(html.escape(_HIDDEN.sub(lambda match: visible(match.group()), str(value))))


def markup(template: str, *parts: object) -> Html:
    """Our own tags, with a `{}` for each part: Html as it is, all else as text. A test checks that only literals are
    templates."""
    return Html(template.format(*(part if isinstance(part, _SAFE) else text(part) for part in parts)))


def joined(parts: Iterable[str], between: str = "") -> Html:
    return Html(text(between).join(part if isinstance(part, Html) else text(part) for part in parts))


def script_data(content: str) -> Html:
    """JSON for within a script element. No `<` in it: nothing can end the element early."""
    return Html(content.replace("<", "\\u003c"))


def text_bytes(payload: bytes) -> bytes:
    """What `text` does, for what is read and written as bytes."""
    return payload.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")


@functools.lru_cache
def asset(name: str) -> str:
    """A style or script of ours, from render/assets."""
    return (files("rankscope.render") / "assets" / name).read_text("utf-8")


def assets(names: Iterable[str]) -> Html:
    """Several of them as the content of one element; as they are, or their digest would be another."""
    return Html("\n".join(map(asset, names)))


def digest(content: str) -> str:
    """How a page's policy names a style or script that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


@functools.lru_cache
def page_frame(
    title: str, styles: Sequence[str] = ("page.css",), scripts: Sequence[str] = (), may_ask: bool = False
) -> tuple[Html, Html]:
    """The HTML before and after the body. `styles` and `scripts` name assets; they are part of the page itself,
    and the page's policy allows these and nothing else. Both must be tuples. One that `may_ask` can load data from
    the server that it came from."""
    style, script = assets(styles), assets(scripts)
    allowed = f"default-src 'none'; style-src {digest(style)}; img-src data:"
    if script:
        allowed += f"; script-src {digest(script)}"
    if may_ask:
        allowed += "; connect-src 'self'"
    head = markup(
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="{}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n",
        Html(allowed),
        title,
        style,
    )
    return head, (markup("<script>{}</script>\n", script) if script else NOTHING) + markup("</body>\n</html>\n")


def page(title: str, body: Iterable[Html], styles: Sequence[str] = ("page.css",), scripts: Sequence[str] = ()) -> Html:
    before, behind = page_frame(title, tuple(styles), tuple(scripts))
    return markup("{}{}\n{}", before, joined(body, "\n"), behind)
