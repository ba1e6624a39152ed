"""The same collective over ranks and sources is one match, whichever source or rank is missing."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import Any, NamedTuple

import pytest

from analyze.building import MS, START_NS, Setting, job
from rankscope.analyze.stages import table_makers
from rankscope.model.tables import Table, Trace

Truth = dict[tuple[str, int, int], int]  # by source, rank and row: the logical call
SOURCES = ("flight_recorder", "kineto", "desync")
KINDS = ("world", "tp", "dp")
CALLER = 1000  # the thread that makes all calls


class Made(NamedTuple):
    """A logical call: what really happened."""

    group: str
    generation: int
    op: str
    seq: int
    times: dict[int, int]  # by rank

    @property
    def is_transfer(self) -> bool:
        return self.op == "transfer"

    def op_of(self, rank: int) -> str:
        return ("send" if rank == next(iter(self.times)) else "recv") if self.is_transfer else self.op

    def peer_of(self, rank: int) -> int | None:
        return next(other for other in self.times if other != rank) if self.is_transfer else None


class MeshJob:
    """A random program over a random mesh, and what each source would write about it."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        shape = random.choice([(1, 2), (2, 2), (2, 3), (3, 2), (2, 4)])
        self.ranks = range(shape[0] * shape[1])
        self.is_named = random.random() < 0.5  # NCCL's calls name group and number, gloo's do not
        self.lists_members = random.random() < 0.7  # newer dumps do
        self.numbers_transfers = random.random() < 0.7  # newer profilers do
        self.n_generations = random.choice((1, 1, 2))
        groups = {"0": ("world", tuple(self.ranks))}
        for row in range(shape[0]):
            groups[str(len(groups))] = ("tp", tuple(range(row * shape[1], (row + 1) * shape[1])))
        for column in range(shape[1]):
            groups[str(len(groups))] = ("dp", tuple(range(column, len(self.ranks), shape[1])))
        self.groups = {name: group for name, group in groups.items() if len(group[1]) > 1}
        self.calls: list[Made] = []
        turn = 0
        for generation in range(self.n_generations):
            count: dict[str, int] = defaultdict(int)
            drawn = [
                (random.choice(KINDS), random.choice(("all_reduce", "all_gather", "broadcast", "transfer")))
                for _ in range(random.randint(4, 12))
            ]
            # Whoever makes a group uses it: a generation that nobody used leaves no trace.
            for called in [*((kind, "all_reduce") for kind in KINDS), *drawn]:
                self._make(random, turn, generation, called, count)
                turn += 1

    def _make(self, random: Random, turn: int, generation: int, called: tuple[str, str], count: dict[str, int]) -> None:
        """One call in all groups of one kind."""
        kind, op = called
        for name, (own, members) in self.groups.items():
            if own == kind:
                taking_part = random.sample(members, 2) if op == "transfer" else members
                count[name] += op != "transfer"
                times = {rank: 10 + 20 * turn + random.randint(0, 5) for rank in taking_part}
                self.calls.append(Made(name, generation, op, count[name], times))

    def trace(self, kept: dict[str, set[int]]) -> tuple[Trace, Truth]:
        """Of each source only the files of these ranks."""
        truth: Truth = {}
        programs: dict[int, list[str]] = {rank: [] for rank in kept.get("flight_recorder", ())}
        comms: list[dict[str, Any]] = []
        states: dict[tuple[int, str], dict[str, Any]] = {}
        for number, made in enumerate(self.calls):
            end = 18 + 20 * (min(made.times.values()) // 20)
            for rank, at in made.times.items():
                if rank in programs:
                    truth["flight_recorder", rank, len(programs[rank])] = number
                    programs[rank].append(self._recorded(number, rank, end))
                if rank in kept.get("kineto", ()):
                    truth["kineto", rank, len(comms)] = number
                    comms.append(self._profiled(rank, len(comms), made, (at, end)))
                if rank in kept.get("desync", ()) and not made.is_transfer:
                    truth["desync", rank, int(made.group)] = number
                    states[rank, made.group] = self._reported(rank, made, end)
        config = {name: [members] for name, (_, members) in self.groups.items()}
        silent = frozenset(() if self.lists_members else self.ranks)
        trace = job(programs, Setting(config=config, silent=silent)) if programs else Trace(("traces",), {})
        trace.makers = table_makers()
        if comms:
            trace.tables["ops"] = Table.from_rows("ops", [self._called(row, truth) for row in comms])
            profiles = [{"file_id": 10 + rank, "rank": rank, "host": "node"} for rank in sorted(kept["kineto"])]
            trace.tables["comms"] = Table.from_rows("comms", comms)
            trace.tables["profiles"] = Table.from_rows("profiles", profiles)
        if states:
            trace.tables["desync_states"] = Table.from_rows("desync_states", list(states.values()))
        return trace, truth

    def _recorded(self, number: int, rank: int, end: int) -> str:
        made = self.calls[number]
        kind, members = self.groups[made.group]
        peer = made.peer_of(rank)
        op = made.op if peer is None else f"{'send>' if made.op_of(rank) == 'send' else 'recv<'}{members.index(peer)}"
        call = f"{kind}:{made.group} {op} [8] f32 done @loop.py:{number}"
        return f"{call} +{made.times[rank]} ={end} #{made.seq} ^{100 * made.generation + int(made.group)}"

    def _reported(self, rank: int, made: Made, end: int) -> dict[str, Any]:
        members = "[" + ", ".join(map(str, self.groups[made.group][1])) + "]"
        names = {"file_id": 40, "member": rank, "group_name": made.group, "members": members}
        state = {"op": made.op.replace("_", "").upper(), "state": "finished", "time_ns": START_NS + end * MS}
        return {**names, **state, "seq": made.seq}

    def _profiled(self, rank: int, number: int, made: Made, span: tuple[int, int]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "file_id": 10 + rank,
            "rank": rank,
            "comm_id": number,
            "op": made.op_of(rank),
            "is_p2p": made.is_transfer,
            "dtype": "Float",
            "n_in": 8,
            "n_out": 8,
            "n_bytes": 32,
            "tid": CALLER if made.is_transfer else int(made.group),
            "start_ns": START_NS + span[0] * MS + 1000,
            "duration_ns": (span[1] - span[0]) * MS - 2000,
        }
        if self.is_named:
            members = "[" + ", ".join(map(str, self.groups[made.group][1])) + "]"
            row |= {"group_name": made.group, "group_ranks": members, "kernel_id": number, "stream": int(made.group)}
            row |= {"dst" if row["op"] == "send" else "src": made.peer_of(rank)} if made.is_transfer else {}
            row |= {} if made.is_transfer else {"seq": made.seq}
            row |= {"seq": self._n_transfers(rank, made)} if made.is_transfer and self.numbers_transfers else {}
        return row

    def _n_transfers(self, rank: int, last: Made) -> int:
        """Each process counts its own, in each group."""
        before = self.calls[: self.calls.index(last) + 1]
        same = [made for made in before if (made.group, made.generation) == (last.group, last.generation)]
        return sum(made.is_transfer and rank in made.times for made in same)

    def _called(self, row: dict[str, Any], truth: Truth) -> dict[str, Any]:
        """The operator that made a call, which ran a little before what gloo did for it."""
        names = {"all_reduce": "allreduce_", "all_gather": "_allgather_base_", "broadcast": "broadcast_"}
        made = self.calls[truth["kineto", row["rank"], row["comm_id"]]]
        peer = made.peer_of(row["rank"])
        place = "" if peer is None else self.groups[made.group][1].index(peer)
        return {
            **{name: row[name] for name in ("file_id", "rank")},
            "op_id": row["comm_id"],
            "name": f"c10d::{names.get(row['op'], row['op'])}",
            "tid": CALLER,
            "start_ns": row["start_ns"] - 1000,
            "duration_ns": row["duration_ns"] if row["is_p2p"] else 2000,
            "concrete_inputs": f'["", "", "{place}", "0"]',
        }

    def true_number(self, row: dict[str, Any], truth: Truth) -> int:
        names = {"flight_recorder": "row_id", "kineto": "row_id", "desync": "group_name"}
        return truth[row["source"], row["rank"], int(row[names[row["source"]]])]


def check(made: MeshJob, kept: dict[str, set[int]]) -> float:
    """Nothing said of a call is wrong, and no logical call is there twice; the share of calls that have a match."""
    trace, truth = made.trace(kept)
    names = ("source", "rank", "row_id", "op", "group_name", "group_ranks", "generation", "peer", "match_id")
    rows = [dict(zip(names, row, strict=True)) for row in trace.sql(f"SELECT {', '.join(names)} FROM calls").rows()]
    by_match, by_truth = defaultdict(set), defaultdict(set)
    for row in rows:
        number = made.true_number(row, truth)
        call = made.calls[number]
        whole = list(made.groups[call.group][1])
        assert row["group_name"] in (None, call.group), row
        users = sorted(kept.get("flight_recorder", ()))
        # That there is another rank nobody tells where the last ones left no dump, and dumps list no members.
        may_guess = not made.lists_members and users == list(range(len(users)))
        used = [rank for rank in whole if rank in users]
        assert row["group_ranks"] is None or json.loads(row["group_ranks"]) in (
            whole,
            *([used] if may_guess else []),
        ), row
        # Of a group that was made again a part of the dumps shows one generation more or less.
        assert row["generation"] in (None, call.generation) or len(users) < len(made.ranks), row
        if row["source"] != "desync":
            assert row["op"] == call.op_of(row["rank"]), row
            assert row["peer"] in (None, call.peer_of(row["rank"])), row
        if row["match_id"] is not None:
            by_match[row["match_id"]].add(number)
            by_truth[number].add(row["match_id"])
    assert all(len(numbers) == 1 for numbers in by_match.values()), "calls of several collectives are one match"
    for number, matches in by_truth.items():  # transfers without a number are not found in another source
        is_alone = made.calls[number].is_transfer and made.is_named and not made.numbers_transfers
        assert len(matches) == 1 or is_alone, "one call is several matches"
    listed = trace.sql("SELECT match_id, n_ranks, sources FROM call_matches").rows()
    assert {row[0] for row in listed} == set(by_match)
    return sum(row["match_id"] is not None for row in rows) / max(len(rows), 1)


@pytest.mark.cases
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_over_random_meshes_with_any_subset_of_sources_and_ranks(seed: int) -> None:
    made, random = MeshJob(seed), Random(seed + 1000)
    everything = {source: set(made.ranks) for source in SOURCES}
    assert check(made, everything) == 1.0 or made.n_generations > 1  # desync reports name no generation
    for source in SOURCES:
        share = check(made, {**everything, source: set()})
        assert share == 1.0 or (source == "flight_recorder" and not made.is_named) or made.n_generations > 1
    for _ in range(2):
        check(made, {source: {rank for rank in made.ranks if random.random() < 0.7} for source in SOURCES})


@pytest.mark.parametrize(
    ("seed", "recorded", "profiled", "reported", "what"),
    [
        (
            10,
            {0, 2, 5, 6},
            {1, 2, 3, 4, 7},
            {0, 1},
            "what profilers matched on other ranks is the recorded call",
        ),
        (
            63,
            {0, 1, 5},
            {1, 2, 3, 4},
            {0, 2, 5},
            "of which generation a number is, a rank without dump cannot tell",
        ),
        (1, {0, 1, 3}, {1, 2, 3}, {0, 1, 3}, "places in a group of which a member left no dump name no peer"),
    ],
)
def test_defects_that_other_subsets_showed(
    seed: int, recorded: set[int], profiled: set[int], reported: set[int], what: str
) -> None:
    check(MeshJob(seed), {"flight_recorder": recorded, "kineto": profiled, "desync": reported})


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
