"""Takes the truth about a run: where the time of each rank and step went, and how each collective took place."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.program import COMPUTE_STREAM
from rankscope.simulate.profiler.run import JobRun, Meeting, RankRun
from rankscope.simulate.profiler.truth import CollectiveTruth, RankStep

Interval = tuple[int, int]


def measure_steps(job: JobRun) -> dict[tuple[int, int], RankStep]:
    last_arrivals: dict[tuple[int, int], dict[int, int]] = {}
    """By rank and step, for each exchange among the work: when its last member came."""
    for meeting in job.meetings:
        for rank, index in zip(meeting.ranks, meeting.work, strict=True):
            last_arrivals.setdefault((rank, meeting.step), {})[index] = max(meeting.arrivals_ns)
    return {
        (rank, step): _measure(run, last_arrivals.get((rank, step), {}))
        for step, runs in enumerate(job.steps)
        for rank, run in enumerate(runs)
    }


def describe_meetings(job: JobRun, mesh: Mesh) -> tuple[CollectiveTruth, ...]:
    ordered = sorted(job.meetings, key=lambda meeting: (max(meeting.ends_ns), meeting.ranks))
    return tuple(_describe(number, meeting, job, mesh) for number, meeting in enumerate(ordered))


def _describe(number: int, meeting: Meeting, job: JobRun, mesh: Mesh) -> CollectiveTruth:
    exchange = meeting.exchanges[0]
    group = mesh.group(meeting.ranks[0], exchange)
    runs = job.steps[meeting.step]
    return CollectiveTruth(
        id=number,
        group=group.name,
        desc=group.desc,
        op="sendrecv" if exchange.is_p2p else exchange.op,
        is_p2p=exchange.is_p2p,
        step=meeting.step,
        n_bytes=exchange.n_bytes,
        ranks=meeting.ranks,
        seqs=tuple(
            mesh.sequence_number(exchange, runs[rank].program, meeting.step)
            for rank, exchange in zip(meeting.ranks, meeting.exchanges, strict=True)
        ),
        arrivals_ns=meeting.arrivals_ns,
        ends_ns=meeting.ends_ns,
    )


def _measure(run: RankRun, last_arrivals: dict[int, int]) -> RankStep:
    compute: list[Interval] = []
    memory: list[Interval] = []
    communication: list[Interval] = []
    for work, start, end in zip(run.program.work, run.starts, run.ends, strict=True):
        kind = communication if work.exchange is not None else compute if work.category == "kernel" else memory
        kind.append((start, end))
    start_ns, end_ns = run.clock[0], run.clock[-1]
    compute_ns, communication_ns = _covered_ns(compute), _covered_ns(communication)
    wait_ns, transfer_ns, bubble_ns = _stalls_ns(run, last_arrivals)
    return RankStep(
        start_ns=start_ns,
        end_ns=end_ns,
        compute_ns=compute_ns,
        memory_ns=_covered_ns(memory),
        communication_ns=communication_ns,
        overlap_ns=compute_ns + communication_ns - _covered_ns(compute + communication),
        idle_ns=end_ns - start_ns - _covered_ns(compute + memory + communication),
        wait_ns=wait_ns,
        transfer_ns=transfer_ns,
        bubble_ns=bubble_ns,
    )


def _covered_ns(intervals: Iterable[Interval]) -> int:
    """Length of the union."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _stalls_ns(run: RankRun, last_arrivals: dict[int, int]) -> tuple[int, int, int]:
    """How long the compute stream was idle waiting for members, for data to move, and, of the first,
    for neighbors in the pipeline."""
    wait_ns = transfer_ns = bubble_ns = 0
    free_ns = run.clock[0]
    program = run.program
    for index, work in enumerate(program.work):
        if work.stream != COMPUTE_STREAM:
            continue
        # Before the launch the stream waits for the host and for nobody else.
        stalled_ns = max(free_ns, run.clock[program.calls[work.call].tick + 1])
        for other in sorted(work.after, key=run.ends.__getitem__):
            if other in last_arrivals and run.ends[other] > stalled_ns:
                waited_ns = max(0, last_arrivals[other] - stalled_ns)
                wait_ns += waited_ns
                transfer_ns += run.ends[other] - stalled_ns - waited_ns
                exchange = program.work[other].exchange
                if exchange is not None and exchange.is_p2p:
                    bubble_ns += waited_ns
                stalled_ns = run.ends[other]
        free_ns = run.ends[index]
    return wait_ns, transfer_ns, bubble_ns
