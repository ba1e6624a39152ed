"""S201: a rank that is late again and again is named, and nobody who was merely held up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from analyze.building import MS, Setting, findings, found, job
from rankscope.analyze import run_rules
from rankscope.analyze.chance import WITHOUT_CORE
from rankscope.model.tables import Table, Trace

N_STEPS = 8
STEP_MS = 200


def arrivals(
    lateness_ms: Mapping[int, Sequence[int]], skew_ms: Mapping[int, int] | None = None, step_ms: int = STEP_MS
) -> dict[int, list[str]]:
    """One all_reduce per step; it ends for all when the last has come."""
    skew_ms = skew_ms or {}
    programs: dict[int, list[str]] = {rank: [] for rank in lateness_ms}
    for step in range(N_STEPS):
        end = step * step_ms + max(late[step] for late in lateness_ms.values()) + 1
        for rank, late in lateness_ms.items():
            skew = 10_000 + skew_ms.get(rank, 0)
            start = step * step_ms + late[step]
            programs[rank].append(f"dp:1 all_reduce done @loop.py:9 +{start + skew} ={end + skew}")
    return programs


def stragglers(trace: Trace) -> list[tuple[int, ...]]:
    return [finding.ranks for finding in findings(trace) if finding.rule == "straggler"]


PUNCTUAL = [0] * N_STEPS


def test_a_rank_that_is_always_late_is_named_with_its_cost() -> None:
    lateness = {0: PUNCTUAL, 1: PUNCTUAL, 2: [60] * N_STEPS, 3: PUNCTUAL}
    finding = found(job(arrivals(lateness)), "S201")
    assert (finding.ranks, finding.severity) == ((2,), "warning")
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("loop.py", 9)
    facts = finding.evidence.facts
    # What came before its first call is not recorded, so that one is nobody's fault.
    assert (facts["lateness_ns"], facts["n_late"], facts["n_collectives"]) == (60 * MS, N_STEPS - 1, N_STEPS)
    assert facts["lost_ns"] == 3 * 60 * (N_STEPS - 1) * MS  # three peers waited each time


def test_a_punctual_job_has_none() -> None:
    assert stragglers(job(arrivals(dict.fromkeys(range(4), PUNCTUAL)))) == []


def test_lateness_that_goes_round_is_nobodys_habit() -> None:
    lateness = {rank: [120 if step % 4 == rank else 0 for step in range(N_STEPS)] for rank in range(4)}
    assert stragglers(job(arrivals(lateness))) == []


def test_a_rank_that_is_late_once_is_no_straggler() -> None:
    lateness = {0: PUNCTUAL, 1: [500, *PUNCTUAL[1:]], 2: PUNCTUAL}
    assert stragglers(job(arrivals(lateness))) == []


def test_small_lateness_is_not_worth_a_word() -> None:
    lateness = {0: PUNCTUAL, 1: [8] * N_STEPS, 2: PUNCTUAL}
    assert stragglers(job(arrivals(lateness, step_ms=40))) == []
    # Nor is a larger one that is a small part of a long step.
    lateness = {0: PUNCTUAL, 1: [60] * N_STEPS, 2: PUNCTUAL}
    assert stragglers(job(arrivals(lateness, step_ms=2000))) == []


def test_a_straggler_is_found_across_skewed_hosts() -> None:
    # By its own clock rank 1 is 5 s late each time; in truth rank 3 is, by 150 ms.
    lateness = {0: PUNCTUAL, 1: PUNCTUAL, 2: PUNCTUAL, 3: [150] * N_STEPS}
    hosts = {0: "a", 1: "b", 2: "c", 3: "a"}
    trace = job(arrivals(lateness, skew_ms={1: 5000}), Setting(hosts=hosts))
    assert stragglers(trace) == [(3,)]


def test_a_skewed_clock_alone_makes_no_straggler() -> None:
    trace = job(arrivals(dict.fromkeys(range(3), PUNCTUAL), skew_ms={1: 5000}), Setting(hosts={0: "a", 1: "b", 2: "c"}))
    assert stragglers(trace) == []


def passed_on_lateness() -> dict[int, list[str]]:
    """Rank 0 is slow before the pair's collective, so its partner, rank 1, is late for the next group as well."""
    programs: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for step in range(N_STEPS):
        at = 10_000 + step * STEP_MS
        for rank in (0, 1):
            start = at + (80 if rank == 0 else 0)
            programs[rank].append(f"tp:1 all_reduce done @tp.py:1 +{start} ={at + 81}")
        for rank in (1, 2, 3):
            start = at + (82 if rank == 1 else 2)
            programs[rank].append(f"dp:2 all_reduce done @dp.py:1 +{start} ={at + 83}")
    return programs


