"""The map's cells from jobs made by hand: what each state means, who is late, and what the tables say."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import numpy as np
import pytest

from analyze.building import Setting, job
from rankscope.model.finding import SCHEMA_NAME, Capture, CollectiveRef, Finding, GroupRef, Report
from rankscope.model.tables import Table, Trace
from rankscope.render.page import rank_map_data as data
from rankscope.render.page.blocks import Blocks
from rankscope.render.page.contents import Contents, PageOptions
from rankscope.render.page.rank_map import rank_map_view
from rankscope.render.page.rank_map_calls import CallPool
from rankscope.render.page.rank_map_choices import Choice, choices, first_choice
from rankscope.render.page.rank_map_data import Matrix, level_ns
from rankscope.render.page.rank_map_profiler import profiled_matrix
from rankscope.render.page.rank_map_recorder import recorded_matrix
from render.page.test_blocks import unpacked

DONE = "dp:1 all_reduce [8] f32 done @loop.py:10"
WAITING = "dp:1 all_reduce [8] f32 waiting @loop.py:20"
ODD = "dp:1 all_gather [8]->[32] f32 waiting @loop.py:30"


def built(trace: Trace, number: int = 0) -> Matrix:
    pool = CallPool()
    numbers = pool.add_recorded(trace)
    return recorded_matrix(trace, choices(trace)[number], numbers, pool.stack_of)


def states(trace: Trace, number: int = 0) -> list[list[str]]:
    return [[data.STATES[state] for state in row] for row in built(trace, number).state.tolist()]


def contents(trace: Trace, *findings: Finding, **options: Any) -> Contents:
    report = Report(SCHEMA_NAME, Capture(("traces",), (0, 1), 2, {}), findings, ())
    return Contents(trace, report, PageOptions(**options), blocks=Blocks(options.get("is_served", False)))


def finding(group: str, desc: str, ranks: tuple[int, ...], culprit: int, seq: int, p2p: bool = False) -> Finding:
    where = GroupRef(group, desc, ranks)
    call = CollectiveRef(seq, "all_reduce", p2p)
    return Finding(
        code="H101",
        rule="rank-stuck",
        severity="error",
        certainty="certain",
        title="stuck",
        ranks=(culprit,),
        group=where,
        collective=call,
    )


def told(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", html))


def test_a_rank_that_never_came_and_those_that_wait_for_it() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE, WAITING], 2: [DONE]})
    assert states(trace) == [["done", "waiting"], ["done", "waiting"], ["done", "not joined"]]


def test_a_rank_without_a_dump() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE, WAITING]}, Setting(config={"1": [[0, 1, 2]]}))
    assert states(trace)[2] == ["no dump", "no dump"]


def test_what_the_ring_dropped_is_not_held_against_a_rank() -> None:
    trace = job({0: [DONE, WAITING], 1: [WAITING + " #2"]}, Setting(dropped={1: 1}))
    assert states(trace) == [["done", "waiting"], ["overwritten in its ring buffer", "waiting"]]


def test_the_odd_call_is_a_mismatch_and_those_of_most_are_not() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE, WAITING], 2: [DONE, ODD]})
    assert [row[1] for row in states(trace)] == ["waiting", "waiting", "mismatch: a different call than most"]


def test_the_odd_size_is_a_mismatch() -> None:
    trace = job({rank: [WAITING.replace("[8]", "[9]" if rank == 1 else "[8]")] for rank in range(3)})
    assert [row[0] for row in states(trace)] == ["waiting", "mismatch: a different call than most", "waiting"]


def test_where_two_disagree_nobody_is_right() -> None:
    trace = job({0: [WAITING], 1: [ODD]})
    assert [row[0] for row in states(trace)] == ["mismatch: a different call than most"] * 2


def test_a_call_from_another_line_shows_where_programs_parted() -> None:
    elsewhere = DONE.replace("loop.py:10", "loop.py:99")
    trace = job({0: [DONE, DONE], 1: [DONE, elsewhere], 2: [DONE, DONE]})
    assert states(trace) == [["done", "done"], ["done", "done, from a different line than most"], ["done", "done"]]
    without_majority = job({0: [DONE], 1: [elsewhere]})
    assert states(without_majority) == [["done"], ["done"]]


def test_aborted_and_failed_calls() -> None:
    trace = job({0: [WAITING.replace("waiting", "aborted")], 1: [WAITING.replace("waiting", "failed")]})
    assert states(trace) == [["aborted"], ["failed"]]


def test_lateness_is_behind_the_middle_of_the_group() -> None:
    moments = {0: 10, 1: 11, 2: 12, 3: 52}
    matrix = built(job({rank: [f"{DONE} +{moment} =60"] for rank, moment in moments.items()}))
    late_ms = [level_ns(level) / 1e6 for level in matrix.late[:, 0].tolist()]
    assert late_ms[:2] == [0, 0]
    assert late_ms[2] == pytest.approx(1, rel=0.1)
    assert late_ms[3] == pytest.approx(41, rel=0.1)


def test_what_has_not_joined_or_ended_has_no_time() -> None:
    matrix = built(job({0: [f"{DONE} +5 =25", WAITING], 1: [f"{DONE} +5 =25"]}))
    assert matrix.late[1, 1] == data.NEVER
    assert matrix.duration[0, 1] == data.NEVER
    assert level_ns(int(matrix.duration[0, 0])) / 1e6 == pytest.approx(20, rel=0.1)
    assert matrix.duration[1, 1] == 0


def test_groups_of_one_kind_share_a_map_where_no_rank_is_in_two() -> None:
    tp = {rank: [f"tp:{1 + rank // 2} all_reduce done"] for rank in range(4)}
    overlapping = {rank: [*calls, "tp:9 all_reduce done"] if rank in (1, 2) else calls for rank, calls in tp.items()}
    members = {"1": [[0, 1]], "2": [[2, 3]]}
    assert [choice.title for choice in choices(job(tp, Setting(config=members)))] == ["tp: 2 groups of 2"]
    found = choices(job(overlapping, Setting(config={**members, "9": [[1, 2]]})))
    assert [choice.title for choice in found] == ["tp: 2 groups of 2", 'group 9 "tp" (2 ranks)']


def test_a_group_with_fewer_collectives_takes_no_part_in_the_rest() -> None:
    programs = {0: ["tp:1 all_reduce done"] * 2, 1: ["tp:1 all_reduce done"] * 2, 2: ["tp:2 all_reduce done"]}
    trace = job({**programs, 3: programs[2]}, Setting(config={"1": [[0, 1]], "2": [[2, 3]]}))
    assert states(trace)[2:] == [["done", "not involved"]] * 2


def test_transfers_have_a_map_of_their_own() -> None:
    sends = ["pp:1 send>1 done", "pp:1 send>1 waiting"]
    trace = job({0: sends, 1: ["pp:1 recv<0 done"], 2: []}, Setting(config={"1": [[0, 1, 2]]}))
    assert [choice.kind for choice in choices(trace)] == ["transfers"]
    assert states(trace) == [["done", "waiting"], ["done", "not joined"], ["not involved"] * 2]


def test_the_first_map_is_that_of_the_first_finding_else_the_largest_with_something_wrong() -> None:
    programs = {rank: ["dp:0 all_reduce done", f"tp:{1 + rank // 2} all_reduce waiting"] for rank in range(4)}
    trace = job(programs, Setting(config={"0": [[0, 1, 2, 3]], "1": [[0, 1]], "2": [[2, 3]]}))
    found = choices(trace)
    named = finding("0", "dp", (0, 1, 2, 3), 2, 1)
    assert first_choice(found, [named]).groups[0].desc == "dp"
    assert first_choice(found, []).groups[0].desc == "tp"


def profiled(n_calls: int) -> Trace:
    """Two ranks, of which rank 1 joins 5 ms late and is not in the last match; rank 2 left no trace."""
    matches = [
        {"match_id": at, "group_key": 4, "op": "all_reduce", "seq": 10 + at, "dtype": "BFloat16", "n_bytes": 4096}
        | {"n_members": 3, "n_seen": 2, "start_ns": 1000 + at, "wait_ns": at, "last_rank": 1}
        for at in range(n_calls)
    ]
    calls = [
        {"rank": rank, "match_id": at, "group_key": 4, "start_ns": 0, "end_ns": 20_000_000}
        | {"lateness_ns": rank * 5_000_000}
        for at in range(n_calls)
        for rank in (0, 1)
        if (rank, at) != (1, n_calls - 1)
    ]
    group = {"group_key": 4, "name": "7", "desc": "dp", "ranks": "[0, 1, 2]", "size": 3}
    rows: dict[str, list[dict[str, Any]]] = {
        "comms": [{"rank": 0}],
        "comm_groups": [group],
        "comm_matches": matches,
        "comm_calls": calls,
        "profiles": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}],
    }
    return Trace(("traces",), {name: Table.from_rows(name, own) for name, own in rows.items()})


def test_profiler_traces_show_who_is_late() -> None:
    trace = profiled(3)
    (choice,) = choices(trace)
    pool = CallPool()
    matrix = profiled_matrix(trace, choice, pool.add_profiled(trace.table("comm_matches")))
    assert choice.title == 'group 7 "dp" (3 ranks), profiled'
    assert matrix.state.tolist() == [[data.DONE] * 3, [data.DONE, data.DONE, data.DROPPED], [data.NO_DUMP] * 3]
    assert matrix.seqs.tolist() == [[10, 11, 12]]
    assert matrix.late[0].tolist() == [data.ON_TIME] * 3
    assert level_ns(int(matrix.late[1, 0])) / 1e6 == pytest.approx(5, rel=0.1)
    assert level_ns(int(matrix.duration[0, 0])) / 1e6 == pytest.approx(20, rel=0.1)
    assert pool.calls[matrix.calls[0, 0]] == ("all_reduce", "4 kB", "BFloat16", -1)
    html, own = shown(trace)
    assert 'href="#map?group=p4&amp;rank=1&amp;seq=11"' in html  # the last that it joined
    meta, _ = unpacked(own.blocks.get("map-0"))
    assert isinstance(meta, dict)
    assert meta["states"][data.DROPPED] == "not in its trace"


def shown(trace: Trace, *findings: Finding, **options: Any) -> tuple[str, Contents]:
    own = contents(trace, *findings, **options)
    return rank_map_view(own).body, own


def test_the_tables_begin_with_the_culprit() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE, WAITING], 2: [DONE]}, Setting(hosts={0: "a", 1: "b", 2: "c"}))
    html, _ = shown(trace, finding("1", "dp", (0, 1, 2), 2, 2))
    ranks, calls = re.findall("<tbody.*?</tbody>", html)
    first = re.findall("<tr>.*?</tr>", ranks)[0]
    assert told(first).split() == ["2", "c", "not", "joined", "1", "1", "1", "loop.py:10", "in", "step"]
    assert 'href="#map?group=0&amp;rank=2&amp;seq=2"' in first
    assert "1 rank not joined" in told(re.findall("<tr>.*?</tr>", calls)[0])


def test_the_script_gets_the_cells_back() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE, ODD], 2: [DONE, WAITING]}, Setting(hosts={0: "a", 1: "b", 2: "b"}))
    _, own = shown(trace, finding("1", "dp", (0, 1, 2), 1, 2))
    meta, arrays = unpacked(own.blocks.get("map-0"))
    pool, _ = unpacked(own.blocks.get("map-calls"))
    assert isinstance(meta, dict)
    assert isinstance(pool, dict)
    calls = arrays["calls"].reshape(3, 2).copy()
    np.bitwise_xor.accumulate(calls, axis=0, out=calls)
    op, sizes, dtype, stack = pool["calls"][calls[1, 1]]
    assert (op, sizes, dtype) == ("all_gather", "[8] -> [32]", "f32")
    assert pool["frames"][pool["stacks"][stack][0]] == "loop.py:30 in step"
    assert arrays["ranks"].tolist() == [0, 1, 2]
    assert [meta["hosts"][host] for host in arrays["hosts"].tolist()] == ["a", "b", "b"]
    assert arrays["worst"].tolist()[1] == 0
    assert meta["marks"] == [{"rank": 1, "seq": 2, "anchor": "H101-1"}]
    assert pool["choices"] == [{"block": "map-0", "noun": "collective", "groups": ["0"]}]


def noisy(n_ranks: int, n_columns: int) -> Matrix:
    rng = np.random.default_rng(7)
    state = np.full((n_ranks, n_columns), data.DONE, np.uint8)
    state[3, 10], state[5, -1] = data.MISMATCH, data.NOT_JOINED
    level = rng.integers(1, 120, state.shape).astype(np.uint8)
    calls = np.zeros(state.shape, np.uint16)
    ranks = np.arange(n_ranks)
    return Matrix(ranks, np.zeros(n_ranks, int), np.arange(n_columns)[None, :], state, level, level, calls, None)


def test_thinning_keeps_what_is_bad_and_the_windows_around_findings() -> None:
    matrix = noisy(8, 2000)
    kept = data.kept_columns(matrix, np.array([900]))
    *_, last = data.thinnings(matrix, kept)
    thin = last.matrix
    assert last.n_merged > 1
    assert thin.n_columns < 400
    assert thin.n_merged is not None
    assert thin.n_merged.sum() == 2000
    whole = thin.seqs[0][thin.n_merged == 1].tolist()
    assert set(range(850, 951)) | set(range(1800, 2000)) <= set(whole)
    assert thin.state[5, -1] == data.NOT_JOINED
    assert (thin.state[3] == data.MISMATCH).sum() == 1


def test_a_page_without_room_is_thinned_and_says_so() -> None:
    rng = np.random.default_rng(5)
    programs = {rank: [f"{DONE} +{at * 100 + rng.integers(90)}" for at in range(600)] for rank in range(8)}
    trace = job(programs)
    (_, small), (_, large) = shown(trace, max_bytes=14_000), shown(trace)
    assert not large.remarks
    assert "colors it by the worst one" in small.remarks[0]
    assert len(small.blocks.get("map-0")) < len(large.blocks.get("map-0"))


def test_served_maps_are_made_when_they_are_asked_for() -> None:
    trace = job({0: [DONE], 1: [DONE]})
    html, own = shown(trace, is_served=True)
    assert not own.blocks.packed
    assert unpacked(own.blocks.get("map-0"))[1]["state"].tolist() == [data.DONE] * 2
    assert "<tbody" in html


def test_a_capture_without_collectives_says_what_to_record() -> None:
    view = rank_map_view(contents(Trace(("traces",))))
    assert view.is_absent
    assert "rankscope record" in view.body


def test_names_are_shown_as_text_and_cut() -> None:
    hostile = "<img/src=x/onerror=alert(1)>"
    trace = job({0: [f"{hostile}:1 all_reduce done"], 1: [f"{hostile}:1 all_reduce done"]})
    html, _ = shown(trace)
    assert "<img" not in html
    long = Choice(0, "collectives", (choices(trace)[0].groups[0]._replace(desc="x" * 10_000),), 1, 0)
    assert len(long.title) < 500


def test_the_same_capture_gives_the_same_bytes() -> None:
    trace = job({0: [DONE, WAITING], 1: [DONE]})
    (html, one), (again, other) = shown(trace), shown(trace)
    assert html == again
    assert one.blocks.packed == other.blocks.packed
