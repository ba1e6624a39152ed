"""One way to turn text of a trace into a number, and one way to show it on a terminal."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_tree import SourceFile, on_every_file, on_files

# Rooms that look at text from files: numbers in it go through model/numbers.py, which knows their bounds.
READS_TEXT = ("read", "live")
JUDGES_TEXT = ("analyze", "render", "model")
GUESSES = {"isdigit", "isdecimal", "isnumeric"}
# Their own text goes through the escape of output.py as well, but they are asked before it can be imported, or erase.
TELLS = ("commands/output.py", "commands/progress.py", "commands/record.py", "cli.py")
STREAMS = {"stdout", "stderr"}


def is_bounded(source: SourceFile) -> bool:
    """The readers of a job's log bound each number in the expression that finds it: [0-9]{1,9}."""
    return source.name.startswith("read/job_log")


def calls(source: SourceFile) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))


@on_files(lambda source: source.room in READS_TEXT and not is_bounded(source))
def test_text_becomes_a_number_in_one_place(source: SourceFile) -> None:
    found = [call.lineno for call in calls(source) if isinstance(call.func, ast.Name) and call.func.id == "int"]
    assert found == [], "use integer, rank_number or whole of model/numbers.py"


@on_files(lambda source: source.room in (*READS_TEXT, *JUDGES_TEXT) and not is_bounded(source))
def test_nobody_guesses_what_digits_are(source: SourceFile) -> None:
    if source.name == "model/numbers.py":
        return
    found = [
        call.lineno for call in calls(source) if isinstance(call.func, ast.Attribute) and call.func.attr in GUESSES
    ]
    assert found == [], "use is_number of model/numbers.py: isdigit takes more than int does"


@on_every_file
def test_text_reaches_a_terminal_in_one_way(source: SourceFile) -> None:
    if source.name in TELLS or source.room in ("collect", "simulate"):
        return
    found = [
        call.lineno
        for call in calls(source)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("write", "writelines")
        and isinstance(call.func.value, ast.Attribute)
        and call.func.value.attr in STREAMS
    ]
    found += [call.lineno for call in calls(source) if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert found == [], "use print_lines or tell of commands/output.py"
