"""What the commands share: output options, color and width of the terminal, files written safely.

The environment is read here and nowhere below.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rankscope.errors import OutputError, UsageError
from rankscope.render import Options
from rankscope.render.whole_file import whole_file

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

MIN_WIDTH, MAX_WIDTH = 40, 120


def add_output_options(parser: ArgumentParser) -> None:
    """The options of every command that answers with text."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="color the text (default: on a terminal)"
    )


def add_finding_options(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="show every finding in full, with whole stacks and effects")
    parser.add_argument("--no-source", action="store_true", help="do not show lines of source code")
    add_verbosity_options(parser)


def add_verbosity_options(parser: ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "-v", "--verbose", action="store_true", help="also print what was read and checked, and notes in full"
    )
    choice.add_argument("-q", "--quiet", action="store_true", help="print only the title and the fix of each finding")


def add_live_options(parser: ArgumentParser, timeout_s: float, answers: str) -> None:
    """The options of the commands that ask a running job."""
    parser.add_argument("-o", "--output", metavar="FOLDER", help="keep what was read in this new folder")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=timeout_s,
        metavar="SECONDS",
        help=f"how long to wait for {answers} (default: {timeout_s:.0f})",
    )
    add_output_options(parser)
    add_finding_options(parser)


def terminal_options(args: Namespace, next_command: str = "") -> Options:
    """How a report is to be shown on standard output, as far as the command has options for it."""
    return Options(
        color=wants_color(args.color, sys.stdout),
        width=text_width(sys.stdout),
        show_all=getattr(args, "all", False),
        verbose=getattr(args, "verbose", False),
        quiet=getattr(args, "quiet", False),
        source=not getattr(args, "no_source", False),
        base=os.getcwd(),
        next_command=next_command,
    )


def positive_seconds(text: str) -> float:
    """The type of an option."""
    from argparse import ArgumentTypeError

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def add_file_options(parser: ArgumentParser, formats: Iterable[str]) -> None:
    extensions = ", ".join(f".{name}" for name in formats)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"write to FILE; its extension sets the format: {extensions}"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")


def wants_color(choice: str, stream: TextIO) -> bool:
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return os.environ["FORCE_COLOR"] != "0"
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def text_width(stream: TextIO) -> int | None:
    """Where lines should end; None when no person reads them directly."""
    if not stream.isatty():
        return None
    import shutil

    return max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))


def add_raw_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--raw-csv",
        action="store_true",
        help="in CSV, leave text as it is, even where a spreadsheet would run it as a formula",
    )


def print_lines(lines: Iterable[str]) -> None:
    """The only way to standard output: whatever a trace holds, a terminal gets no escape sequence of it."""
    from rankscope.render.escape import harmless

    shown = map(harmless, lines) if sys.stdout.isatty() else lines
    sys.stdout.writelines(f"{line}\n" for line in shown)


def tell(text: str) -> None:
    """The only way to standard error for what is not the result, line by line."""
    from rankscope.render.escape import escape

    sys.stderr.writelines(f"{escape(line)}\n" for line in text.split("\n"))


def print_json(value: Any) -> None:
    from rankscope.render.as_json import dumps

    print_lines([dumps(value)])


def output_format(path: str, formats: Iterable[str]) -> str:
    """The format that the extension of `path` stands for."""
    known = list(formats)
    name = os.path.splitext(path)[1].lower().removeprefix(".")
    if name not in known:
        raise UsageError(f"unknown file extension: {path!r}", f"use one of .{', .'.join(known)}")
    return name


def answer_format(args: Namespace, formats: Iterable[str]) -> str:
    """How an answer is to be written: as the output's extension says, else as text, or as JSON where --json asks."""
    if not args.output:
        return "json" if args.json else "txt"
    chosen = output_format(args.output, formats)
    if args.json and chosen != "json":
        raise UsageError(f"--json and -o {args.output} contradict each other", "leave out --json, or give a .json file")
    return chosen


def check_writable(path: str, force: bool) -> None:
    """Refuses before the work is done, not after."""
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", "give a file name")
    if os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists already", "choose another name, or add --force to overwrite it")
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise OutputError(f"the folder {folder} does not exist", f"create it first: mkdir -p {folder}")


def write_file(path: str, lines: Iterable[str], force: bool) -> None:
    check_writable(path, force)
    with whole_file(path) as part, open(part, "x", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(f"{line}\n" for line in lines)


def rows_format(args: Namespace, formats: Sequence[str]) -> str:
    """How rows are to be written: as --format or --json says, else as the output's extension does, else as a table."""
    if args.format and args.json and args.format != "json":
        raise UsageError(f"--json and --format {args.format} contradict each other", "use one of the two")
    asked: str | None = "json" if args.json else args.format
    if args.output and not asked:
        name = output_format(args.output, formats)
        return "table" if name == "txt" else name
    return asked or "table"
