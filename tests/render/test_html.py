"""Text of a trace in a page."""

from __future__ import annotations

import pytest

from rankscope.render.html import Html, joined, markup, page_frame, script_data, text


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


def test_markup_holds_html_as_it_is_and_all_else_as_text() -> None:
    bold = markup("<b>{}</b>", "<&>")
    assert bold == "<b>&lt;&amp;&gt;</b>"
    assert markup("<p>{} {:.1f} {}</p>", bold, 0.25, None) == f"<p>{bold} 0.2 None</p>"
    assert markup('<i a="{}"/>', 'x" onload="y') == '<i a="x&quot; onload=&quot;y"/>'
    assert joined([bold, "<"], " & ") == f"{bold} &amp; &lt;"


def test_text_that_is_added_to_html_is_escaped() -> None:
    sums = [markup("<br>") + "<", "<" + markup("<br>"), markup("<br>") + markup("<br>")]
    assert sums == ["<br>&lt;", "&lt;<br>", "<br><br>"]
    assert {type(each) for each in sums} == {Html}


def test_data_cannot_end_its_script() -> None:
    assert script_data('["</script>"]') == '["\\u003c/script>"]'


def test_the_title_is_text_and_only_a_served_page_may_ask() -> None:
    before, _ = page_frame("</title><script>", ("page.css",))
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in before
    assert "connect-src" not in before
    assert "script-src" not in before
    assert "connect-src 'self'" in page_frame("x", ("page.css",), ("page.js",), True)[0]
