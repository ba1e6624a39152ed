"""Pages: everything that comes from a trace is escaped, and nothing runs or loads but what this package wrote."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from rankscope.render.escape import escape as visible

# What one cannot see and what turns the direction of writing could disguise a text as another one.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def text(value: object) -> str:
    """Text for between tags and for attributes in double quotes."""
    return html.escape(_HIDDEN.sub(lambda found: visible(found.group()), str(value)))


def text_bytes(payload: bytes) -> bytes:
    """The same for what is read and written as bytes."""
    return payload.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")


@functools.lru_cache
def asset(name: str) -> str:
    """A style or script of ours, from render/assets."""
    return (files("rankscope.render") / "assets" / name).read_text("utf-8")


def digest(content: str) -> str:
    """How a page's policy names a style or script that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


@functools.lru_cache
def page_frame(
    title: str, styles: Sequence[str] = ("page.css",), scripts: Sequence[str] = (), may_ask: bool = False
) -> tuple[str, str]:
    """The HTML before and after the body. `styles` and `scripts` name assets; they are part of the page itself,
    and the page's policy allows these and nothing else. Both must be tuples. One that `may_ask` can load data from
    the server that it came from."""
    style = "\n".join(map(asset, styles))
    script = "\n".join(map(asset, scripts))
    allowed = f"default-src 'none'; style-src {digest(style)}; img-src data:"
    if script:
        allowed += f"; script-src {digest(script)}"
    if may_ask:
        allowed += "; connect-src 'self'"
    head = (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )
    return head, (f"<script>{script}</script>\n" if script else "") + "</body>\n</html>\n"


def page(title: str, body: Iterable[str], styles: Sequence[str] = ("page.css",), scripts: Sequence[str] = ()) -> str:
    """A whole page; the body's parts are HTML already."""
    before, behind = page_frame(title, tuple(styles), tuple(scripts))
    return before + "\n".join(body) + "\n" + behind
