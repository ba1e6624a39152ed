"""The graph of a hang: ranks that behave alike are one node, the cause is marked, cycles are drawn as cycles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from typing import Any

from rankscope.model.finding import Capture, Finding, Report
from rankscope.model.tables import Table, Trace
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.render.page.wait_drawing import essential_edges
from rankscope.render.page.wait_graph import MAX_NODES, Graph, wait_graph
from rankscope.render.page.waits import waits_view

HOSTILE = "<img src=x onerror=alert(1)>"


def wait(match: int, waiting: Sequence[int], holder: int, why: str = "absent", **more: Any) -> dict[str, Any]:
    shared = {"group_id": 0, "seq": 5, "op": "all_reduce", "n_waiting": len(waiting), "since_ns": 10**18}
    return {**shared, "match_id": match, "waiting": str(list(waiting)), "holder": holder, "why": why, **more}


def trace_of(rows: Sequence[dict[str, Any]], desc: str = "dp", n_groups: int = 1) -> Trace:
    groups = [{"group_id": number, "name": str(number), "description": desc} for number in range(n_groups)]
    calls = [
        {"rank": rank, "match_id": row["match_id"], "group_id": row["group_id"], "op": row["op"], "site_id": 0}
        for row in rows
        for rank in ranks_in(row["waiting"])
    ]
    frame = {"frame_id": 0, "file": "train/loop.py", "line": 212, "function": "clip", "is_user": True}
    tables = {"waits": rows, "groups": groups, "collectives": calls, "frames": [frame]}
    return Trace(("traces",), {name: Table.from_rows(name, made) for name, made in tables.items()})


def ranks_in(listed: str) -> list[int]:
    return [int(rank) for rank in re.findall(r"\d+", listed)]


def graph_of(*rows: dict[str, Any], n_groups: int = 1) -> Graph:
    graph = wait_graph(trace_of(rows, n_groups=n_groups))
    assert graph is not None
    return graph


def edges(graph: Graph) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(graph.nodes[edge.waiting].ranks, graph.nodes[edge.holding].ranks) for edge in graph.edges}


def view_of(trace: Trace, *findings: Finding) -> View:
    report = Report("", Capture(("traces",), (), 0, {}), findings, ())
    return waits_view(Contents(trace, report, PageOptions()))


# What is drawn


def test_ranks_that_wait_alike_are_one_node_and_the_cause_stands_last() -> None:
    graph = graph_of(wait(0, [0, 1, 3], 2), wait(0, [0, 1, 3], 9), wait(1, [2], 9, is_cause=True))
    assert edges(graph) == {((0, 1, 3), (2,)), ((0, 1, 3), (9,)), ((2,), (9,))}
    by_ranks = dict(zip((node.ranks for node in graph.nodes), graph.layers, strict=True))
    assert by_ranks == {(9,): 0, (2,): 1, (0, 1, 3): 2}
    assert [node.ranks for node in graph.nodes if node.is_cause] == [(9,)]


def test_what_a_longer_way_says_is_not_drawn() -> None:
    graph = graph_of(wait(0, [0, 1, 3], 2), wait(0, [0, 1, 3], 9), wait(1, [2], 9))
    drawn = {(graph.nodes[edge.waiting].ranks, graph.nodes[edge.holding].ranks) for edge in essential_edges(graph)}
    assert drawn == {((0, 1, 3), (2,)), ((2,), (9,))}


def test_groups_of_one_sort_are_taken_together_when_there_are_many() -> None:
    # 64 groups of 4, in each of which three ranks wait for one that waits for the cause.
    rows = [
        wait(number, [4 * number + 1, 4 * number + 2, 4 * number + 3], 4 * number, group_id=number)
        for number in range(64)
    ]
    rows += [wait(64, [4 * number for number in range(64)], 999, group_id=64, is_cause=True)]
    graph = graph_of(*rows, n_groups=65)
    assert sorted(len(node.ranks) for node in graph.nodes) == [1, 64, 192]
    assert graph.is_coarse
    assert max(len(node.calls) for node in graph.nodes) == 64


def test_a_small_cycle_keeps_its_ranks_apart() -> None:
    graph = graph_of(*(wait(rank, [rank], (rank + 1) % 9, in_cycle=True) for rank in range(9)))
    assert edges(graph) == {((rank,), ((rank + 1) % 9,)) for rank in range(9)}
    assert all(edge.in_cycle for edge in graph.edges)


def test_a_large_cycle_is_one_node_that_waits_for_itself() -> None:
    trace = trace_of([wait(rank, [rank], (rank + 1) % 500, in_cycle=True) for rank in range(500)])
    graph = wait_graph(trace)
    assert graph is not None
    assert [len(node.ranks) for node in graph.nodes] == [500]
    assert [edge.in_cycle for edge in graph.inner] == [True]
    body = view_of(trace).body
    assert body.count('class="edge cycle"') == 1
    assert "these ranks wait for each other" in body


def test_a_long_chain_stays_small() -> None:
    graph = graph_of(*(wait(rank, [rank], rank + 1, is_cause=rank == 999) for rank in range(1000)))
    assert len(graph.nodes) <= MAX_NODES
    assert sum(len(node.ranks) for node in graph.nodes) == 1001
    assert [node.ranks for node in graph.nodes if node.is_cause] == [(1000,)]


def test_a_call_that_does_not_fit_is_waited_for_by_its_peers_only() -> None:
    graph = graph_of(wait(0, [0, 1, 2], 1, "mismatch", is_cause=True))
    assert edges(graph) == {((0, 2), (1,))}
    assert graph.inner == ()


# The view


def test_the_view_names_the_cause_by_word_and_links_its_finding() -> None:
    finding = Finding(
        code="H104", rule="rank-stuck", severity="error", certainty="certain", title="rank 9 is stuck", ranks=(9,)
    )
    body = view_of(trace_of([wait(0, [0, 1, 3], 9, is_cause=True)]), finding).body
    assert '<a href="#H104-1"><text' in body
    assert re.search(r'class="tag"[^>]*>cause<', body)
    assert "3 ranks are waiting, ultimately for rank 9." in body
    assert 'href="#map?group=0&amp;rank=0&amp;seq=5"' in body
    assert "loop.py:212 clip" in unescape(body)
    [listed] = re.findall(r"<tbody.*</tbody>", body)
    assert "rank 9</a> <b>cause</b>" in listed
    assert "has not joined" in listed


def test_nobody_waits_is_good_news_and_not_missing_data() -> None:
    trace = trace_of([wait(0, [0], 1)])
    trace.tables["waits"] = Table.from_rows("waits", [])
    view = view_of(trace)
    assert view.is_absent
    assert "No rank is waiting for another." in view.body
    assert "rankscope record" not in view.body
    lost = Finding(
        code="H101", rule="rank-lost", severity="error", certainty="likely", title="rank 3 left no dump", ranks=(3,)
    )
    assert "nothing hangs" not in view_of(trace, lost).body


def test_without_dumps_the_view_says_what_to_collect() -> None:
    view = view_of(Trace(("traces",)))
    assert view.is_absent
    assert "rankscope record" in view.body


def test_a_stall_is_nobodys_fault() -> None:
    body = view_of(trace_of([wait(0, [0, 1], -1, "stalled", is_cause=True)])).body
    assert "no rank is missing" in body
    assert "device or network" in body


def test_names_from_a_trace_are_text_and_short_in_the_drawing() -> None:
    trace = trace_of([wait(0, [0, 1], 2, op=HOSTILE)], desc="</svg><script>" + "x" * 10_000)
    body = view_of(trace).body
    assert "<img" not in body
    assert "<script" not in body
    drawn = re.sub(r"<title>.*?</title>", "", body[: body.index("<table")])
    assert len(drawn) < 6_000


def test_the_same_waits_give_the_same_page() -> None:
    rows = [wait(rank % 7, [rank], (rank * 5 + 1) % 60, group_id=rank % 3) for rank in range(60)]
    assert view_of(trace_of(rows, n_groups=3)).body == view_of(trace_of(rows, n_groups=3)).body
