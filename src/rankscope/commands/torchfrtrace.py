"""`rankscope torchfrtrace`: the command line of torch's analyzer of dumps, word for word, before `rankscope fr`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import fr
from rankscope.errors import OutputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

TAKES_ABBREVIATIONS = True  # as that program does: --just, --allow
_RECOGNIZED_BYTES = 4096


def add_arguments(parser: ArgumentParser) -> None:
    """That program's options and no others, so that abbreviations mean the same; `rankscope fr` has more."""
    parser.add_argument("trace_dir", nargs="?", help="folder with one dump per rank; a file or an archive works too")
    parser.add_argument(
        "--selected-ranks", nargs="+", type=fr.parse_ranks, metavar="RANK", help="show only these ranks"
    )
    parser.add_argument("--allow-incomplete-ranks", action="store_true", help="do not warn about ranks without a dump")
    parser.add_argument(
        "--pg-filters", nargs="+", metavar="NAME", help="show only groups with these names or descriptions"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the pickle that torchfrtrace writes; replaces an earlier one"
    )
    parser.add_argument("-p", "--prefix", help="what comes before the rank in the file names")
    parser.add_argument("-j", "--just_print_entries", action="store_true", help="print all calls, ranks side by side")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the tables of the flat database")
    parser.add_argument("--print_stack_trace", action="store_true", help="also print the call stacks, numbered")
    parser.add_argument(
        "--mismatch_cap", type=int, default=fr.MISMATCH_CAP, metavar="N", help="list up to N mismatches per group"
    )
    parser.add_argument(
        "--transform-ft", action="store_true", help="torchft: convert ranks within replicas to global ranks"
    )
    parser.add_argument("--group-world-size", type=int, metavar="N", help="torchft: ranks per replica")
    parser.set_defaults(json=False, color="auto", all=False)
    parser.set_defaults(jobs=None, cluster=None, cache=None, no_cache=False, stacks=False)


def run(args: Namespace) -> int:
    if not args.trace_dir:
        raise UsageError("torchfrtrace needs a folder of dumps", "for example: rankscope torchfrtrace dumps/ -j")
    args.paths = [args.trace_dir]
    args.torch_layout = bool(args.output)
    args.force = bool(args.output) and _is_earlier_output(args.output)
    args.raw = False
    return fr.run(args)


def _is_earlier_output(path: str) -> bool:
    """That program overwrites whatever is there; here only what it, or this command, has written."""
    from rankscope.render.torch_types import TORCH_MODULE

    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        if TORCH_MODULE.encode() in file.read(_RECOGNIZED_BYTES):
            return True
    raise OutputError(f"{path} exists already and was not written by torchfrtrace", "choose another name, or remove it")
