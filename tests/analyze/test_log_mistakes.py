"""The mistakes that give a wrong rank from a log, each of them not made; and what a careful reader sees besides."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyze.log_texts import closed, failed, traceback
from analyze.test_log_verdicts import findings, only
from rankscope.read import job_log_scan
from rankscope.simulate.job_log import LogJob, text_of


def stamp(rank: int, clock: str) -> str:
    return f"[rank{rank}]:[E1118 {clock}.000000000 ProcessGroupNCCL.cpp:632] "


def timed_out(rank: int, clock: str = "10:10:00", group: str = "0(default_pg)", **work: object) -> str:
    """Line A and line B of a rank's watchdog; its own [Rank 0] is frozen, as it is in torch."""
    call = {"seq": 17, "op": "ALLREDUCE", "numel": 8, "timeout": 600_000, "ran": 600_020, "enqueued": 17, **work}
    done = (
        f"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call['seq']}, OpType={call['op']}, "
        f"NumelIn={call['numel']}, NumelOut={call['numel']}, Timeout(ms)={call['timeout']}) ran for {call['ran']} "
        "milliseconds before timing out."
    )
    status = (
        f"[PG ID 1 PG GUID {group} Rank {rank}]  failure detected by watchdog at work sequence id: {call['seq']} PG "
        f"status: last enqueued work: {call['enqueued']}, last completed work: {int(str(call['seq'])) - 1}"
    )
    return f"{stamp(rank, clock)}{done}\n{stamp(rank, clock)}{status}\n"


def told_to_dump(rank: int, by: int, enqueued: int, clock: str = "10:10:01") -> str:
    where = f"{stamp(rank, clock)}[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    return (
        f"{where}Observed flight recorder dump signal from another rank via TCPStore.\n"
        f"{where}Received a dump signal due to a collective timeout from  rank {by} and we will try our best to dump "
        f"the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most\n"
    )


def test_1_a_rank_inside_a_group_is_no_global_rank(tmp_path: Path) -> None:
    """All lines say [Rank 0]; the prefix says who it is."""
    finding = only(tmp_path, timed_out(0) + timed_out(1) + timed_out(3) + told_to_dump(2, 3, 16))
    assert (finding.code, finding.ranks, finding.certainty) == ("H134", (2,), "likely")


def test_2_counters_of_the_default_group_say_nothing_about_another(tmp_path: Path) -> None:
    text = timed_out(0, group="9(tp)") + timed_out(1, group="9(tp)") + told_to_dump(2, 1, 4) + told_to_dump(3, 1, 4)
    finding = only(tmp_path, text)
    assert (finding.code, finding.ranks) == ("H138", ())


def test_3_the_rank_that_a_dump_signal_comes_from_is_a_victim(tmp_path: Path) -> None:
    finding = only(tmp_path, told_to_dump(2, 3, 16) + timed_out(3) + timed_out(0) + timed_out(1))
    assert finding.ranks == (2,)


def test_4_groups_are_ordered_by_when_their_calls_began(tmp_path: Path) -> None:
    """The group with the short timeout speaks first, but its call began later: it waits for the other one."""
    late = "".join(timed_out(rank, "10:05:00", "9(tp)", timeout=60_000, ran=60_010) for rank in (0, 1))
    early = "".join(timed_out(rank, "10:10:00", seq=40, enqueued=40) for rank in (0, 1, 2))
    finding = only(tmp_path, late + early + told_to_dump(3, 1, 39))
    assert (finding.code, finding.ranks) == ("H134", (3,))
    assert finding.collective is not None
    assert finding.collective.seq == 40


def test_5_torchrun_s_root_cause_may_be_a_victim(tmp_path: Path) -> None:
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n-----\nFailures:\n"
        "  <NO_OTHER_FAILURES>\n-----\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-18_10:00:00\n"
        "  host      : gpu-3\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 41)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: x\n=====\n"
    )
    finding = only(tmp_path, closed(0) + traceback(2, "KeyError: 'a'") + closed(1) + table)
    assert (finding.code, finding.ranks) == ("H130", (2,))
    assert any("root cause" in note for note in finding.evidence.notes)


def test_6_a_rank_that_did_not_come_may_be_inside_the_call(tmp_path: Path) -> None:
    finding = only(tmp_path, timed_out(0) + timed_out(1) + timed_out(3) + told_to_dump(2, 3, 16))
    assert finding.certainty != "certain"
    assert finding.action == "collect-more"


