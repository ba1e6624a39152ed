"""`rankscope tlparse`: tlparse's own command line, for users who come from there, over `rankscope compile`.

Only the browser differs: here it opens when asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import compile, output
from rankscope.commands.loading import add_scale_options

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs=1, help="a TORCH_TRACE log, or a folder of logs")
    parser.add_argument("--latest", action="store_true", help="read only the newest log in the folder")
    parser.add_argument(
        "-o", "--out", dest="output", metavar="OUT", default="tl_out", help="output folder (default: tl_out)"
    )
    parser.add_argument("--overwrite", dest="force", action="store_true", help="replace an older report")
    parser.add_argument("--strict", action="store_true", help="check every payload; exit with code 1 if any is damaged")
    parser.add_argument("--strict-compile-id", action="store_true", help="accepted; has no effect, as in tlparse")
    parser.add_argument("--no-browser", action="store_true", help="accepted; a browser opens only with --open")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    parser.add_argument(
        "--custom-header-html", metavar="HTML", default="", help="add this at the top of the report's first page"
    )
    parser.add_argument("-v", "--verbose", dest="all", action="store_true", help="show every finding in full")
    parser.add_argument(
        "-p", "--plain-text", action="store_true", help="write generated code as .txt files, not as pages"
    )
    parser.add_argument("-e", "--export", action="store_true", help="report on a draft export (TORCH_DTRACE)")
    parser.add_argument(
        "-i", "--inductor-provenance", dest="provenance", action="store_true", help="link graph nodes to generated code"
    )
    parser.add_argument("--all-ranks-html", dest="all_ranks", action="store_true", help="one folder per rank")
    parser.add_argument("--serve", action="store_true", help="serve the report on 127.0.0.1 until Ctrl-C")
    parser.add_argument("--port", metavar="PORT", type=int, default=0, help="port for --serve (default: a free one)")
    output.add_output_options(parser)
    add_scale_options(parser)
    parser.set_defaults(prefix=None)


def run(args: Namespace) -> int:
    """Exit code 0 whatever was found, as scripts expect it; 1 where --strict finds something damaged."""
    from rankscope.errors import UsageError

    if args.latest and args.all_ranks:
        raise UsageError("--latest and --all-ranks-html cannot be combined", "use one of the two")
    if args.latest:
        args.paths = [_newest(args.paths[0])]
    args.compare, args.fail_on, args.no_source = None, "never", False
    args.serve = args.port if args.serve else None
    args.header_html = args.custom_header_html
    return compile.run(args)


def _newest(path: str) -> str:
    """The log that was written to last; a path that is a log already stays."""
    from rankscope.errors import InputError

    if not os.path.isdir(path):
        return path
    logs = [entry for entry in os.scandir(path) if entry.is_file() and not entry.name.startswith(".")]
    if not logs:
        raise InputError(f"no log in {path}", compile.RECORD_HINT)
    return max(logs, key=lambda entry: (entry.stat().st_mtime_ns, entry.name)).path
