"""Verdicts from a job's output alone: the cause is named, a victim never."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analyze import log_texts
from analyze.log_texts import closed, failed, traceback
from rankscope import pipeline
from rankscope.analyze.log_evidence import join_logs
from rankscope.model.finding import Finding
from rankscope.simulate.job_log import RELEASES, LogJob, printed, text_of


def findings(folder: Path, **files: str) -> list[Finding]:
    """What is said about texts, each in a file of that name."""
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    report = pipeline.diagnose(pipeline.load([str(folder)]))
    return [finding for finding in report.findings if finding.code.startswith("H1")]


def only(folder: Path, text: str) -> Finding:
    [finding] = findings(folder, job=text)
    return finding


def test_the_first_traceback_is_the_cause_and_closed_connections_are_not(tmp_path: Path) -> None:
    finding = only(tmp_path, traceback(2, "KeyError: 'target'", 88) + closed(0) + closed(1) + failed(0, 1))
    assert (finding.code, finding.ranks, finding.certainty, finding.action) == ("H130", (2,), "certain", "fix-first")
    assert finding.location is not None
    assert (finding.location.line, finding.location.function) == (88, "step")


def test_a_victim_that_speaks_first_is_not_the_cause(tmp_path: Path) -> None:
    finding = only(tmp_path, closed(0) + closed(1) + traceback(2, "KeyError: 'target'") + failed(0, 1))
    assert (finding.code, finding.ranks) == ("H130", (2,))


@pytest.mark.parametrize(
    ("exception", "word"),
    [
        ("OSError: [Errno 28] No space left on device: 'ckpt.pt'", "free space"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
            "batch",
        ),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", "DataLoader workers"),
        ("MemoryError", "host memory"),
    ],
)
def test_known_failures_come_with_their_cure(tmp_path: Path, exception: str, word: str) -> None:
    finding = only(tmp_path, traceback(1, exception) + closed(0))
    assert (finding.code, finding.ranks) == ("H130", (1,))
    assert word in finding.help


def test_a_kill_without_a_message_is_said_to_be_just_that(tmp_path: Path) -> None:
    finding = only(tmp_path, log_texts.KILLED)
    assert (finding.code, finding.ranks, finding.action) == ("H131", (1,), "collect-more")
    assert "the log does not show which" in finding.evidence.likely[0]


def test_the_kernel_names_the_cause_of_a_kill(tmp_path: Path) -> None:
    kernel = "Memory cgroup out of memory: Killed process 4002 (python) total-vm:1kB, anon-rss:9kB\n"
    finding = only(tmp_path, log_texts.KILLED + kernel)
    assert (finding.code, finding.ranks, finding.action) == ("H131", (1,), "fix-first")
    assert "memory limit" in finding.title


@pytest.mark.parametrize(
    ("reason", "title", "action"),
    [
        (" DUE TO TIME LIMIT", "the job reached its time limit", "restart"),
        (" DUE TO PREEMPTION", "the scheduler preempted the job", "restart"),
        (" DUE TO NODE FAILURE", "a node failed: gpu-3", "restart-without"),
        ("", "someone canceled the job", "restart"),
    ],
)
def test_the_scheduler_says_why_it_ended_the_job(tmp_path: Path, reason: str, title: str, action: str) -> None:
    text = f"slurmstepd: error: *** JOB 8 ON gpu-3 CANCELLED AT 2026-11-18T10:00:00{reason} ***\n"
    finding = only(tmp_path, text + "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n")
    assert (finding.code, finding.title, finding.action, finding.ranks) == ("H132", title, action, ())


def test_a_device_off_the_bus_drains_its_node_and_a_fault_of_the_program_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    hardware = only(tmp_path / "a", log_texts.OFF_THE_BUS)
    assert (hardware.code, hardware.ranks) == ("H133", (1,))
    assert "drain" in hardware.help
    (tmp_path / "b").mkdir()
    software = only(tmp_path / "b", log_texts.OFF_THE_BUS.replace(": 79,", ": 31,"))
    assert (software.code, software.action) == ("H133", "fix-first")


def test_ranks_that_never_joined_are_counted(tmp_path: Path) -> None:
    finding = only(tmp_path, log_texts.NOT_JOINED)
    assert finding.code == "H137"
    assert "3 of 4 ranks joined" in finding.title


def test_victims_alone_name_nobody(tmp_path: Path) -> None:
    finding = only(tmp_path, log_texts.ONLY_VICTIMS)
    assert (finding.code, finding.ranks, finding.action) == ("H138", (), "collect-more")


def test_each_attempt_has_its_verdict_though_torchrun_does_not_announce_restarts(tmp_path: Path) -> None:
    attempt = traceback(2, "KeyError: 'target'", 88) + closed(0) + failed(2, 1)
    first, second = findings(tmp_path, job=attempt + attempt)
    assert (first.ranks, second.ranks) == ((2,), (2,))
    assert ("attempt 0" in first.title, "attempt 1" in second.title) == (True, True)
    assert "an earlier attempt failed in the same way: it will fail again" in second.evidence.certain


BARE = traceback(0, "OSError: bad descriptor").replace("[rank0]: ", "")
HARMLESS = (
    f"step 1\nException ignored in: <function Pool.__del__ at 0x7f>\n{BARE}",
    f"step 1\n--- Logging error ---\n{BARE}",
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 3, in <module>\n'
    "ModuleNotFoundError: No module named 'flash_attn'\n"
    "falling back to the slow path\nstep 1 loss 2.0\n",
    "step 1 loss 2.0\nUserWarning: NCCL error handling is asynchronous\nretry 1: Connection reset by peer\nstep 2\n",
    "[rank0]:[W1118 10:00:00.000000000 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not "
    "called before program exit, which can leak resources.\n",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_was_caught_or_only_warned_of_is_no_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.log").write_text(log_texts.TIME_LIMIT)  # so that there is something to read
    assert [finding.code for finding in findings(tmp_path, job=text)] == ["H132"]


EXPECTED = {"stuck": "H134", "mismatch": "H135", "stalled": "H136", "exception": "H130", "killed": "H131"}


def damaged(job: LogJob, draw: random.Random) -> str:
    """The head cut off, some training output lost, clocks that differ by up to a second."""
    lines = [line for _, _, line in printed(job)]
    kept = lines[draw.randrange(3) :] if job.fault != "stuck" else lines
    return "".join(f"{line}\n" for line in kept if not line.startswith("step") or draw.random() < 0.7)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("fault", EXPECTED)
def test_simulated_faults(tmp_path: Path, fault: str, release: str) -> None:
    for seed in range(12):
        draw = random.Random(f"{fault} {release} {seed}")
        n_ranks = draw.choice((3, 8, 16))
        job = LogJob(fault, n_ranks, draw.randrange(n_ranks), release, seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        finding = only(folder, damaged(job, draw))
        wanted = () if fault == "stalled" else (job.culprit,)
        assert (finding.code, finding.ranks) == (EXPECTED[fault], wanted), job


@pytest.mark.parametrize("release", RELEASES)
def test_a_healthy_job_has_no_finding(tmp_path: Path, release: str) -> None:
    (tmp_path / "beside.log").write_text(log_texts.TIME_LIMIT)
    assert [finding.code for finding in findings(tmp_path, job=text_of(LogJob("healthy", release=release)))] == ["H132"]


def test_a_finding_from_dumps_takes_the_log_s_finding_about_the_same_rank_as_a_note() -> None:
    dumps = Finding(code="H105", rule="rank-stuck", severity="error", certainty="certain", title="stuck", ranks=(3,))
    log = Finding(
        code="H130",
        rule="log-failure",
        severity="error",
        certainty="certain",
        title="it raised",
        ranks=(3,),
        action="fix-first",
    )
    [joined], effects = join_logs([dumps, log])
    assert (joined.code, joined.action, joined.evidence.notes) == ("H105", "fix-first", ("the log says: it raised",))
    assert effects == [log]


def test_a_cause_that_dumps_do_not_show_stays() -> None:
    dumps = Finding(
        code="H109", rule="collective-stalled", severity="error", certainty="likely", title="none", ranks=()
    )
    log = Finding(code="H133", rule="log-device", severity="error", certainty="certain", title="Xid 79", ranks=(3,))
    kept, effects = join_logs([dumps, log])
    assert ([finding.code for finding in kept], effects) == (["H109", "H133"], [])
    assert kept[0].action == "collect-more"


def test_a_last_traceback_of_a_job_that_nothing_says_failed_is_only_likely_the_cause(tmp_path: Path) -> None:
    assert only(tmp_path, f"step 1\n{BARE}").certainty == "likely"


def test_an_exception_of_a_thread_is_only_likely_the_cause(tmp_path: Path) -> None:
    finding = only(
        tmp_path, f"step 1\nException in thread Thread-3 (load):\n{BARE}{closed(1)}{closed(2)}{failed(1, 1)}"
    )
    assert (finding.code, finding.certainty) == ("H130", "likely")


def test_the_default_group_s_counters_say_nothing_about_another_group(tmp_path: Path) -> None:
    """Ranks outside of the group that timed out look behind in their own counters: nobody can be named."""
    text = text_of(LogJob("stuck")).replace("PG ID 0 PG GUID 0(default_pg) Rank", "PG ID 3 PG GUID 17(tp) Rank")
    assert (only(tmp_path, text).code, only(tmp_path, text).ranks) == ("H138", ())


def test_a_traceback_that_lost_its_last_line_accuses_nobody(tmp_path: Path) -> None:
    cut = "".join(closed(1).splitlines(keepends=True)[:-1])
    finding = only(tmp_path, closed(0) + cut + closed(2) + failed(3, -9))
    assert (finding.code, finding.ranks) == ("H131", (3,))