def test_7_lines_that_ray_merged_accuse_nobody(tmp_path: Path) -> None:
    merged = timed_out(5).splitlines()
    text = "".join(f"(Train pid=7, ip=10.0.0.1) {line} [repeated 6x across cluster]\n" for line in merged)
    finding = only(tmp_path, text + "(Train pid=8, ip=10.0.0.2) [rank7]: step 3\n")
    assert (finding.code, finding.ranks) == ("H138", ())
    assert "RAY_DEDUP_LOGS=0" in finding.help


def test_8_silence_counts_only_where_the_log_is_here(tmp_path: Path) -> None:
    text = timed_out(0) + timed_out(1) + timed_out(2) + timed_out(4)
    absent = only(tmp_path, text)
    assert (absent.ranks, absent.certainty) == ((3,), "possible")
    here = only(tmp_path, "[rank3]: evaluating\n" + text)
    assert (here.ranks, here.certainty) == ((3,), "likely")
    assert any("evaluating" in note for note in here.evidence.notes)


def test_8_a_log_without_even_the_start_of_a_rank_is_not_that_rank_s_silence(tmp_path: Path) -> None:
    """The others printed something before they waited; of this rank there is nothing, so that its log is missing."""
    begun = "".join(f"[rank{rank}]: using cuda:{rank}\n" for rank in (0, 1, 2, 4))
    finding = only(tmp_path, begun + timed_out(0) + timed_out(1) + timed_out(2) + timed_out(4))
    assert (finding.code, finding.ranks) == ("H138", ())
    assert "the log of rank 3" in finding.help