def test_lateness_passed_on_through_another_group_is_not_blamed_on_who_passes_it() -> None:
    assert stragglers(job(passed_on_lateness())) == [(0,)]


def with_waits_for_a_core(trace: Trace, rank: int, n_threads: float) -> Trace:
    row = {"file_id": 0, "rank": rank, "time_ns": 1, "step": 0, "name": WITHOUT_CORE, "value": n_threads}
    trace.tables["metrics"] = Table.from_rows("metrics", [row])
    return trace


@pytest.mark.parametrize(("n_threads", "is_named"), [(0.0, True), (0.5, False)], ids=["free cores", "too few cores"])
def test_on_a_crowded_host_a_few_late_arrivals_are_no_habit(n_threads: float, is_named: bool) -> None:
    lateness = {**dict.fromkeys(range(8), PUNCTUAL), 2: [60] * N_STEPS}
    trace = with_waits_for_a_core(job(arrivals(lateness)), 2, n_threads)
    assert stragglers(trace) == ([(2,)] if is_named else [])


def test_in_a_recorded_job_of_two_the_luck_of_seven_steps_is_not_enough() -> None:
    trace = with_waits_for_a_core(job(arrivals({0: PUNCTUAL, 1: [60] * N_STEPS})), 1, 0.0)
    assert stragglers(trace) == []


def test_a_rank_that_is_always_the_last_of_many_is_named_on_a_crowded_host_too() -> None:
    lateness = {**dict.fromkeys(range(16), PUNCTUAL), 2: [60] * N_STEPS}
    assert stragglers(with_waits_for_a_core(job(arrivals(lateness)), 2, 0.5)) == [(2,)]


def test_a_group_of_two_has_stragglers_too() -> None:
    assert stragglers(job(arrivals({0: PUNCTUAL, 1: [60] * N_STEPS}))) == [(1,)]


def why_skipped(programs: Mapping[int, Sequence[str]], dropped: int = 0) -> str:
    trace = job(programs, Setting(dropped=dict.fromkeys(programs, dropped)))
    return next(check.why for check in run_rules(trace)[2] if check.rule == "straggler")


def steps(n_steps: int, n_layers: int = 20) -> dict[int, list[str]]:
    """Steps of many equal calls, and of two others at their end."""
    ending = ["dp:1 all_reduce [1] done @loop.py:30", "dp:1 barrier done @loop.py:31"]
    return dict.fromkeys(range(2), [*["dp:1 all_reduce done @loop.py:9"] * n_layers, *ending] * n_steps)


def test_a_ring_that_kept_a_few_steps_is_said_not_to_show_a_habit() -> None:
    assert why_skipped(steps(2, n_layers=998), dropped=500) == (
        "the ring buffer kept only 2,000 calls per rank, about 2 steps; 4 are needed: "
        "record with TORCH_FR_BUFFER_SIZE=10000"
    )
    assert "TORCH_FR_BUFFER_SIZE=2000" in why_skipped(steps(1), dropped=500)
    # A ring of many steps is not to blame where ranks only send and receive.
    transfers = {0: ["pp:1 send>1 done @loop.py:9"] * 9, 1: ["pp:1 recv<0 done @loop.py:12"] * 9}
    assert why_skipped(transfers, dropped=500).startswith("no set of ranks has more than 0 collectives")


