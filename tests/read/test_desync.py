from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope import pipeline
from rankscope.collect.desync.report import Group, GroupState, MemberState, Unreadable, report_lines
from rankscope.errors import BadFileError
from rankscope.model.finding import Report
from rankscope.model.tables import Table
from rankscope.read import desync, torch_logs
from rankscope.read.desync_text import DesyncText, parse_numbers, state_rows
from rankscope.read.files import Source, name_source
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

NOON_NS = 1_794_830_400_000_000_000
WORLD = Group("0", "default_pg", 4, (0, 1, 2, 3))

TORCH_LAGGING = """\
[rank2]:[E1116 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL()
[rank2]:[E1116 12:00:00.2 ProcessGroupNCCL.cpp:632] Rank 2
\t - [2] Timeout at collective: ALLREDUCE, #5
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [1] joined but didn't finish collective #4 (count from 1)
\t     [3] finished collective #4, but didn't join collective #5 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #4 started ranks:
\t     [1] started BROADCAST
\t   #4 finished ranks:
\t     [3] finished ALLREDUCE
\t   #5 started ranks:
\t     [0, 2] started ALLREDUCE
[9] started TALKING
"""
TORCH_ABSENT = """\
\t - [0] Timeout at collective: _ALLGATHER_BASE, #1
\t - To our best knowledge, ranks [1, 3] are the lagging ranks that caused this timeout. \
They never joined any collectives
"""


def member(rank: int, seq: int, op: str = "ALLREDUCE", finished: bool = False) -> MemberState:
    return MemberState(rank, seq, op, finished, seq if finished else seq - 1)


def report(states: Sequence[GroupState], rank: int = 0, time_ns: int = NOON_NS) -> str:
    return "".join(f"{line}\n" for line in report_lines(states, f"rank {rank} of 4 on host gpu-1", rank, time_ns))


STUCK = GroupState(WORLD, (member(0, 5), member(1, 4, finished=True), member(2, 5), member(3, 5)), (), ())


def write(folder: Path, text: str, name: str = "desync_0.txt") -> Source:
    path = folder / name
    path.write_text(text)
    named = name_source(Source(path, str(path), len(text)))
    assert named
    return replace(named, file_id=3)


def states_of(tables: Sequence[Table]) -> list[tuple[Any, ...]]:
    [table] = [table for table in tables if table.name == "desync_states"]
    return [
        (row["rank"], row["group_name"], row["member"], row["seq"], row["op"], row["state"]) for row in table.rows()
    ]


def rows_of(text: str) -> list[dict[str, Any]]:
    found = DesyncText(7)
    found.read(line.encode() for line in text.splitlines(keepends=True))
    return list(state_rows(found.reports))


def test_what_the_report_tells_is_read_back(tmp_path: Path) -> None:
    pair = Group("my group", 'the "pair"', 2, (3, 1))
    states = [
        GroupState(WORLD, (member(0, 5), member(1, 4, "BROADCAST", True)), (2,), (Unreadable(3, "odd (very)"),)),
        GroupState(pair, (member(1, 7), member(0, 7, finished=True)), (), ()),
    ]
    tables = list(desync.read(write(tmp_path, report(states))))
    assert states_of(tables) == [
        (0, "0", 0, 5, "ALLREDUCE", "started"),
        (0, "0", 1, 4, "BROADCAST", "finished"),
        (0, "0", 2, -1, "", "absent"),
        (0, "0", 3, -1, "", "unreadable"),
        (0, "my group", 3, 7, "ALLREDUCE", "finished"),
        (0, "my group", 1, 7, "ALLREDUCE", "started"),
    ]
    last = list(tables[0].rows())[-1]
    assert last["group_desc"] == 'the "pair"'
    assert last["members"] == "[3,1]"
    assert (last["group_rank"], last["time_ns"], last["origin"]) == (1, NOON_NS, "rankscope")
    [file] = tables[1].rows()
    assert (file["status"], file["rank"], file["host"]) == ("read", 0, "gpu-1")


def test_a_thousand_ranks_are_read_back(tmp_path: Path) -> None:
    world = Group("0", "default_pg", 1024, tuple(range(1024)))
    members = tuple(member(rank, 9 if rank == 513 else 10, finished=rank == 513) for rank in range(1024))
    states = states_of(list(desync.read(write(tmp_path, report([GroupState(world, members, (), ())])))))
    assert len(states) == 1024
    assert [state[2] for state in states if state[3] == 9] == [513]


def test_stacks_behind_the_report_are_no_states(tmp_path: Path) -> None:
    text = (
        report([STUCK]) + "rank 0 waits in ALLREDUCE #5 of group 0 for 12 s, called from:\n#0 all_reduce from a.py:3\n"
    )
    tables = list(desync.read(write(tmp_path, text)))
    assert len(states_of(tables)) == 4
    assert tables[1].text("status").tolist() == ["read"]


