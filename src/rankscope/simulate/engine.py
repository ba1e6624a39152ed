"""Runs the ranks' programs against each other until all have finished or none can continue.

Every rank has a CPU that enqueues calls and a device that works them off strictly in that order. A collective runs once
it is at the head of every member's queue; a transfer runs once both ends are. The times follow from these dependencies
alone, so no clock is needed: a worklist of ranks that may advance is enough.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from random import Random

from rankscope.simulate.groups import Group
from rankscope.simulate.program import Call, Job, Program

EPOCH_NS = 1_768_485_720_000_000_000  # 2026-01-15T14:02:00Z
STEP_NS = 200_000_000
RESTART_NS = 3_000_000_000
_JITTER = 0.1


@dataclass(frozen=True)
class Disturbance:
    """How the run differs from the programs as written."""

    programs: dict[int, Program] = field(default_factory=dict)
    """Programs of single ranks that replace those of the job."""
    stops: dict[int, int] = field(default_factory=dict)
    """Ranks that never make the call with this index, nor any later one."""
    delays: dict[int, dict[int, int]] = field(default_factory=dict)
    """For single ranks extra CPU time in ns before the call with that index."""
    stalled: frozenset[tuple[Group, int]] = frozenset()
    """Collectives, by group and sequence number, that start and never finish."""

    def joined_with(self, other: Disturbance) -> Disturbance:
        return Disturbance(
            {**self.programs, **other.programs},
            {**self.stops, **other.stops},
            {**self.delays, **other.delays},
            self.stalled | other.stalled,
        )


class RankRun:
    """The history of one rank. Call i was created, reached the head of the device queue, and was done at index i."""

    __slots__ = (
        "arrived_ns",
        "calls",
        "cpu_ns",
        "created_ns",
        "descs",
        "done_ns",
        "n_to_make",
        "restarts",
        "sync_before",
        "transfers_done_ns",
        "transfers_left",
    )

    def __init__(self, program: Program, stop: int | None) -> None:
        self.calls = program.calls()
        self.n_to_make = len(self.calls) if stop is None else stop
        starts = program.step_starts()
        self.sync_before = frozenset(starts)
        self.restarts = frozenset(starts[step] for step in program.restarts)
        self.descs = program.descs
        self.created_ns = array("q")
        self.arrived_ns = array("q")
        self.done_ns = array("q")
        self.cpu_ns = EPOCH_NS
        self.transfers_left = 0
        self.transfers_done_ns = 0

    @property
    def pending(self) -> Call | None:
        """The call that blocks the device; calls enqueued behind it wait for it."""
        head = len(self.done_ns)
        return self.calls[head] if head < len(self.created_ns) else None


@dataclass(frozen=True)
class Run:
    ranks: tuple[RankRun, ...]

    @property
    def is_hung(self) -> bool:
        return any(rank.pending is not None for rank in self.ranks)

    @property
    def last_event_ns(self) -> int:
        return max(
            (times[-1] for rank in self.ranks for times in (rank.created_ns, rank.done_ns) if times), default=EPOCH_NS
        )


class _Meeting:
    """A collective or a transfer, from its first arrival on."""

    __slots__ = ("broken", "call", "latest_ns", "n_missing")

    def __init__(self, call: Call, n_missing: int, broken: bool = False) -> None:
        self.call = call
        self.n_missing = n_missing
        self.latest_ns = 0
        self.broken = broken


def run_job(job: Job, disturbance: Disturbance) -> Run:
    return _Engine(job, disturbance).run()


class _Engine:
    def __init__(self, job: Job, disturbance: Disturbance) -> None:
        self.run_ahead = job.spec.run_ahead
        self.random = Random(job.spec.seed)
        self.delays = disturbance.delays
        self.stalled = disturbance.stalled
        self.ranks = tuple(
            RankRun(disturbance.programs.get(rank, program), disturbance.stops.get(rank))
            for rank, program in enumerate(job.programs)
        )
        # The device takes about a quarter of a step; the CPU spreads the rest evenly over its calls.
        self.cpu_ns = [STEP_NS * 3 // 4 // len(program.steps[0]) for program in job.programs]
        self.collectives: dict[Group, dict[int, _Meeting]] = {}
        self.n_joined: list[dict[Group, int]] = [{} for _ in self.ranks]
        self.transfers: dict[tuple[Group, int, int, int], _Meeting] = {}
        self.n_transfers: dict[tuple[Group, int, int, bool], int] = {}
        self.worklist: deque[int] = deque()

    def run(self) -> Run:
        self.worklist.extend(range(len(self.ranks)))
        while self.worklist:
            self._advance(self.worklist.popleft())
        return Run(self.ranks)

    def _advance(self, number: int) -> None:
        """Let one CPU enqueue as far as it may, and put what is next at the head of its device."""
        rank = self.ranks[number]
        self._enqueue(number, rank)
        head = len(rank.done_ns)
        if head < len(rank.created_ns) and len(rank.arrived_ns) == head:
            free_ns = rank.done_ns[-1] if head else EPOCH_NS
            arrived_ns = max(rank.created_ns[head], free_ns)
            rank.arrived_ns.append(arrived_ns)
            call = rank.calls[head]
            if call.transfers:
                self._arrive_at_transfers(number, call, arrived_ns)
            else:
                self._arrive_at_collective(number, call, arrived_ns)

    def _enqueue(self, number: int, rank: RankRun) -> None:
        created, done = rank.created_ns, rank.done_ns
        n_done = len(done)
        delays = self.delays.get(number)
        index = len(created)
        while index < rank.n_to_make:
            needed = index if index in rank.sync_before else index - self.run_ahead
            if n_done < needed:
                return
            if needed > 0 and done[needed - 1] > rank.cpu_ns:
                rank.cpu_ns = done[needed - 1]
            rank.cpu_ns += int(self.cpu_ns[number] * (1 - _JITTER + 2 * _JITTER * self.random.random()))
            if index in rank.restarts:
                rank.cpu_ns += RESTART_NS
            if delays:
                rank.cpu_ns += delays.get(index, 0)
            created.append(rank.cpu_ns)
            index += 1

    def _arrive_at_collective(self, number: int, call: Call, arrived_ns: int) -> None:
        group = call.group
        joined = self.n_joined[number]
        seq = joined[group] = joined.get(group, 0) + 1
        meetings = self.collectives.setdefault(group, {})
        meeting = meetings.get(seq)
        if meeting is None:
            meeting = meetings[seq] = _Meeting(call, len(group.ranks), broken=(group, seq) in self.stalled)
        elif meeting.call is not call and not meeting.call.is_compatible(call):
            meeting.broken = True
        meeting.n_missing -= 1
        if arrived_ns > meeting.latest_ns:
            meeting.latest_ns = arrived_ns
        if meeting.n_missing or meeting.broken:
            return
        del meetings[seq]
        done_ns = meeting.latest_ns + call.device_ns
        for member in group.ranks:
            self.ranks[member].done_ns.append(done_ns)
        self.worklist.extend(group.ranks)

    def _arrive_at_transfers(self, number: int, call: Call, arrived_ns: int) -> None:
        rank = self.ranks[number]
        rank.transfers_left = len(call.transfers)
        for is_send, peer in call.transfers:
            source, target = (number, peer) if is_send else (peer, number)
            counter = (call.group, source, target, is_send)
            count = self.n_transfers[counter] = self.n_transfers.get(counter, 0) + 1
            meeting = self.transfers.setdefault((call.group, source, target, count), _Meeting(call, 2))
            meeting.n_missing -= 1
            meeting.latest_ns = max(meeting.latest_ns, arrived_ns)
            if meeting.n_missing == 0:
                del self.transfers[call.group, source, target, count]
                self._finish_transfer(source, target, meeting.latest_ns + call.device_ns)

    def _finish_transfer(self, source: int, target: int, done_ns: int) -> None:
        for end in (source, target):
            rank = self.ranks[end]
            rank.transfers_left -= 1
            rank.transfers_done_ns = max(rank.transfers_done_ns, done_ns)
            if rank.transfers_left == 0:
                rank.done_ns.append(rank.transfers_done_ns)
                self.worklist.append(end)
