"""The same collective over ranks and sources is one match, whichever source or rank is missing."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from analyze.building import MS, START_NS, Setting, job
from rankscope.analyze.stages import table_makers
from rankscope.model.tables import Table, Trace

Truth = dict[tuple[str, int, int], int]  # by source, rank and row_id: the logical collective
SOURCES = ("flight_recorder", "kineto", "desync")


class MeshJob:
    """A random program over a random mesh, and what each source would write about it."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        shape = random.choice([(1, 2), (2, 2), (2, 3), (3, 2), (2, 4)])
        self.ranks = range(shape[0] * shape[1])
        self.is_named = random.random() < 0.5  # NCCL's calls name group and number, gloo's do not
        self.lists_members = random.random() < 0.7  # newer dumps do
        groups = {"0": ("world", tuple(self.ranks))}
        for row in range(shape[0]):
            groups[str(len(groups))] = ("tp", tuple(range(row * shape[1], (row + 1) * shape[1])))
        for column in range(shape[1]):
            groups[str(len(groups))] = ("dp", tuple(range(column, len(self.ranks), shape[1])))
        self.groups = {name: group for name, group in groups.items() if len(group[1]) > 1}
        self.calls: list[tuple[str, str, int, dict[int, int]]] = []  # group, op, number in it, times by rank
        count: dict[str, int] = defaultdict(int)
        for turn in range(random.randint(4, 12)):
            kind = random.choice(sorted({kind for kind, _ in self.groups.values()}))
            op = random.choice(("all_reduce", "all_gather", "broadcast"))
            for name, (own, members) in self.groups.items():
                if own == kind:
                    count[name] += 1
                    times = {rank: 10 + 20 * turn + random.randint(0, 5) for rank in members}
                    self.calls.append((name, op, count[name], times))

    def trace(self, kept: dict[str, set[int]]) -> tuple[Trace, Truth]:
        """Of each source only the files of these ranks."""
        truth: Truth = {}
        programs: dict[int, list[str]] = {rank: [] for rank in kept.get("flight_recorder", ())}
        comms: list[dict[str, Any]] = []
        states: dict[tuple[int, str], dict[str, Any]] = {}
        for number, (name, op, seq, times) in enumerate(self.calls):
            kind, members = self.groups[name]
            end = 18 + 20 * (min(times.values()) // 20)
            for rank, at in times.items():
                if rank in programs:
                    programs[rank].append(f"{kind}:{name} {op} [8] f32 done @loop.py:{number} +{at} ={end}")
                if rank in kept.get("kineto", ()):
                    truth["kineto", rank, len(comms)] = number
                    comms.append(self._profiled(rank, len(comms), (name, op, seq), (at, end)))
                if rank in kept.get("desync", ()):
                    members_text = "[" + ", ".join(map(str, members)) + "]"
                    states[rank, name] = {
                        "file_id": 40,
                        "member": rank,
                        "group_name": name,
                        "members": members_text,
                        "seq": seq,
                        "op": op.replace("_", "").upper(),
                        "state": "finished",
                        "time_ns": START_NS + end * MS,
                    }
        config = {name: [members] for name, (_, members) in self.groups.items()}
        silent = frozenset(() if self.lists_members else self.ranks)
        trace = job(programs, Setting(config=config, silent=silent)) if programs else Trace(("traces",), {})
        trace.makers = table_makers()
        if comms:
            trace.tables["ops"] = Table.from_rows("ops", [self._called(row) for row in comms])
            profiles = [{"file_id": 10 + rank, "rank": rank, "host": "node"} for rank in sorted(kept["kineto"])]
            trace.tables["comms"] = Table.from_rows("comms", comms)
            trace.tables["profiles"] = Table.from_rows("profiles", profiles)
        if states:
            trace.tables["desync_states"] = Table.from_rows("desync_states", list(states.values()))
        return trace, truth

    def _profiled(self, rank: int, number: int, call: tuple[str, str, int], span: tuple[int, int]) -> dict[str, Any]:
        name, op, seq = call
        row: dict[str, Any] = {
            "file_id": 10 + rank,
            "rank": rank,
            "comm_id": number,
            "op": op,
            "is_p2p": False,
            "dtype": "Float",
            "n_in": 8,
            "n_out": 8,
            "n_bytes": 32,
            "tid": int(name),
            "start_ns": START_NS + span[0] * MS + 1000,
            "duration_ns": (span[1] - span[0]) * MS - 2000,
        }
        if self.is_named:
            members = "[" + ", ".join(map(str, self.groups[name][1])) + "]"
            row |= {"group_name": name, "group_ranks": members, "seq": seq, "kernel_id": number, "stream": int(name)}
        return row

    def _called(self, row: dict[str, Any]) -> dict[str, Any]:
        """The operator that made a call, which ran a little before what gloo did for it."""
        names = {"all_reduce": "allreduce_", "all_gather": "_allgather_base_", "broadcast": "broadcast_"}
        return {
            **{name: row[name] for name in ("file_id", "rank")},
            "op_id": row["comm_id"],
            "name": f"c10d::{names[row['op']]}",
            "tid": 1000,
            "start_ns": row["start_ns"] - 1000,
            "duration_ns": 2000,
        }

    def true_number(self, source: str, row: dict[str, Any], truth: Truth) -> int:
        if source == "kineto":
            return truth[source, row["rank"], row["row_id"]]
        key = (row["group_name"], row["position"])
        return next(at for at, (name, _, seq, _) in enumerate(self.calls) if (name, seq) == key)


def check(made: MeshJob, kept: dict[str, set[int]]) -> float:
    """No wrong match, no logical collective twice; returns the share of calls that have a match."""
    trace, truth = made.trace(kept)
    names = ("source", "rank", "row_id", "group_name", "position", "match_id")
    rows = [dict(zip(names, row, strict=True)) for row in trace.sql(f"SELECT {', '.join(names)} FROM calls").rows()]
    by_match, by_truth = defaultdict(set), defaultdict(set)
    for row in rows:
        if row["match_id"] is not None:
            number = made.true_number(row["source"], row, truth)
            by_match[row["match_id"]].add(number)
            by_truth[number].add(row["match_id"])
    assert all(len(numbers) == 1 for numbers in by_match.values()), "calls of several collectives are one match"
    assert all(len(matches) == 1 for matches in by_truth.values()), "one collective is several matches"
    listed = trace.sql("SELECT match_id, n_ranks, sources FROM call_matches").rows()
    assert {row[0] for row in listed} == set(by_match)
    return sum(row["match_id"] is not None for row in rows) / max(len(rows), 1)


@pytest.mark.cases
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_over_random_meshes_with_any_subset_of_sources_and_ranks(seed: int) -> None:
    made, random = MeshJob(seed), Random(seed + 1000)
    everything = {source: set(made.ranks) for source in SOURCES}
    assert check(made, everything) == 1.0
    for source in SOURCES:
        share = check(made, {**everything, source: set()})
        assert share == 1.0 or (source == "flight_recorder" and not made.is_named)
    for _ in range(2):
        check(made, {source: {rank for rank in made.ranks if random.random() < 0.7} for source in SOURCES})


def test_a_duration_of_one_source_and_a_line_of_another_meet_in_one_row() -> None:
    made = MeshJob(1)
    trace, _ = made.trace({source: set(made.ranks) for source in SOURCES})
    rows = trace.sql("SELECT sources, site, duration_ns, n_ranks = n_members FROM call_matches").rows()
    assert {row[0].partition(",desync")[0] for row in rows} >= {"desync,flight_recorder,kineto"}
    assert all(site.startswith("loop.py:") and duration > 0 and whole for _, site, duration, whole in rows)


def test_a_number_in_a_group_that_was_made_again_is_of_no_generation_unless_a_source_tells() -> None:
    lines = ["dp:1 all_reduce [8] f32 done +10 =12 #1", "dp:1 all_reduce [8] f32 done +20 =22 #2"]
    again = ["dp:1 all_reduce [8] f32 done +90 =92 #1", "dp:1 all_reduce [8] f32 done +95 =97 #2"]
    trace = job({rank: [*lines, *again] for rank in range(2)})
    trace.makers = table_makers()
    state = {"file_id": 9, "member": 0, "group_name": "1", "members": "[0, 1]", "seq": 2, "op": "ALLREDUCE"}
    trace.tables["desync_states"] = Table.from_rows("desync_states", [{**state, "state": "finished", "time_ns": 1}])
    rows = trace.sql("SELECT source, match_id FROM calls WHERE position = 2 AND rank = 0 ORDER BY ALL").rows()
    assert [row[0] for row in rows] == ["desync", "flight_recorder", "flight_recorder"]
    assert rows[0][1] is None
    assert rows[1][1] != rows[2][1]
