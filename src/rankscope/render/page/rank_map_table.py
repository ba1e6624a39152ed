"""The worst of a map as plain tables: for keyboards, screen readers, and browsers without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.model.finding import Finding, count_noun, format_duration
from rankscope.model.tables import MISSING, Array, Trace
from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.listing import Column, cell, row, table, without_empty
from rankscope.render.page import rank_map_data as data
from rankscope.render.page.contents import Contents, map_link
from rankscope.render.page.rank_map_calls import CallPool, clipped
from rankscope.render.page.rank_map_choices import Choice
from rankscope.render.page.rank_map_data import Matrix, level_ns

N_WORST = 20
_ROWS_AT_ONCE = 256
_SEVERITY = {"mismatch": 3, "missing": 2, "waiting": 1}
_RANK_COLUMNS = (
    Column("Rank", True),
    Column("Host"),
    Column("State"),
    Column("Last joined", True, "number of the newest call in its dump"),
    Column("Last completed", True),
    Column("Not joined", True, "calls of its group that it has certainly not joined"),
    Column("Max lateness", True, "behind the median rank of its group, with clocks aligned"),
    Column("Last call made at"),
)
_CALL_COLUMNS = (
    Column("Number", True),
    Column("Group"),
    Column("Operation"),
    Column("State"),
    Column("Joined", True),
    Column("First to last", True, "from the first rank that joined to the last, with clocks aligned"),
    Column("Last rank", True),
)


def worst_tables(contents: Contents, choice: Choice, matrix: Matrix, pool: CallPool, hosts: dict[int, str]) -> Html:
    worst = worst_rows(matrix, choice, contents.report.findings)[:N_WORST]
    cells = [_rank_cells(choice, matrix, pool, hosts, rank_row) for rank_row in worst.tolist()]
    columns, kept = _worth_showing(_RANK_COLUMNS, cells)
    ranks = table(contents.later, f"map-ranks-{choice.number}", columns, [*map(row, kept)], N_WORST)
    columns, kept = _worth_showing(_CALL_COLUMNS, _call_rows(contents.trace, choice))
    calls = table(contents.later, f"map-calls-{choice.number}", columns, [*map(row, kept)], N_WORST)
    n_calls = f"The {N_WORST} worst {choice.noun}s" if len(kept) == N_WORST else _all(len(kept), choice.noun)
    n_ranks = f"The {N_WORST} worst ranks" if len(worst) < len(matrix.ranks) else _all(len(worst), "rank")
    return markup("<h3>{}</h3>{}<h3>{}</h3>{}", n_ranks, ranks, n_calls, calls)


def _all(n: int, noun: str) -> str:
    return ("" if n == 1 else "All ") + count_noun(n, noun)


def _worth_showing(columns: Sequence[Column], rows: list[list[Html]]) -> tuple[list[Column], list[list[Html]]]:
    """The first column, whose numbers are links, and those of the others that say something."""
    others, cells = without_empty(columns[1:], [each[1:] for each in rows])
    filled = [column for column in range(len(others)) if any(each[column] != cell("") for each in cells)]
    kept = [[row[0], *(each[column] for column in filled)] for row, each in zip(rows, cells, strict=True)]
    return [columns[0], *(others[column] for column in filled)], kept


def worst_rows(matrix: Matrix, choice: Choice, findings: tuple[Finding, ...]) -> Array:
    """Those that findings name, then by the worst state, then by total lateness."""
    named = np.zeros(len(matrix.ranks), bool)
    for finding in findings:
        if finding.severity != "info" and (finding.group is None or choice.has(finding.group)):
            named |= np.isin(matrix.ranks, finding.ranks)
    n_absent = np.count_nonzero(matrix.state == data.NOT_JOINED, axis=1)
    return np.lexsort(
        (matrix.ranks, -_lateness(matrix), -n_absent, -matrix.state.max(1, initial=0).astype(int), ~named)
    )


def _lateness(matrix: Matrix) -> Array:
    """Per row the sum over all columns."""
    of_level = np.array([*map(level_ns, range(data.NEVER)), 0], np.float64)
    parts = range(0, len(matrix.ranks), _ROWS_AT_ONCE)
    sums = [of_level[matrix.late[start : start + _ROWS_AT_ONCE]].sum(1) for start in parts]
    return np.concatenate(sums) if sums else np.empty(0)


def _rank_cells(choice: Choice, matrix: Matrix, pool: CallPool, hosts: dict[int, str], row: int) -> list[Html]:
    state, late, rank = matrix.state[row], matrix.late[row], int(matrix.ranks[row])
    group = int(matrix.group_of_row[row])
    seqs = matrix.seqs[group if len(matrix.seqs) > 1 else 0]
    joined = np.flatnonzero(((state >= data.DONE) & (state <= data.FAILED)) | (state == data.MISMATCH))
    done, absent = (
        np.flatnonzero((state == data.DONE) | (state == data.OTHER_LINE)),
        np.flatnonzero(state == data.NOT_JOINED),
    )
    odd = np.flatnonzero(state == state.max(initial=0))
    worst = int(state.max(initial=0))
    late_ns = level_ns(int(late[late < data.NEVER].max(initial=0)))
    at = (
        absent[0]
        if len(absent)
        else odd[-1]
        if worst != data.DONE and len(odd)
        else joined[-1]
        if len(joined)
        else MISSING
    )
    seq = int(seqs[at]) if at != MISSING else None
    link = map_link(choice.key_of(choice.groups[group]), rank, seq, choice.noun == "transfer")
    site = _site(pool, int(matrix.calls[row, joined[-1]])) if len(joined) else ""
    return [
        cell(markup('<a href="{}">{}</a>', link, rank), rank),
        cell(text(clipped(hosts.get(rank, "")))),
        cell(text(state_words(choice)[worst])),
        _number(int(seqs[joined[-1]]) if len(joined) else MISSING),
        _number(int(seqs[done[-1]]) if len(done) else MISSING),
        cell(f"{len(absent):,}" if len(absent) else "", len(absent)),
        cell(text(format_duration(late_ns)) if late_ns else NOTHING, late_ns),
        cell(markup('<span class="place">{}</span>', site) if site else NOTHING),
    ]


def state_words(choice: Choice) -> list[str]:
    words = [*data.STATES]
    if choice.is_profiled:
        words[data.DROPPED], words[data.NO_DUMP] = "not in its trace", "no trace"
    return words


def _site(pool: CallPool, number: int) -> str:
    stack = pool.calls[number][3] if number != data.UNKNOWN_CALL else MISSING
    return pool.frames[pool.stacks[stack][0]] if stack != MISSING else ""


def _number(value: int) -> Html:
    return cell(f"{value}" if value != MISSING else "", value)


def _call_rows(trace: Trace, choice: Choice) -> list[list[Html]]:
    names = {group.key: f"{clipped(group.name)} {clipped(group.desc)}".strip() for group in choice.groups}
    rows = _profiled_calls(trace, choice) if choice.is_profiled else _recorded_calls(trace, choice)
    return [_call_cells(choice, names, each) for each in rows]


def _recorded_calls(trace: Trace, choice: Choice) -> list[dict[str, Any]]:
    matches = trace.table("matches")
    is_own = np.isin(matches.array("group_id"), [group.key for group in choice.groups])
    candidates = np.flatnonzero(is_own & (matches.array("is_p2p") == (choice.noun == "transfer")))
    spread = matches.array("last_created_ns")[candidates] - matches.array("first_created_ns")[candidates]
    severity = np.array([_SEVERITY.get(name, 0) for name in matches.text("state").values] or [0])
    badness = severity[matches.text("state").codes[candidates]]
    # Of calls that did not end well the oldest is nearest to the cause.
    age = np.where(badness > 0, matches.array("first_created_ns")[candidates], 0)
    order = np.lexsort((candidates, -spread, age, -badness))[:N_WORST]
    worst = [*matches.take(candidates[order]).rows()]
    return [
        {**each, "group": each["group_id"], "spread_ns": int(spread[position])}
        for each, position in zip(worst, order.tolist(), strict=True)
    ]


def _profiled_calls(trace: Trace, choice: Choice) -> list[dict[str, Any]]:
    matches = trace.table("comm_matches")
    is_own = np.isin(matches.array("group_key"), [group.key for group in choice.groups])
    candidates = np.flatnonzero(is_own & (matches.array("is_p2p") == (choice.noun == "transfer")))
    order = candidates[np.lexsort((candidates, -matches.array("wait_ns")[candidates]))][:N_WORST]
    return [
        {
            **each,
            "group": each["group_key"],
            "spread_ns": each["wait_ns"],
            "state": "done",
            "n_joined": each["n_seen"],
            "n_missing": 0,
        }
        for each in matches.take(order).rows()
    ]


def _call_cells(choice: Choice, names: dict[int, str], call: dict[str, Any]) -> list[Html]:
    group = next(group for group in choice.groups if group.key == call["group"])
    op, rank, is_p2p = clipped(call["op"]), None, choice.noun == "transfer"
    if is_p2p:
        rank = call.get("src", call["last_rank"])
        op = f"rank {call['src']} to rank {call['dst']}" if "src" in call else op
    state = f"{count_noun(call['n_missing'], 'rank')} not joined" if call["state"] == "missing" else call["state"]
    target = text(map_link(choice.key_of(group), rank, call["seq"], is_p2p))
    link = markup('<a href="{}">{}</a>', target, call["seq"]) if call["seq"] != MISSING else NOTHING
    spread = max(int(call["spread_ns"]), 0)
    return [
        cell(link, call["seq"]),
        cell(text(names[call["group"]])),
        cell(text(op)),
        cell(text(state)),
        cell(f"{call['n_joined']:,} of {call['n_members']:,}", call["n_joined"]),
        cell(text(format_duration(spread)) if spread else NOTHING, spread),
        _number(int(call["last_rank"])),
    ]
