"""The pages around a single payload: generated code, guards, sources of generated functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.model.finding import count_noun
from rankscope.render.compile_tree.outputs import NOT_JSON
from rankscope.render.html import Html, joined, markup, page, page_frame, text_bytes

BACK = markup('<p><a href="../index.html">Back to the report</a></p>')
_CPP_SIGNS = (b"#include", b"extern ", b"//", b"/*")


def code_page(title: str, code: bytes) -> bytes:
    """The browser colors it: that is where tlparse spends nine tenths of its time."""
    before, behind = page_frame(title, ("page.css", "code.css"), ("code.js",))
    language = b"cpp" if code.lstrip().startswith(_CPP_SIGNS) else b"python"
    head = markup("{}{}<h1>{}</h1>\n", before, BACK, title).encode("utf-8", "replace")
    # A newline directly behind <pre> is not part of the text.
    opening = b'<pre class="code" data-language="' + language + b'">\n'
    return b"".join((head, opening, text_bytes(code), b"</pre>\n", behind.encode()))


def source_page(name: str, source: bytes) -> bytes:
    """Source that exists in no file. Stacks point at its lines: #L12."""
    lines = source.decode("utf-8", "replace").split("\n")
    numbered = joined(
        markup('<span class="line" id="L{}" data-n="{}">{}</span>', number, number, line)
        for number, line in enumerate(lines, start=1)
    )
    # The line's element is a block, so the newlines between them must not be shown a second time.
    body = [
        BACK,
        markup("<h1>{}</h1>", name),
        markup('<pre class="code numbered">{}</pre>', numbered),
    ]
    return page(name, body, ("page.css", "code.css")).encode("utf-8", "replace")


class Guard(msgspec.Struct):
    code: Any = None
    stack: Any = None
    user_stack: Any = None


def guards_page(label: str, payload: bytes) -> bytes:
    """Each guard with the code that asked for it."""
    title = f"Guards of {label}"
    try:
        guards = msgspec.json.decode(payload, type=list[Guard])
    except NOT_JSON:
        body = [
            BACK,
            markup("<h1>{}</h1>", title),
            markup("<p>The log has no JSON for these guards; here is the text.</p>"),
        ]
        return page(title, [*body, markup("<pre>{}</pre>", payload.decode("utf-8", "replace"))]).encode(
            "utf-8", "replace"
        )
    items = joined((markup("<li>{}</li>", _guard(guard)) for guard in guards), "\n")
    body = [
        BACK,
        markup("<h1>{}</h1>", title),
        markup("<p>{}.</p>", count_noun(len(guards), "guard")),
        markup("<ol>{}</ol>", items),
    ]
    return page(title, body).encode("utf-8", "replace")


def _guard(guard: Guard) -> Html:
    stacks = [
        markup("<details><summary>{}</summary><pre>{}</pre></details>", name, _frames(stack))
        for name, stack in (("Your code", guard.user_stack), ("Stack", guard.stack))
        if stack
    ]
    return markup("<code>{}</code>", guard.code) + joined(stacks)


def _frames(stack: Any) -> str:
    """File names are numbers where the log interns them; then the number is all that this record has."""
    if not isinstance(stack, Sequence) or isinstance(stack, str):
        return str(stack)
    lines = []
    for frame in stack:
        if isinstance(frame, dict):
            site = f"{frame.get('filename')}:{frame.get('line')} in {frame.get('name')}"
            lines.append(f"{site}\n    {frame['loc']}" if frame.get("loc") else site)
        else:
            lines.append(str(frame))
    return "\n".join(lines)