def test_a_ring_that_kept_enough_steps_is_judged_whatever_it_dropped() -> None:
    assert why_skipped(steps(6), dropped=500) == ""
    # Nor does it matter that the job began with calls that it never made again.
    began = [f"dp:1 all_reduce [{size}] done @start.py:3" for size in range(1, 60)]
    assert why_skipped({rank: [*began, *program] for rank, program in steps(6).items()}, dropped=1) == ""


def test_a_job_of_a_few_calls_is_too_short_for_a_habit_whatever_the_ring() -> None:
    assert why_skipped({0: ["dp:1 all_reduce done"] * 3, 1: ["dp:1 all_reduce done"] * 3}) == (
        "no set of ranks has more than 3 collectives that completed on all its ranks; 4 are needed"
    )
    assert why_skipped(steps(1)) == ""  # a single step, but all that there was


def test_groups_that_were_made_again_show_one_habit() -> None:
    # Three steps in each of two generations, with a restart of three seconds between them.
    programs = {
        rank: [
            f"dp:{1 + step // 3} all_reduce done @loop.py:9 +{at + late} ={at + 61}"
            for step in range(6)
            for at in (10_000 + step * STEP_MS + step // 3 * 3000,)
        ]
        for rank, late in {0: 0, 1: 60, 2: 0}.items()
    }
    finding = found(job(programs), "S201")
    assert (finding.ranks, finding.evidence.facts["n_late"]) == ((1,), 5)


def test_a_rank_that_enqueued_ahead_is_not_blamed_for_the_older_call_that_held_it_up() -> None:
    programs: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for step in range(N_STEPS):
        at = 10_000 + step * STEP_MS
        for rank in (0, 1):
            programs[rank].append(f"tp:1 all_reduce done @tp.py:1 +{at + (80 if rank == 0 else 0)} ={at + 81}")
        for rank in (1, 2, 3):  # rank 1 enqueues one more call before it has to wait for rank 0
            programs[rank].append(f"dp:2 all_reduce done @dp.py:1 +{at + 2} ={at + 82}")
            programs[rank].append(f"dp:2 all_reduce done @dp.py:2 +{at + (84 if rank == 1 else 4)} ={at + 86}")
    assert stragglers(job(programs)) == [(0,)]


@pytest.mark.parametrize("is_held_up", [True, False])
def test_a_late_member_of_a_broadcast_counts_only_where_the_others_waited_for_it(is_held_up: bool) -> None:
    wait_ms = 60 if is_held_up else 0
    programs: dict[int, list[str]] = {}
    for rank in range(3):
        # Who is held up by rank 2 leaves with it; who is not stays ahead of it in all later calls.
        late = 60 if rank == 2 else 0
        each = [10_000 + step * (STEP_MS + wait_ms) + late for step in range(N_STEPS)]
        programs[rank] = []
        for at in each:
            programs[rank].append(f"dp:1 broadcast done @loop.py:9 +{at} ={at + 61 - late}")
            own = at + 61 - late if is_held_up else at + 61
            programs[rank].append(f"x:{7 + rank} all_reduce done @loop.py:12 +{own} ={own + 1}")
    assert stragglers(job(programs)) == ([(2,)] if is_held_up else [])


def test_a_few_delays_in_a_ring_that_dropped_calls_are_not_called_in_order() -> None:
    lateness = {0: [0] * N_STEPS, 1: [0, 60, 0, 0, 60, 0, 0, 0], 2: [0] * N_STEPS}
    assert why_skipped(arrivals(lateness), dropped=500) == (
        "the dumps show only 2 delayed collectives; 4 are needed: record with TORCH_FR_BUFFER_SIZE=2000"
    )
    assert why_skipped(arrivals(lateness)) == ""  # all that there was: two delays are no habit
