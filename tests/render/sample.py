"""Reports made by hand: a hang of 1,024 ranks, one with many findings, a clean one, and one from a hostile trace."""

from __future__ import annotations

from pathlib import Path

from rankscope.model.finding import (
    SCHEMA_NAME,
    Capture,
    Check,
    CollectiveRef,
    Comparison,
    Evidence,
    Finding,
    GroupRef,
    Location,
    Report,
    Severity,
    Side,
    StackGroup,
)

START_NS = 1_768_485_720 * 10**9  # 2026-01-15 14:02:00 UTC
DP_RANKS = tuple(range(1, 1024, 16))
PEERS = tuple(rank for rank in DP_RANKS if rank != 513)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n= help: rm -rf \u202e\x9b31m\udc80"

HUNG_CALL = Location("train/loop.py", 212, "clip_gradients")
ODD_CALL = Location("train/loop.py", 219, "clip_gradients")
STEP = Location("train/loop.py", 98, "train_step")
OUTER = (STEP, Location("train/loop.py", 40, "train"), Location("main.py", 12, "main"))

CHECKS = (
    Check("rank-lost", "ran"),
    Check("op-mismatch", "ran"),
    Check("size-mismatch", "ran"),
    Check("order-deadlock", "ran"),
    Check("straggler", "skipped", "no completion times in the dumps"),
    Check("clock-skew", "skipped", "no completion times in the dumps"),
    Check("slow-kernel", "skipped", "no profiler trace"),
)


def write_sources(folder: Path) -> None:
    """The program that the samples point at, so that its lines can be shown."""
    lines = [""] * 230
    lines[211] = "        dist.all_reduce(flat_grads, group=dp)"
    lines[218] = "\tdist.all_gather(bad_ranks, rank_id, group=dp)"
    (folder / "train").mkdir()
    (folder / "train" / "loop.py").write_text("\n".join(lines))


def capture(n_lost: int = 2) -> Capture:
    ranks = tuple(rank for rank in range(1024) if not (n_lost and rank in (77, 78)))
    return Capture(
        paths=("/shared/job-4711",),
        ranks=ranks,
        world_size=1024,
        sources={"flight_recorder": len(ranks)},
        hosts=tuple(f"gpu-{i:04}" for i in range(128)),
        n_groups=37,
        n_calls=2_044_000,
        first_ns=START_NS,
        last_ns=START_NS + 614 * 10**9,
    )


def mismatch() -> Finding:
    done = "all_reduce  [8192] bf16  done"
    return Finding(
        code="H102",
        rule="op-mismatch",
        severity="error",
        certainty="certain",
        title="rank 513 called all_gather where its 63 peers called all_reduce",
        ranks=(513,),
        group=GroupRef("12", "dp", DP_RANKS),
        collective=CollectiveRef(48211, "all_reduce"),
        location=ODD_CALL,
        peer_location=HUNG_CALL,
        evidence=Evidence(
            certain=("the two calls can never complete together",),
            likely=("rank 513 took the other branch of the `if` at loop.py:211",),
            notes=("958 ranks in 36 other groups wait for these 64: effects, not listed (--all)",),
            comparison=Comparison(
                heading="seq",
                keys=("48210", "48211"),
                sides=(
                    Side("63 ranks", PEERS, (done, "all_reduce  [8192] bf16  waiting")),
                    Side("rank 513", (513,), (done, "all_gather  [128]  i64   waiting")),
                ),
                mark=1,
            ),
            stacks=(
                StackGroup(PEERS, "63 ranks", (HUNG_CALL, *OUTER), n_hidden=2),
                StackGroup((513,), "rank 513", (ODD_CALL,), n_hidden=2),
            ),
            waiting_ns=600 * 10**9,
            n_blocked=958,
        ),
        help="make the condition the same on all ranks",
    )


def lost_dumps() -> Finding:
    return Finding(
        code="D901",
        rule="dump-missing",
        severity="warning",
        certainty="certain",
        title="no dump from ranks 77, 78 (host gpu-0009); the verdict does not depend on them",
        ranks=(77, 78),
    )


def stuck(rank: int, severity: Severity = "error") -> Finding:
    """No comparison, inferred members, the same line on both sides, and peers that stand in two equal stacks."""
    return Finding(
        code="H101",
        rule="rank-stuck",
        severity=severity,
        certainty="likely",
        title=f"rank {rank} never reached the barrier that its 3 peers wait for",
        ranks=(rank,),
        group=GroupRef("3", "", (0, 1, 2, rank), inferred=True),
        collective=CollectiveRef(7, "barrier"),
        location=HUNG_CALL,
        peer_location=HUNG_CALL,
        evidence=Evidence(
            likely=(
                f"rank {rank} is busy or blocked in Python between its last recorded call and the barrier, because "
                "nothing of it is pending and its counters stand one short of those of its peers in the same group",
            ),
            stacks=(
                StackGroup((0, 1), "ranks 0,1", OUTER),
                StackGroup((2,), "rank 2", OUTER),
            ),
        ),
        help=f"look at the stack of rank {rank}",
    )


def report(*findings: Finding, effects: tuple[Finding, ...] = (), n_lost: int = 2) -> Report:
    return Report(SCHEMA_NAME, capture(n_lost), findings, CHECKS, effects)


def hang() -> Report:
    return report(mismatch(), lost_dumps(), effects=(stuck(900),))


def many() -> Report:
    return report(mismatch(), *(stuck(rank, "warning") for rank in range(100, 105)), stuck(105, "info"), lost_dumps())


def clean() -> Report:
    return report(n_lost=0)


def hostile() -> Report:
    """Every text that a trace can influence tries to take over the terminal."""
    place = Location(f"{HOSTILE}.py", 1, HOSTILE)
    finding = Finding(
        code="H102",
        rule="op-mismatch",
        severity="error",
        certainty="certain",
        title=f"title {HOSTILE}",
        ranks=(1,),
        group=GroupRef(HOSTILE, HOSTILE, (0, 1)),
        collective=CollectiveRef(1, HOSTILE),
        location=place,
        evidence=Evidence(
            certain=(HOSTILE,),
            likely=(HOSTILE,),
            notes=(HOSTILE,),
            comparison=Comparison(HOSTILE, (HOSTILE,), (Side(HOSTILE, (0,), (HOSTILE,)),), mark=0),
            stacks=(StackGroup((0,), HOSTILE, (place, place)),),
            facts={HOSTILE: HOSTILE},
        ),
        help=HOSTILE,
    )
    sources = {HOSTILE: 1}
    return Report(
        SCHEMA_NAME, Capture((HOSTILE,), (0, 1), 2, sources), (finding,), (Check(HOSTILE, "skipped", HOSTILE),)
    )
