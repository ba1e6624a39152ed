"""The command line: the argparse tree, the default command, and what each failure looks like from outside.

Exit codes: 0 clean, 1 findings, 2 could not do it, 130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NoReturn, TextIO

from rankscope.commands import COMMANDS
from rankscope.errors import RankscopeError, UsageError

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
DESCRIPTION = "Says what went wrong in a PyTorch job: which rank, which call, which line of code, and what to do."
EPILOG = """\
rankscope PATH... is short for rankscope diagnose PATH...
A path is a trace, a folder of traces or an archive of them.

exit codes: 0 clean, 1 findings, 2 could not do it"""


class Parser(argparse.ArgumentParser):
    """Reports bad usage like every other failure: one line, and one that says what to do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, _option_hint(self, message) or f"{self.prog} --help")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps every command on one line with its help; argparse forgets their indentation when it measures them."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)
        self._action_max_length = max(map(len, COMMANDS)) + 4


class ShowVersion(argparse.Action):
    """Prints the version; it is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from rankscope import __version__

        sys.stdout.write(f"rankscope {__version__}\n")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole tree; documentation and shell completion are generated from it."""
    parser = Parser(
        prog="rankscope",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name in COMMANDS:
        module = import_module(f"rankscope.commands.{name}")
        command = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        command.allow_abbrev = getattr(module, "TAKES_ABBREVIATIONS", False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    _never_fail_on_encoding(sys.stdout)  # as Python itself sees to for stderr
    # numpy starts a thread per core for linear algebra, which is never used here: a third of its start-up time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A command makes millions of objects and no cycles worth looking for: that would cost a tenth of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except RankscopeError as error:
        _complain(error.message, error.hint)
        return EXIT_FAILED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; there is nobody left to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except MemoryError:
        _complain("out of memory", "give fewer paths, or read with fewer processes: --jobs 1")
        return EXIT_FAILED
    except Exception as error:
        _report_bug(error)
        return EXIT_FAILED
    finally:
        if collects:
            gc.enable()


def _run(arguments: list[str]) -> int:
    if not arguments:
        build_parser().print_help(sys.stderr)
        return EXIT_FAILED
    args = build_parser().parse_args(with_default_command(arguments))
    code: int = args.run(args)
    return code


def with_default_command(arguments: list[str]) -> list[str]:
    """A path in the place of a command means diagnose; a word that is neither gets a hint, not a guess."""
    first = arguments[0]
    if arguments == [first] and first in COMMANDS and os.path.isdir(first):
        sys.stderr.write(f"note: {first} is a command; to diagnose the folder of that name: rankscope ./{first}\n")
    if first in COMMANDS or first in ("-h", "--help", "--version"):
        return arguments
    if not first.startswith("-") and not _looks_like_path(first):
        hint = did_you_mean(first, COMMANDS) or "give the folder that holds the traces, or see rankscope --help"
        raise UsageError(f"{first!r} is neither a command nor an existing path", hint)
    return ["diagnose", *arguments]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing when no known word is close."""
    import difflib

    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f"did you mean {by_folded[close[0]]}?" if close else ""


def _looks_like_path(word: str) -> bool:
    return os.path.lexists(word) or any(sign in word for sign in (os.sep, ".", "*", "~"))


def _option_hint(parser: argparse.ArgumentParser, message: str) -> str:
    prefix = "unrecognized arguments: "
    if not message.startswith(prefix):
        return ""
    options: set[str] = set()
    pending = [parser]
    while pending:
        for action in pending.pop()._actions:
            options.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                pending.extend(action.choices.values())
    word = message[len(prefix) :].split()[0]
    return did_you_mean(word, sorted(options - {word}))  # the word itself is an option of another command


def _never_fail_on_encoding(stream: TextIO) -> None:
    """A character that the terminal's encoding lacks is shown as its escape, not as a traceback."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="backslashreplace")


def _complain(message: str, hint: str) -> None:
    from rankscope.render.escape import escape

    sys.stderr.write(f"error: {escape(message)}\n")
    if hint:
        sys.stderr.write(f"  = help: {escape(hint)}\n")


def _report_bug(error: Exception) -> None:
    from rankscope import __version__

    if os.environ.get("RANKSCOPE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    python = ".".join(map(str, sys.version_info[:3]))
    _complain(
        f"{type(error).__name__}: {error}. This is a bug in rankscope {__version__} (Python {python}, {sys.platform}), "
        "not in your job or your command.",
        "run the same with RANKSCOPE_DEBUG=1 to see the traceback, and report it with that text",
    )
