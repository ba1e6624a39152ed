"""How a job ended: who ended first, who never came, who does not end. Victims are never blamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analyze.building import found, job, root_cause
from analyze.test_ended_well import recorded
from analyze.test_stack_rules import LOADING, SAVING, STALL, WAITING, Look, stacks_alone, with_stacks
from rankscope.analyze import run_rules
from rankscope.analyze.manifests import nodes_of, ranks_elsewhere
from rankscope.model.tables import Table, Trace

CALL = "dp:1 all_reduce @/job/train.py:40"
TIMED_OUT = "RuntimeError: [/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms"
CLOSED = "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
INIT = ("/venv/torch/distributed/distributed_c10d.py:1:init_process_group", "/job/train.py:12:join")
EXITING = ("/usr/lib/python3.11/threading.py:1590:_shutdown",)
FAILED = {"ending": "exception", "exit_code": 1}


def errors(trace: Trace) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.code, each.ranks) for each in run_rules(trace)[0] if each.severity == "error"]


def short(*about: dict[str, Any]) -> Trace:
    """Rank 1 made one call less than rank 0."""
    return recorded({0: [f"{CALL} done"] * 3, 1: [f"{CALL} done"] * 2}, *about)


@pytest.mark.parametrize(
    ("code", "title"),
    [
        (3, "rank 1 exited with code 3"),
        (137, "rank 1 was killed by SIGKILL"),
        (139, "rank 1 crashed with SIGSEGV"),
    ],
)
def test_a_rank_that_ended_on_its_own_is_named_with_how(code: int, title: str) -> None:
    trace = short({**FAILED, "rank_exit_code": 1}, {"ending": "", "exit_code": 1, "rank_exit_code": code})
    finding = found(with_stacks(trace, {0: [(9, CLOSED, WAITING)]}), "H116")
    assert (finding.ranks, finding.certainty) == ((1,), "certain")
    assert finding.title == title


def crashed() -> Trace:
    looks = {0: [(9, CLOSED, WAITING)], 1: [(8, "Fatal Python error: Segmentation fault", LOADING)]}
    return with_stacks(short(FAILED, {"ending": "", "exit_code": 1}), looks)


def test_a_crash_is_named_with_its_line() -> None:
    trace = crashed()
    assert errors(trace) == [("H116", (1,))]
    finding = found(trace, "H116")
    assert finding.location is not None
    assert finding.location.line == 31
    assert finding.peer_location is not None
    assert finding.peer_location.line == 40  # where the victims waited


def test_what_the_launcher_ended_is_no_culprit() -> None:
    about = {"ending": "signal", "exit_code": 1, "rank_exit_code": 143}
    looks = {0: [(9, TIMED_OUT, WAITING)], 1: [(10, "SIGTERM", LOADING)]}
    assert not any(code == "H116" for code, _ in errors(with_stacks(short(FAILED, about), looks)))


def not_joined() -> Trace:
    timed_out = "DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients joined."
    return stacks_alone({0: [(9, timed_out, INIT)], 1: [(10, "SIGTERM", LOADING)]})


def test_who_waits_for_init_is_a_victim() -> None:
    trace = not_joined()
    assert errors(trace) == [("H117", (1,))]
    assert found(trace, "H117").location is not None


def test_a_time_out_alone_blames_nobody() -> None:
    trace = stacks_alone({rank: [(9, TIMED_OUT, WAITING)] for rank in range(3)})
    assert errors(trace) == []


def test_a_download_that_times_out_is_the_ranks_own_failure() -> None:
    trace = stacks_alone({0: [(9, "ReadTimeout: HTTPSConnectionPool: Read timed out.", LOADING)]})
    assert errors(trace) == [("H113", (0,))]


def kept_by_a_thread() -> Trace:
    reason = "the interpreter has not ended for 300 s: a non-daemon thread is still running"
    return stacks_alone({1: [(300, reason, EXITING)]})


def test_a_thread_that_keeps_the_interpreter_is_named() -> None:
    finding = found(kept_by_a_thread(), "H118")
    assert finding.ranks == (1,)
    assert "which is in forward (train.py:50)" in finding.title


def test_a_process_that_does_not_end_after_its_groups_is_named() -> None:
    reason = "the process has not ended for 300 s since destroy_process_group"
    finding = found(stacks_alone({1: [(300, reason, SAVING)]}), "H118")
    assert finding.title == "rank 1 does not exit after destroy_process_group: it is in save (save.py:9)"


def left_early() -> Trace:
    return with_stacks(short(FAILED, {"exit_code": 1, "n_steps": 9}), {0: [(9, CLOSED, WAITING)]})


def test_a_rank_that_ended_by_itself_while_others_waited_left_early() -> None:
    trace = left_early()
    assert errors(trace) == [("H119", (1,))]
    assert "after 9 steps" in found(trace, "H119").title


def test_a_failed_job_is_never_fine() -> None:
    trace = recorded({0: [f"{CALL} done"], 1: [f"{CALL} done"]}, {"exit_code": 7}, {"exit_code": 7})
    assert errors(trace) == [("H120", ())]
    assert "exit code 7" in root_cause(trace).title


def late_joiner(victims_reason: str = TIMED_OUT) -> Trace:
    trace = job({0: [f"{CALL} done"], 1: [f"{CALL} done"]})
    calls = trace.table("collectives")
    late = [row if row["rank"] == 0 else {**row, "created_ns": row["created_ns"] + 20 * 10**9} for row in calls.rows()]
    trace = Trace(trace.paths, {**trace.tables, "collectives": Table.from_rows("collectives", late)})
    return with_stacks(trace, {0: [(5, victims_reason, WAITING)], 1: [(21, CLOSED, WAITING)]})


def test_who_came_after_the_time_out_is_the_cause() -> None:
    assert [code for code, ranks in errors(late_joiner()) if ranks == (1,)] == ["H121"]


def test_who_comes_after_a_connection_broke_is_a_victim_too() -> None:
    """A third rank is gone: the one that calls last did not make the others give up."""
    assert all(code != "H121" for code, _ in errors(late_joiner(CLOSED)))


def test_ranks_of_other_nodes_are_elsewhere() -> None:
    told = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    about = {"environment": json.dumps(told), "world_size": 4, "host": "a"}
    trace = recorded({0: [CALL], 1: [CALL]}, {**about, "local_rank": 0}, {**about, "local_rank": 1})
    assert [(node.ranks, node.is_here) for node in nodes_of(trace)] == [((0, 1), True), ((2, 3), False)]
    assert ranks_elsewhere(trace) == {2, 3}


def test_the_verdict_is_that_of_the_stall_and_names_the_other_threads() -> None:
    looks: dict[int, list[Look]] = {0: [(300, STALL, WAITING)], 1: [(300, STALL, LOADING), (330, CLOSED, SAVING)]}
    trace = with_stacks(job({0: [f"{CALL} done", CALL], 1: [f"{CALL} done"]}), looks)
    cause = root_cause(trace)
    assert (cause.code, cause.ranks, cause.location and cause.location.line) == ("H105", (1,), 31)
    assert "thread (unnamed) of rank 1 is in forward (train.py:50)" in cause.evidence.certain