def test_a_rank_s_first_words_are_kept_however_many_others_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose time-out is dropped would look like one that did not wait."""
    monkeypatch.setattr(job_log_scan, "_MAX_EVENTS", 10)
    finding = only(tmp_path, "".join(timed_out(rank) * 3 for rank in range(12)))
    assert (finding.code, finding.ranks) == ("H136", ())


def test_what_comes_after_a_timeout_is_its_consequence(tmp_path: Path) -> None:
    text = timed_out(0) + timed_out(1) + timed_out(3) + told_to_dump(2, 3, 16)
    garbage = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."
    assert only(tmp_path, text + traceback(1, garbage)).ranks == (2,)


def test_a_cuda_error_that_the_watchdog_met_is_of_its_rank(tmp_path: Path) -> None:
    error = (
        f"{stamp(2, '10:00:00')}[PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with "
    )
    error += "exception: CUDA error: an illegal memory access was encountered\n"
    remote = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"
    )
    finding = only(tmp_path, error + traceback(0, remote) + traceback(1, remote) + failed(2, -6))
    assert (finding.code, finding.ranks, finding.action) == ("H133", (2,), "fix-first")


@pytest.mark.parametrize(("op", "code"), [("BROADCAST", "H138"), ("ALLREDUCE", "H135")])
def test_a_rank_that_is_through_a_broadcast_is_not_to_blame(tmp_path: Path, op: str, code: str) -> None:
    text = timed_out(1, op=op) + timed_out(2, op=op) + timed_out(3, op=op) + timed_out(0, seq=18, enqueued=18)
    assert only(tmp_path, text).code == code


def test_sizes_that_differ_name_the_minority_and_a_tie_names_both(tmp_path: Path) -> None:
    odd = only(tmp_path, timed_out(0) + timed_out(1) + timed_out(2, numel=9))
    assert (odd.code, odd.ranks, odd.certainty) == ("H135", (2,), "certain")
    tie = only(tmp_path, timed_out(0) + timed_out(1, numel=9))
    assert (tie.ranks, tie.certainty) == ((0, 1), "likely")


def test_a_rank_that_left_normally_had_less_work(tmp_path: Path) -> None:
    left = "[rank2]:[W1118 10:00:00.0 ProcessGroupNCCL.cpp:1] WARNING: destroy_process_group() was not called before program exit, x\n"
    finding = only(tmp_path, left + timed_out(0) + timed_out(1) + timed_out(3))
    assert (finding.code, finding.ranks) == ("H134", (2,))
    assert "reached the end of the program" in finding.evidence.likely[0]


def test_local_ranks_of_two_nodes_are_no_global_ranks(tmp_path: Path) -> None:
    bare = traceback(0, "KeyError: 'a'").replace("[rank0]: ", "")
    for node, text in (("a", bare), ("b", closed(0).replace("[rank0]: ", ""))):
        folder = tmp_path / node / "none_x1" / "attempt_0" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    [finding] = findings(tmp_path)
    assert (finding.code, finding.ranks) == ("H130", ())


def test_an_error_file_alone_names_the_line(tmp_path: Path) -> None:
    bare = traceback(0, "KeyError: 'a'", 88).replace("[rank0]: ", "")
    folder = tmp_path / "none_x1" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    message = {"message": {"message": "KeyError: 'a'", "extraInfo": {"py_callstack": bare, "timestamp": "1795000000"}}}
    (folder / "error.json").write_text(json.dumps(message))
    [finding] = findings(tmp_path)
    assert (finding.code, finding.ranks, finding.certainty) == ("H130", (1,), "certain")
    assert finding.location is not None
    assert finding.location.line == 88


def test_a_device_is_joined_with_its_rank_by_its_place_on_the_bus(tmp_path: Path) -> None:
    init = (
        "gpu-3:{pid}:9 [0] NCCL INFO comm 0x5 rank {rank} nranks 2 cudaDev 0 busId {bus} commId 0x9 - Init COMPLETE\n"
    )
    text = init.format(pid=70, rank=0, bus="4d000") + init.format(pid=71, rank=1, bus="5e000")
    xid = "Nov 18 10:00:00 gpu-3 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
    finding = only(tmp_path, text + xid)
    assert (finding.code, finding.ranks, finding.action) == ("H133", (1,), "restart-without")
    assert finding.action_hosts == ("gpu-3",)


def test_the_kernel_s_kill_of_another_job_is_not_the_cause(tmp_path: Path) -> None:
    kernel = "Out of memory: Killed process 99 (java) total-vm:1kB, anon-rss:9kB\n"
    assert only(tmp_path, kernel + traceback(1, "KeyError: 'a'") + closed(0) + failed(1, 1)).code == "H130"


def test_a_worker_that_was_told_to_stop_is_a_victim(tmp_path: Path) -> None:
    told = traceback(0, "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated. ")
    assert only(tmp_path, told + traceback(1, "KeyError: 'a'") + failed(1, 1)).ranks == (1,)


def test_the_same_failure_again_is_certain_to_come_back(tmp_path: Path) -> None:
    attempt = traceback(2, "KeyError: 'target'", 88) + closed(0) + failed(2, 1)
    other = attempt.replace("line 88", "line 90")
    _, same = findings(tmp_path, job=attempt + attempt)
    assert any("will fail again" in line for line in same.evidence.certain)
    _, new = findings(tmp_path, job=attempt + other)
    assert not any("will fail again" in line for line in new.evidence.certain)


def test_counters_alone_are_enough_where_the_other_lines_are_lost(tmp_path: Path) -> None:
    lines = text_of(LogJob("stalled", 4)).splitlines(keepends=True)
    kept = [line for line in lines if "[rank2]" not in line or "failure detected" in line]
    assert only(tmp_path, "".join(kept)).code == "H136"


def test_all_ranks_in_one_call_of_any_group_are_a_stall(tmp_path: Path) -> None:
    text = "".join(timed_out(rank, group="1(dp)") for rank in range(4))
    assert only(tmp_path, text).code == "H136"


def test_calls_of_groups_without_names_are_not_compared(tmp_path: Path) -> None:
    """Up to torch 2.1 the lines name no group: one rank's counter is far ahead because it is another group's."""
    line = "[E ProcessGroupNCCL.cpp:458] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out.\n"
    numbers = [(0, 96120), (0, 96117), (0, 96125), (7, 64088), (3, 64088)]
    finding = only(tmp_path, "".join(line.format(rank=rank, seq=seq) for rank, seq in numbers))
    assert (finding.code, finding.ranks) == ("H138", ())


def test_lines_of_the_launcher_that_ran_together_are_all_read(tmp_path: Path) -> None:
    name = "torch.distributed.elastic.multiprocessing.api"
    parts = [f"WARNING:{name}:Sending process {pid} closing signal SIGTERM" for pid in (41, 42, 43)]
    parts.append(f"ERROR:{name}:failed (exitcode: -9) local_rank: 3 (pid: 44) of binary: python")
    finding = only(tmp_path, "Loading:   0%|    | 0/2 [00:00<?, ?it/s]" + " ".join(parts) + "\n")
    assert (finding.code, finding.ranks) == ("H131", (3,))


def test_a_quoted_excerpt_is_read_like_the_log(tmp_path: Path) -> None:
    text = traceback(2, "KeyError: 'a'", 88) + closed(0) + failed(2, 1)
    finding = only(tmp_path, "".join(f"> {line}\n" for line in text.splitlines()))
    assert (finding.code, finding.ranks) == ("H130", (2,))
