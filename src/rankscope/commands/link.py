"""`rankscope link`: execution traces joined with profiler traces of the same steps."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.linking import add_durations_options, durations_notes, durations_words, file_paths, load_linked
from rankscope.commands.loading import PATH_HELP, add_reading_options
from rankscope.commands.progress import Progress
from rankscope.errors import OutputError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from rankscope.model.tables import Trace

TIMELINE = "trace.json.gz"
_HEADS = ("rank", "nodes", "linked", "how", "kernels", "collectives", "edges", "execution trace", "profiler trace")
_MAX_DAMAGED = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument(
        "-o", "--output", metavar="DIR", help=f"write the linked trace: Parquet tables, and {TIMELINE} for Perfetto"
    )
    add_durations_options(parser)
    parser.add_argument("--force", action="store_true", help="write into DIR even if it is not empty")
    parser.add_argument("--json", action="store_true", help="print the link rates as JSON")
    add_reading_options(parser)


def run(args: Namespace) -> int:
    folder = args.output and (args.output.rstrip(os.sep) or args.output)
    if folder:
        _check_folder(folder, args.force)
    trace = load_linked(args)
    pairs = list(_described(trace))
    written = _write(trace, folder) if folder else {}
    if args.json:
        output.print_json({"pairs": pairs, "written": written})
    else:
        output.print_lines(_page(pairs, [*_damaged(trace), *_notes(pairs, args)], args, written))
    return int(not any(pair["n_operators"] for pair in pairs))


def _check_folder(folder: str, force: bool) -> None:
    """Refuses before the work is done, not after."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder} is a file", "give the name of a folder")
    if os.path.isdir(folder) and os.listdir(folder) and not force:
        raise OutputError(f"{folder} is not empty", "choose another folder, or add --force to write into it")


# One execution trace may go over several profiler traces, and one of these over several ranks.
_COUNTS = """
WITH profiles_of AS (SELECT DISTINCT file_id, rank, profile_id FROM et_links WHERE profile_id IS NOT NULL)
SELECT p.file_id,
       (SELECT count(*) FROM kernels AS k JOIN profiles_of AS o ON o.profile_id = k.file_id
        WHERE o.file_id = p.file_id AND k.rank IS NOT DISTINCT FROM o.rank) AS n_kernels,
       (SELECT count(*) FROM et_collectives AS c WHERE c.file_id = p.file_id) AS n_collectives,
       (SELECT count(*) FROM et_edges AS e WHERE e.target = 'node' AND e.file_id = p.file_id)
       + (SELECT count(*) FROM et_edges AS e JOIN profiles_of AS o ON o.profile_id = e.file_id
          WHERE e.target = 'kernel' AND o.file_id = p.file_id AND e.rank IS NOT DISTINCT FROM o.rank) AS n_edges,
       (SELECT count(*) FROM et_links AS l WHERE l.file_id = p.file_id AND l.is_inflated) AS n_inflated,
       (SELECT count(*) FROM et_links AS l WHERE l.file_id = p.file_id AND l.duration_from <> l.profile_id) AS n_moved
FROM et_pairs AS p
"""


def _described(trace: Trace) -> Iterator[dict[str, Any]]:
    from rankscope.analyze.link.reasons import why_missing

    paths, reasons = file_paths(trace), why_missing(trace)
    counted = {row[0]: row[1:] for row in trace.sql(_COUNTS).rows()}
    for pair in trace.table("et_pairs").rows():
        n_kernels, n_collectives, n_edges, n_inflated, n_moved = counted[pair["file_id"]]
        yield {
            **{name: pair[name] for name in ("rank", "method")},
            "why": reasons.get(pair["file_id"], ""),
            **{
                name: pair[name]
                for name in ("n_nodes", "n_operators", "n_linkable", "n_linked", "n_wrong_names", "n_outside")
            },
            "link_pct": round(float(pair["link_pct"]), 3) if pair["n_linkable"] else None,
            "n_kernels": n_kernels,
            "n_collectives": n_collectives,
            "n_edges": n_edges,
            "n_inflated": n_inflated,
            "n_transplanted": n_moved,
            "execution_trace": paths[pair["file_id"]],
            "profiler_trace": paths.get(pair["profile_id"], ""),
        }


