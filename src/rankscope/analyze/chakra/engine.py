"""The event loop of the replay."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from rankscope.analyze.chakra.plan import NOBODY, Plan


class Outcome(NamedTuple):
    ends: list[int]  # when each node ended, NOBODY for one that never did
    unmet: dict[int, list[int]]  # meetings that some joined (these nodes) and others never did


class _Clock:
    """The state of a run: what has joined, what waits for a place, what ends when."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = 0
        self.running: list[tuple[int, int]] = []  # (end, node), a heap
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in range(plan.n_queues)]  # (order, node), heaps
        self.is_taken = [False] * plan.n_queues
        self.joined: dict[int, list[int]] = {}
        self.n_needed = [len(met.nodes) + len(met.absent_ranks) for met in plan.meetings]

    def begin(self, node: int) -> None:
        meeting = self.plan.meeting[node]
        if meeting == NOBODY:
            heappush(self.running, (self.now + self.plan.duration[node], node))
            return
        joined = self.joined.setdefault(meeting, [])
        joined.append(node)
        if not self.waits(node):
            heappush(self.running, (self.now + self.plan.duration[node], node))
        if len(joined) == self.n_needed[meeting]:
            for member in filter(self.waits, self.joined.pop(meeting)):
                heappush(self.running, (self.now + self.plan.after_join[member], member))

    def waits(self, node: int) -> bool:
        return self.plan.after_join[node] != NOBODY

    def begin_ready(self, ready: Iterable[int], freed: Iterable[int]) -> None:
        """Only when all that happens at this time has happened: who is first at a place must not depend on chance."""
        queues = set(freed)
        for node in ready:
            queue = self.plan.queue[node]
            if queue == NOBODY:
                self.begin(node)
            else:
                heappush(self.waiting[queue], (self.plan.order[node], node))
                queues.add(queue)
        for queue in queues:
            if self.waiting[queue] and not self.is_taken[queue]:
                self.is_taken[queue] = True
                self.begin(heappop(self.waiting[queue])[1])

    def let_sends_go(self) -> bool:
        """When nothing moves: a send whose receive has not begun need not wait for it, small messages are buffered."""
        alone = [meeting for meeting, (node, *_) in self.joined.items() if self.plan.is_send[node] and self.waits(node)]
        for meeting in alone:
            (node,) = self.joined.pop(meeting)
            self.n_needed[meeting] -= 1
            heappush(self.running, (self.now + self.plan.duration[node], node))
        return bool(alone)


def run(plan: Plan) -> Outcome:
    clock = _Clock(plan)
    n_waits, starts, children, queues = list(plan.n_waits), plan.child_starts, plan.children, plan.queue
    ends = [NOBODY] * len(n_waits)
    free = (node for node, n in enumerate(n_waits) if not n)
    pending = sorted(((plan.begins[plan.locate(node)[0]], node) for node in free), reverse=True)
    running = clock.running
    while running or pending or clock.let_sends_go():
        clock.now = now = min(time for time, _ in (*running[:1], *pending[-1:]))
        ready, freed = [], []
        while pending and pending[-1][0] == now:
            ready.append(pending.pop()[1])
        while running and running[0][0] == now:
            _, node = heappop(running)
            ends[node] = now
            if queues[node] != NOBODY:
                clock.is_taken[queues[node]] = False
                freed.append(queues[node])
            for child in children[starts[node] : starts[node + 1]]:
                n_waits[child] -= 1
                if not n_waits[child]:
                    ready.append(child)
        clock.begin_ready(ready, freed)
    unmet = {meeting: [node for node in joined if ends[node] == NOBODY] for meeting, joined in clock.joined.items()}
    return Outcome(ends, {meeting: stuck for meeting, stuck in unmet.items() if stuck})