def test_a_second_report_in_the_file_counts_as_well(tmp_path: Path) -> None:
    later = replace(STUCK, members=(member(0, 6), member(1, 6), member(2, 6), member(3, 6)))
    text = report([STUCK]) + "rank 0 waits\n" + report([later], time_ns=NOON_NS + 10**10)
    [table, _] = desync.read(write(tmp_path, text))
    assert len(table) == 8
    assert set(table.array("time_ns").tolist()) == {NOON_NS, NOON_NS + 10**10}


@pytest.mark.parametrize("end", ["", "\n - [0] Tim"])
def test_a_report_without_its_end_is_damaged_but_used(end: str, tmp_path: Path) -> None:
    text = report([STUCK]).removesuffix("end of desync report\n").rstrip("\n") + end
    tables = list(desync.read(write(tmp_path, text)))
    assert tables[1].text("status").tolist() == ["damaged"]
    # A line without its end may say anything; what the rank itself says stands further up.
    assert [state[2] for state in states_of(tables)] == ([0, 1, 2, 3] if end else [0, 1])


@pytest.mark.parametrize("text", ["nothing of interest\n", "rankscope desync report, today\n", report([STUCK])[:90]])
def test_a_file_that_tells_nothing_is_a_clear_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        list(desync.read(write(tmp_path, text)))
    assert caught.value.hint


# torch's own text


def test_the_text_of_torch_is_read() -> None:
    states = [(row["rank"], row["member"], row["seq"], row["op"], row["state"]) for row in rows_of(TORCH_LAGGING)]
    assert states == [
        (2, 0, 5, "ALLREDUCE", "started"),
        (2, 1, 4, "BROADCAST", "started"),
        (2, 2, 5, "ALLREDUCE", "started"),
        (2, 3, 4, "ALLREDUCE", "finished"),
    ]
    assert {(row["origin"], row["group_name"], row["time_ns"]) for row in rows_of(TORCH_LAGGING)} == {("torch", "0", 7)}


def test_ranks_that_torch_says_never_joined() -> None:
    states = [(row["member"], row["seq"], row["op"], row["state"]) for row in rows_of(TORCH_ABSENT)]
    assert states == [(0, 1, "_ALLGATHER_BASE", "started"), (1, -1, "", "absent"), (3, -1, "", "absent")]


def test_lines_of_several_ranks_may_be_mixed() -> None:
    first = [f"[default0]:{line}\n" for line in TORCH_LAGGING.replace("[2]", "[0]").splitlines()[2:]]
    second = [f"[default2]:{line}\n" for line in TORCH_LAGGING.splitlines()[2:]]
    mixed = "".join(line for pair in zip(first, second, strict=True) for line in pair)
    by_rank = {rank: [row for row in rows_of(mixed) if row["rank"] == rank] for rank in (0, 2)}
    assert [len(rows) for rows in by_rank.values()] == [4, 4]


@pytest.mark.parametrize("prefix", ["[default0]:", "0: ", "[rank0]:"])
def test_what_launchers_put_before_each_line_is_left_out(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in ("before", *report([STUCK]).splitlines(), "after"))
    assert [row["member"] for row in rows_of(text)] == [0, 1, 2, 3]


def test_a_line_without_end_is_no_memory_hog(tmp_path: Path) -> None:
    source = write(tmp_path, "x" * (3 << 20) + "\n" + TORCH_ABSENT, "train.log")
    [table] = desync.in_output(source)
    assert len(table) == 3


def test_a_group_that_is_not_all_ranks_has_members_that_are_not_known() -> None:
    named = "[rank6]:[E1116] [PG ID 3 PG GUID 12(mesh_tp) Rank 2] Watchdog caught collective operation timeout\n"
    rows = rows_of(named + TORCH_LAGGING.partition("Rank 2\n")[2])
    assert len(rows) == 4
    assert {(row["rank"], row["group_name"], row["group_desc"]) for row in rows} == {(6, "12", "mesh_tp")}
    assert {(row["member"], row["members"]) for row in rows} == {(-1, "")}


def test_a_report_deep_in_the_output_of_a_job_is_found(tmp_path: Path) -> None:
    source = write(tmp_path, "step 1 loss 0.5\n" * 1000 + TORCH_LAGGING + "step 2\n", "train.log")
    assert not desync.sniff(source.head(), source.shown)
    assert torch_logs.sniff(source.head(), source.shown)
    tables = list(torch_logs.read(source))
    assert len(states_of(tables)) == 4
    assert [table.text("status").tolist() for table in tables if table.name == "files"] == [["read"]]


