"""failures_and_restarts.html: every compilation that failed or restarted, with its reason and location."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.finding import count_noun
from rankscope.model.tables import Array, Table, Trace
from rankscope.render.compile_tree.outputs import RankTree, Row, link_target, tree_records
from rankscope.render.html import Html, joined, markup, page, text

Key = tuple[int, int, str]  # log, rank and compile id


class _Trouble(NamedTuple):
    what: str
    reason: str
    place: str


def failures_page(trace: Trace, tree: RankTree) -> bytes:
    pages = {
        (output.row["file_id"], output.row["record"]): output
        for output in tree.outputs
        if output.how.endswith("metrics")
    }
    breaks, errors = _grouped(trace, "graph_breaks"), _grouped(trace, "compile_errors")
    rows = []
    compilations = trace.table("compilations")
    is_own = np.isin(_record_keys(compilations), _record_keys(tree_records(trace, tree)))
    for made in compilations.take(np.flatnonzero(is_own)).rows():
        key = (made["file_id"], made["rank"], made["compile_id"])
        shown = pages.get((made["file_id"], made["record"]))
        name = shown.label if shown else f"[{made['compile_id']}]"
        linked = markup('<a href="{}">{}</a>', link_target(shown), name) if shown else text(name)
        rows += [
            markup(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                linked,
                trouble.what,
                trouble.place,
                _reason(trouble.reason),
            )
            for trouble in (*_restarts(made, breaks.get(key, [])), *_failures(made, errors.get(key, [])))
        ]
    title = "Failures and restarts"
    said = count_noun(len(rows), "failure or restart", "failures and restarts") if rows else "No failures, no restarts."
    body = [
        markup('<p><a href="index.html">Back to the report</a></p>'),
        markup("<h1>{}</h1>", title),
        markup("<p>{}</p>", said),
    ]
    if rows:
        heads = joined(markup('<th scope="col">{}</th>', name) for name in ("Compile id", "What", "Source", "Reason"))
        body += [
            markup('<div class="wide"><table><thead><tr>{}</tr></thead><tbody>', heads),
            *rows,
            markup("</tbody></table></div>"),
        ]
    return page(title, body).encode("utf-8", "replace")


def _restarts(made: Row, breaks: list[Row]) -> Iterator[_Trouble]:
    """The break that attempt n logged is the reason for the restart after it."""
    for attempt, reason in enumerate(_reasons(made["restart_reasons"])):
        if reason.strip():
            causes = [row for row in breaks if row["attempt"] == attempt]
            site = _place(causes[0]["file"], causes[0]["line"], causes[0]["function"]) if causes else ""
            yield _Trouble("restart", reason, site)


def _failures(made: Row, errors: list[Row]) -> Iterator[_Trouble]:
    """A failing backend logs no line of the user's code; the error logged next to it does."""
    if not made["fail_type"]:
        return
    site = _place(made["fail_file"], made["fail_line"], "")
    located = [row for row in errors if row["file"]]
    if not site and located:
        site = _place(located[-1]["file"], located[-1]["line"], located[-1]["function"])
    yield _Trouble("failure", f"{made['fail_type']}: {made['fail_reason']}".rstrip(": "), site)


def _reason(reason: str) -> Html:
    """The first line says it; explanations and hints of a dozen lines would make the table unreadable."""
    first, _, rest = reason.strip().partition("\n")
    return markup("<details><summary>{}</summary><pre>{}</pre></details>", first, rest) if rest else text(first)


def _reasons(logged: str) -> list[str]:
    values: Any = json.loads(logged) if logged else []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _grouped(trace: Trace, table: str) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = {}
    for row in trace.table(table).rows():
        groups.setdefault((row["file_id"], row["rank"], row["compile_id"]), []).append(row)
    return groups


def _record_keys(table: Table) -> Array:
    """Log and record in one number."""
    return table.array("file_id").astype(np.int64) << 32 | table.array("record")


def _place(file: str, line: int, function: str) -> str:
    if not file:
        return ""
    return f"{file}{f':{line}' if line >= 0 else ''}{f' in {function}' if function else ''}"