def _write(trace: Trace, folder: str) -> dict[str, int]:
    """Rows of each table, and events of the timeline."""
    from rankscope.model.database import connect, named_tables
    from rankscope.render.database_files import write_database
    from rankscope.render.linked_tables import LINKED_TABLES
    from rankscope.render.linked_timeline import write_linked_timeline

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {folder}: {error.strerror}", "choose another one with -o"
        ) from error
    connection = connect(trace, only=named_tables(" ".join(LINKED_TABLES.values())))
    with Progress() as progress:
        n_rows = write_database(connection, LINKED_TABLES, folder, "parquet", progress)
    n_events = write_linked_timeline(trace, os.path.join(folder, TIMELINE))
    return {**{f"{name}.parquet": count for name, count in n_rows.items()}, TIMELINE: n_events}


def _page(
    pairs: Sequence[dict[str, Any]], notes: Sequence[str], args: Namespace, written: dict[str, int]
) -> Iterator[str]:
    import sys

    from rankscope.model.finding import count_noun
    from rankscope.render.plain_table import table_lines

    rows = [
        (
            pair["rank"],
            pair["n_nodes"],
            _rate(pair),
            pair["method"],
            pair["n_kernels"],
            pair["n_collectives"],
            pair["n_edges"],
            os.path.basename(pair["execution_trace"]),
            os.path.basename(pair["profiler_trace"]),
        )
        for pair in pairs
    ]
    yield from table_lines(_HEADS, rows, output.text_width(sys.stdout))
    yield ""
    yield from notes
    for name, count in written.items():
        noun = "event" if name == TIMELINE else "row"
        yield f"Wrote {os.path.join(args.output, name)} ({count_noun(count, noun)})"
    yield f"Next: {_next_command(pairs, args, written)}"


def _rate(pair: dict[str, Any]) -> str:
    """Cut, not rounded: 100% is all. The marks of steps alone are no success."""
    if not pair["n_operators"]:
        return "no operators"
    if pair["link_pct"] is None:
        return "nothing to link"
    return f"{10_000 * pair['n_linked'] // pair['n_linkable'] / 100:g}%"


def _damaged(trace: Trace) -> Iterator[str]:
    files = [row for row in trace.table("files").rows() if row["status"] == "damaged"]
    for row in files[:_MAX_DAMAGED]:
        yield f"note: {row['path']} {row['problem']}"
    if len(files) > _MAX_DAMAGED:
        yield f"note: {len(files) - _MAX_DAMAGED:,} more files are damaged"


def _notes(pairs: Sequence[dict[str, Any]], args: Namespace) -> Iterator[str]:
    from rankscope.analyze.link.reasons import sentence

    by_reason: dict[str, list[dict[str, Any]]] = {}
    for pair in pairs:
        if pair["why"]:
            by_reason.setdefault(pair["why"], []).append(pair)
    for why, affected in by_reason.items():
        yield f"note: {sentence(why, affected)}"
    full = [pair for pair in pairs if pair["n_operators"]]
    n_inflated, n_moved = (sum(pair[name] for pair in full) for name in ("n_inflated", "n_transplanted"))
    yield from durations_notes(args, n_inflated, n_moved)


def _next_command(pairs: Sequence[dict[str, Any]], args: Namespace, written: dict[str, int]) -> str:
    paths = " ".join(map(shlex.quote, args.paths))
    if not any(pair["n_operators"] for pair in pairs):
        return "rankscope explain L505"
    if not any(pair["n_linked"] for pair in pairs):
        return "rankscope explain L501"
    if not written:
        return f"rankscope link {paths}{durations_words(args)} -o linked/"
    return f"rankscope export {paths}{durations_words(args)} --to chakra -o et/"