def test_output_without_a_report_gives_nothing(tmp_path: Path) -> None:
    assert list(desync.in_output(write(tmp_path, "step 1\n" * 1000, "train.log"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [("0, 1, 5", [0, 1, 5]), ("0-3, 7", [0, 1, 2, 3, 7]), ("", []), ("3-1", []), ("0-99999999999", []), ("a, 2", [2])],
)
def test_numbers(text: str, found: list[int]) -> None:
    assert parse_numbers(text) == found


LINES = [*report([STUCK]).splitlines(), *TORCH_LAGGING.splitlines(), *TORCH_ABSENT.splitlines(), "x"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(LINES), max_size=40))
def test_lines_in_any_order_raise_nothing(lines: list[str]) -> None:
    for row in rows_of("\n".join(lines)):
        assert row["group_rank"] >= 0


# The verdict


def diagnose(folder: Path) -> Report:
    return pipeline.diagnose(pipeline.load(folder))


def errors(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, finding.ranks) for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("name", ["desync_0.txt", "desync_0.txt.gz"])
def test_a_report_alone_is_judged(name: str, tmp_path: Path) -> None:
    content = report([STUCK]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    verdict = diagnose(tmp_path)
    assert errors(verdict) == [("rank-stuck", (1,))]
    assert verdict.capture.ranks == (0, 1, 2, 3)
    assert verdict.findings[0].collective
    assert verdict.findings[0].collective.seq == 5


def test_the_output_of_a_job_is_judged(tmp_path: Path) -> None:
    mismatched = TORCH_LAGGING.replace("[1] started BROADCAST", "[1] started ALLREDUCE").replace("#4", "#5")
    write(
        tmp_path, "step\n" * 2000 + mismatched.replace("[3] finished ALLREDUCE", "[3] started BROADCAST"), "train.log"
    )
    assert errors(diagnose(tmp_path)) == [("op-mismatch", (3,))]


def test_who_never_joined_is_named(tmp_path: Path) -> None:
    write(tmp_path, report([GroupState(WORLD, (member(0, 1), member(1, 1), member(3, 1)), (2,), ())]))
    assert errors(diagnose(tmp_path)) == [("rank-stuck", (2,))]


def test_the_newest_word_about_a_rank_counts(tmp_path: Path) -> None:
    """Rank 1 was late when rank 0 wrote its report, and had come when rank 2 did."""
    write(tmp_path, report([STUCK]), "desync_0.txt")
    now = replace(STUCK, members=(member(0, 5), member(1, 5), member(2, 5), member(3, 5)))
    write(tmp_path, report([now], 2), "desync_2.txt")
    assert [rule for rule, _ in errors(diagnose(tmp_path))] == ["collective-stalled"]


def test_a_send_does_not_undo_the_collective_before_it(tmp_path: Path) -> None:
    """Whom it is sent to is not in the report: only who waits in it can be named."""
    waiting = (member(0, 4, "SEND"), *(member(rank, 4, finished=True) for rank in (1, 2, 3)))
    write(tmp_path, report([GroupState(WORLD, waiting, (), ())]))
    assert errors(diagnose(tmp_path)) == [("p2p-unmatched", (0,))]


def test_a_rank_without_a_dump_is_known_by_what_its_peers_report(tmp_path: Path) -> None:
    simulation = simulate(JobSpec(Mesh(dp=4, tp=1), steps=3), Fault("stuck", rank=2, step=2))
    simulation.write(tmp_path)
    alone = diagnose(tmp_path).findings[0]
    assert (alone.rule, alone.ranks) == ("rank-stuck", (2,))
    assert alone.group
    assert alone.collective
    next(tmp_path.glob("*rank_2")).unlink()
    lost = diagnose(tmp_path).findings[0]
    assert (lost.rule, lost.ranks) == ("rank-lost", (2,))
    group = Group(alone.group.name, alone.group.desc, 4, tuple(alone.group.ranks))
    seq = alone.collective.seq
    members = tuple(member(rank, seq - (rank == 2), finished=rank == 2) for rank in range(4))
    write(tmp_path, report([GroupState(group, members, (), ())]))
    told = diagnose(tmp_path)
    assert errors(told) == [("rank-stuck", (2,))]
    assert not [finding for finding in told.findings if finding.rule in ("dump-missing", "ring-too-small")]


@pytest.mark.parametrize("seq", [0, 2])
def test_a_rank_that_died_before_it_told_the_store_is_lost(tmp_path: Path, seq: int) -> None:
    """What the store has of it is older than collectives that its peers have completed with it."""
    simulation = simulate(JobSpec(Mesh(dp=4, tp=1), steps=3), Fault("lost", rank=2, step=2))
    simulation.write(tmp_path)
    lost = diagnose(tmp_path).findings[0]
    assert (lost.rule, lost.ranks) == ("rank-lost", (2,))
    assert lost.group
    assert lost.collective
    group = Group(lost.group.name, lost.group.desc, 4, tuple(lost.group.ranks))
    states = tuple(
        member(rank, lost.collective.seq if rank != 2 else seq, finished=rank == 2)
        for rank in range(4)
        if rank != 2 or seq
    )
    write(tmp_path, report([GroupState(group, states, () if seq else (2,), ())]))
    assert errors(diagnose(tmp_path)) == [("rank-lost", (2,))]
