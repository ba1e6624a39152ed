"""Text of a trace in a page."""

from __future__ import annotations

import pytest

from rankscope.render.html import page_frame, text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('<b a="1">&', "&lt;b a=&quot;1&quot;&gt;&amp;"),
        ("file\u202exe.py", "file\\u202exe.py"),
        ("a\x1b[2Jb\x00", "a\\x1b[2Jb\\x00"),
        ("zero\u200bwidth \udc80", "zero\\u200bwidth \\udc80"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("Ärger 测试 🙂", "Ärger 测试 🙂"),
        (3, "3"),
    ],
)
def test_neither_markup_nor_what_disguises_itself(given: object, shown: str) -> None:
    assert text(given) == shown


def test_the_title_is_text_and_only_a_served_page_may_ask() -> None:
    before, _ = page_frame("</title><script>", ("page.css",))
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in before
    assert "connect-src" not in before
    assert "script-src" not in before
    assert "connect-src 'self'" in page_frame("x", ("page.css",), ("page.js",), True)[0]
