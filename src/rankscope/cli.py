"""The command line: the argparse tree, the default command, and what each failure looks like from outside.

Exit codes: 0 clean, 1 findings, 2 could not do it, 130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NoReturn, TextIO

from rankscope.commands import COMMANDS, SHARED_OPTIONS
from rankscope.errors import RankscopeError, UsageError, did_you_mean

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
DESCRIPTION = "Reports what went wrong in a PyTorch job: which rank, which call, which line of code, and what to do."
_UNKNOWN = "unrecognized arguments: "
_REQUIRED = "the following arguments are required: "
_BAD_CHOICE = re.compile(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Reports bad usage like every other failure: one line, and one that says what to do."""

    def error(self, message: str) -> NoReturn:
        raise _usage_error(self, message)

    def format_help(self) -> str:
        """Argparse's text, but options that many commands share are only named: `rankscope help` describes them."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            if group.title == SHARED_OPTIONS:
                names = (action.option_strings[-1] for action in group._group_actions)
                formatter.add_text(f"{', '.join(names)}: see rankscope help reading")
            else:
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class ProgramParser(Parser):
    """The one of `rankscope` itself, whose help lists the commands by what they are for."""

    def format_help(self) -> str:
        from rankscope.commands.help import overview

        return "".join(f"{line}\n" for line in overview())


class ShowVersion(argparse.Action):
    """Prints the versions that a bug report needs. They are looked up only when asked for; DuckDB is not loaded."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib import metadata

        from rankscope import __version__

        try:
            duckdb = metadata.version("duckdb")
        except metadata.PackageNotFoundError:
            duckdb = "not installed"
        python = ".".join(map(str, sys.version_info[:3]))
        sys.stdout.write(f"rankscope {__version__} (Python {python}, DuckDB {duckdb}, {sys.platform})\n")
        parser.exit()


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The whole tree, from which documentation and shell completion are generated, or some of its commands."""
    parser = ProgramParser(prog="rankscope", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="print the version of rankscope, Python and DuckDB and exit"
    )
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for name in names:
        module = import_module(f"rankscope.commands.{name}")
        summary, example = COMMANDS[name]
        command = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[:1].upper()}{summary[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.allow_abbrev = getattr(module, "TAKES_ABBREVIATIONS", False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    """The one of a single command."""
    parser = build_parser((name,))
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    command: argparse.ArgumentParser = subparsers.choices[name]
    return command


def main(argv: Sequence[str] | None = None) -> int:
    _never_fail_on_encoding(sys.stdout)  # as Python itself sees to for stderr
    words = list(sys.argv[1:] if argv is None else argv)
    # numpy starts a thread per core for linear algebra, which is never used here: a third of its start-up time. A job
    # that is recorded would inherit that.
    if words[:1] != ["record"]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A command makes millions of objects and no cycles worth looking for: that would cost a tenth of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except RankscopeError as error:
        _complain(error.message, error.hint)
        return EXIT_FAILED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; there is nobody left to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt as stop:
        _say_interrupted(stop)
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
        build_parser(()).print_help(sys.stderr)
        return EXIT_FAILED
    complete = with_default_command(arguments)
    names = complete[:1] if complete[0] in COMMANDS else ()
    args = build_parser(names).parse_args(complete)
    if getattr(args, "debug", False):
        os.environ["RANKSCOPE_DEBUG"] = "1"  # processes that this one starts raise as well
    if os.environ.get("RANKSCOPE_DEBUG"):
        from rankscope.model.border import raise_bugs

        raise_bugs()
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
        close = did_you_mean(first, COMMANDS) or did_you_mean(first, os.listdir())
        hint = close or "give the folder that has the traces, or see rankscope --help"
        raise UsageError(f"{first!r} is neither a command nor an existing path", hint)
    return ["diagnose", *arguments]


def _looks_like_path(word: str) -> bool:
    return os.path.lexists(word) or any(sign in word for sign in (os.sep, ".", "*", "?", "[", "~"))


# What is wrong with a command line


def _usage_error(parser: argparse.ArgumentParser, message: str) -> UsageError:
    """argparse's message in words that name what was typed, with the closest word that would have been right."""
    known = _commands_of(parser)
    prog = f"rankscope {next(iter(known))}" if len(known) == 1 else parser.prog
    fallback = f"{prog} --help"
    if message.startswith(_UNKNOWN):
        word = message[len(_UNKNOWN) :].split()[0]
        if not word.startswith("-"):
            return UsageError(f"{prog} does not expect {word!r}", fallback)
        options = {option for each in (parser, *known.values()) for option in each._option_string_actions}
        hint = did_you_mean(word.partition("=")[0], sorted(options))
        return UsageError(f"{prog} has no option {word}", hint or fallback)
    if message.startswith(_REQUIRED):
        name = prog.removeprefix("rankscope ")
        hint = f"for example: {COMMANDS[name].example}" if name in COMMANDS else fallback
        return UsageError(f"{prog} needs {message[len(_REQUIRED) :]}", hint)
    choice = _BAD_CHOICE.match(message)
    if choice:
        option, word, listed = choice.groups()
        choices = [each.strip("' ") for each in listed.split(",")]
        problem = f"{option} does not accept {word!r}: choose from {', '.join(choices)}"
        return UsageError(problem, did_you_mean(word, choices) or fallback)
    return UsageError(message, fallback)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _never_fail_on_encoding(stream: TextIO) -> None:
    """A character that the terminal's encoding lacks is shown as its escape, not as a traceback."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="backslashreplace")


def _complain(message: str, hint: str) -> None:
    from rankscope.render.escape import escape

    sys.stderr.write(f"error: {escape(message)}\n")
    lead = "  = fix: "
    for line in hint.splitlines():
        sys.stderr.write(f"{lead}{escape(line)}\n")
        lead = " " * len(lead)


def _say_interrupted(stop: KeyboardInterrupt) -> None:
    from rankscope.commands.interrupts import interruption
    from rankscope.render.escape import escape

    sys.stderr.write(f"{escape(interruption(stop))}\n")


def _report_bug(error: Exception) -> None:
    from rankscope import __version__

    if os.environ.get("RANKSCOPE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    python = ".".join(map(str, sys.version_info[:3]))
    _complain(
        f"{type(error).__name__}: {error}. This is a bug in rankscope {__version__} (Python {python}, {sys.platform}), "
        "not in your job or your command.",
        "run it again with RANKSCOPE_DEBUG=1 to see the traceback, and report the bug with that text",
    )
