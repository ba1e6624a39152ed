"""`rankscope logs`: every name that TORCH_LOGS, and so `rankscope record --logs`, takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.collect.launching.log_names import LogName, LogNames


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("word", metavar="WORD", nargs="?", help="list only names and descriptions that contain WORD")
    parser.add_argument(
        "--python", metavar="PATH", help="the Python whose torch to ask (default: the one that runs rankscope)"
    )
    output.add_output_options(parser)


def run(args: Namespace) -> int:
    known = _ask(args.python)
    shown = [name for name in known.names if not args.word or _is_about(name, args.word)]
    if not shown:
        from rankscope.errors import did_you_mean

        hint = did_you_mean(args.word, (name.name for name in known.names)) or "rankscope logs lists all names"
        raise UsageError(f"no log name in torch {known.torch} contains {args.word!r}", hint)
    if args.json:
        output.print_json({"torch": known.torch, "logs": [name._asdict() for name in shown]})
    else:
        _print(known, shown, args)
    return 0


def _ask(python: str | None) -> LogNames:
    import sys

    from rankscope.collect.launching.log_names import ask_torch

    try:
        return ask_torch(python or sys.executable)
    except InputError as error:
        hint = "give a Python that can import torch: rankscope logs --python PATH"
        raise InputError(error.message, hint) from None


def _is_about(name: LogName, word: str) -> bool:
    return word.casefold() in f"{name.name} {name.text}".casefold()


def _print(known: LogNames, shown: list[LogName], args: Namespace) -> None:
    import sys

    colored = output.wants_color(args.color, sys.stdout)
    width = max(len(name.name) for name in shown)
    headings = {
        "log": f"Logs of torch {known.torch}: name for its messages, +name adds debug messages, -name errors only",
        "artifact": "Artifacts: on or off",
    }
    for kind, heading in headings.items():
        names = [name for name in shown if name.kind == kind]
        if names:
            output.print_lines([f"\x1b[1m{heading}\x1b[0m" if colored else heading])
            output.print_lines(f"  {name.name:{width}}  {name.text}" for name in names)
            output.print_lines([""])
    example = next((name.name for name in shown if name.kind == "artifact"), shown[0].name)
    output.print_lines([f"Next: rankscope record --logs {example} -- torchrun ... train.py"])
