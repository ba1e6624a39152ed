"""What had to be over before what: the excerpt as a graph whose edges have lengths, once as they were and in variants.

The work of a stream between two points at which it waits for other work, or is waited on, is one run. A run begins
when the run before and everything it waits for are over and lasts as long as its work and the gaps in it take; and it
cannot be over before its launches reach the device and what follows each of them is done. So a run has two lengths: one
from what precedes it on the device, and one from the host's last wait, from which its launches are counted. With the
lengths as they were the graph gives the recorded times exactly; only the ends of collectives, which differ a little
between their members, are made equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.path.work import Timeline
from rankscope.analyze.whatif.excerpt import OP_TYPES, Excerpt, HostClock, host_clock
from rankscope.analyze.whatif.peers import Peers
from rankscope.model.tables import MISSING, Array

# The variants of a process: which of its lengths are as recorded, as those of its peers, as those of other stages.
RECORDED, LIKE_PEERS, LIKE_ALL, LIKE_STAGES, BALANCED, ONLY_HOST, BUT_HOST = range(7)
N_VARIANTS = BUT_HOST + 1 + 2 * len(OP_TYPES)


def only_type(op_type: int) -> int:
    """The variant in which this type of operation is like that of its peers, and all else as recorded."""
    return BUT_HOST + 1 + 2 * op_type


def but_type(op_type: int) -> int:
    """The variant in which this type of operation is as recorded, and all else like that of the peers."""
    return only_type(op_type) + 1


class Graph(NamedTuple):
    """Nodes are moments: each is the latest of its sources plus the length of the edge."""

    n_nodes: int
    source: Array
    target: Array
    owner: Array
    """Who decides on the variant: a process, or, after them, all collectives and all transfers."""
    length: Array
    """By edge and variant."""
    starts: Array
    """The nodes at which the processes start."""
    start_times: Array
    step_ends: Array
    """The nodes at which the last process is done with each step."""


def build_graph(excerpt: Excerpt, peers: Peers, usual_transfer_ns: Array) -> Graph:
    """`usual_transfer_ns` is by work: how long data usually move in the collective or transfer that it is part of."""
    return _Builder(excerpt, peers, usual_transfer_ns).build()


class _Variant(NamedTuple):
    work_ratio: Array
    is_typical_host: bool


def _variants(excerpt: Excerpt, peers: Peers) -> list[_Variant]:
    same = np.ones(len(peers.work_ratio))
    like_all = peers.work_ratio * peers.stage_ratio
    variants = [
        _Variant(same, False),
        _Variant(peers.work_ratio, True),
        _Variant(like_all, True),
        _Variant(peers.stage_ratio, False),
        _Variant(peers.balance_ratio, False),
        _Variant(same, True),
        _Variant(like_all, False),
    ]
    for op_type in range(len(OP_TYPES)):
        is_type = excerpt.op_type == op_type
        variants.append(_Variant(np.where(is_type, like_all, 1.0), False))
        variants.append(_Variant(np.where(is_type, 1.0, like_all), True))
    return variants


class _Edges(NamedTuple):
    source: Array
    target: Array
    owner: Array
    length: Array


class _Builder:
    def __init__(self, excerpt: Excerpt, peers: Peers, usual_transfer_ns: Array) -> None:
        self.excerpt, self.work, self.links = excerpt, excerpt.work, excerpt.links
        self.usual_transfer_ns = usual_transfer_ns
        self.host = _HostTimes(excerpt, peers)
        self.variants = _variants(excerpt, peers)
        self.run_starts = _cut_into_runs(excerpt)
        self.run_lasts = np.append(self.run_starts[1:], len(self.work.process))[: len(self.run_starts)] - 1
        self.run = np.repeat(np.arange(len(self.run_starts)), np.diff(self.run_starts, append=len(self.work.process)))
        self.calls = np.flatnonzero(self.work.is_comm)
        self._number_nodes()

    def _number_nodes(self) -> None:
        """Ends of runs, arrivals, meetings, ends of host waits, starts, ends of steps on each host and on all hosts."""
        n_processes, n_steps = len(self.excerpt.processes), len(self.excerpt.steps)
        meetings, meeting = np.unique(self.links.last_member[self.calls], return_inverse=True)
        n_waits = len(self.links.host_waits.work)
        counts = (
            len(self.run_starts),
            len(self.calls),
            len(meetings),
            n_waits,
            n_processes,
            n_processes * n_steps,
            n_steps,
        )
        firsts = np.concatenate(([0], np.cumsum(counts)))
        self.n_nodes = int(firsts[-1])
        self.arrival = np.full(len(self.work.process), MISSING)
        self.arrival[self.calls] = firsts[1] + np.arange(len(self.calls))
        self.meeting_of_call = firsts[2] + meeting.ravel()
        self.release, self.start, self.host_end, self.job_end = (int(first) for first in firsts[3:7])

    def build(self) -> Graph:
        parts = [*self._runs(), *self._meetings(), *self._host()]
        edges = _Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        begin = self.excerpt.begin[:, 0]
        n_processes, n_steps = self.excerpt.begin.shape
        return Graph(
            self.n_nodes,
            *edges,
            starts=self.start + np.arange(n_processes),
            start_times=(begin - begin.min()).astype(np.float64),
            step_ends=self.job_end + np.arange(n_steps),
        )

    def _runs(self) -> list[_Edges]:
        """To where a run ends, or to where a collective is joined: from the device and from the host."""
        work, links, firsts = self.work, self.links, self.run_starts
        on_device, on_host = self._run_lengths()
        targets = np.where(work.is_comm[firsts], self.arrival[firsts], np.arange(len(firsts)))
        before = links.before[firsts]
        awaited, waiting = links.stream_waits.awaited, links.stream_waits.work
        follows = np.flatnonzero(before >= 0)
        sources = np.concatenate((self.run[before[follows]], self.run[awaited]))
        runs = np.concatenate((follows, self.run[waiting]))
        launched = np.flatnonzero(work.launch[firsts] >= 0)
        alone = np.setdiff1d(np.arange(len(firsts)), np.concatenate((runs, launched)))
        owner = work.process[firsts]
        since_begin = (work.start[firsts] - self.excerpt.begin[owner, 0])[:, None] + on_device
        return [
            _Edges(sources, targets[runs], owner[runs], on_device[runs]),
            _Edges(self._release_nodes(firsts[launched]), targets[launched], owner[launched], on_host[launched]),
            _Edges(self.start + owner[alone], targets[alone], owner[alone], since_begin[alone]),
        ]

    def _release_nodes(self, rows: Array) -> Array:
        release = self.links.release[rows]
        return np.where(release >= 0, self.release + release, self.start + self.work.process[rows])

    def _run_lengths(self) -> tuple[Array, Array]:
        """By run and variant: from the end of what precedes it on the device, and from the last wait of its host."""
        work, links, firsts = self.work, self.links, self.run_starts
        duration = np.where(work.is_comm, 0, work.end - work.start).astype(np.float64)
        gap, latency = links.gap.astype(np.float64), links.latency.astype(np.float64)
        on_device, on_host = np.empty((2, len(firsts), N_VARIANTS))
        if not len(firsts):
            return on_device, on_host
        reference = self._last_returns(work.process, links.release)
        offsets = [self.host.between(work.process, reference, work.launch, typical) for typical in (False, True)]
        for column, variant in enumerate(self.variants):
            ratio = np.where(work.is_comm, 1.0, variant.work_ratio)
            cost = (duration + gap) * ratio
            total = np.add.reduceat(cost, firsts)
            done = np.cumsum(cost)
            to_end = done[self.run_lasts][self.run] - done
            by_launch = offsets[variant.is_typical_host] + latency + duration * ratio + to_end
            on_device[:, column] = total
            on_host[:, column] = np.maximum.reduceat(by_launch, firsts)
        return on_device, on_host

    def _last_returns(self, process: Array, wait: Array) -> Array:
        """When each wait ended, or the process began where there was none."""
        times: Array = self.excerpt.begin[process, 0]
        times[wait >= 0] = self.links.host_waits.end[wait[wait >= 0]]
        return times

    def _meetings(self) -> list[_Edges]:
        """From the arrivals of all members of a collective or transfer to its ends, for who waited for the last."""
        work, calls = self.work, self.calls
        nodes = self.meeting_of_call
        n_processes = len(self.excerpt.processes)
        last = self.links.last_member[calls]
        length = _constant(self.usual_transfer_ns[calls])
        length[:, RECORDED] = work.end[last] - work.start[last]
        owner = n_processes + work.is_p2p[calls]
        # Who was done early did not wait for the last one, but those who came later still waited for it.
        order = np.lexsort((work.start[calls], work.match[calls]))
        is_latest = np.append(np.diff(work.match[calls][order]) != 0, True)[: len(order)]
        latest = order[is_latest]
        shared = nodes[latest][np.searchsorted(work.match[calls][latest], work.match[calls])]
        early = np.flatnonzero((work.match[calls] >= 0) & (shared != nodes))
        return [
            _Edges(self.arrival[calls], nodes, owner, _constant(np.zeros(len(calls)))),
            _Edges(self.arrival[calls[early]], shared[early], owner[early], _constant(np.zeros(len(early)))),
            _Edges(nodes, self.run[calls], owner, length),
        ]

    def _host(self) -> list[_Edges]:
        """To the ends of waits: from the wait before and from what was waited for. To the ends of steps."""
        excerpt, waits, work = self.excerpt, self.links.host_waits, self.work
        n_processes, n_steps = excerpt.begin.shape
        process = np.repeat(np.arange(n_processes), n_steps)
        ends = excerpt.end.ravel()
        wake_up = np.maximum(waits.end - work.end[waits.work], 0).astype(np.float64)
        released = self.release + np.arange(len(waits.work))
        host_ends = self.host_end + np.arange(len(ends))
        runs, lasts = np.arange(len(self.run_lasts)), self.run_lasts
        step = np.tile(np.arange(n_steps), n_processes)
        return [
            self._host_edges(waits.process, waits.start, released),
            _Edges(self.run[waits.work], released, waits.process, _constant(wake_up)),
            self._host_edges(process, ends, host_ends),
            _Edges(host_ends, self.job_end + step, process, _constant(np.zeros(len(ends)))),
            _Edges(runs, self.job_end + work.step[lasts], work.process[lasts], _constant(np.zeros(len(runs)))),
        ]

    def _host_edges(self, process: Array, time: Array, targets: Array) -> _Edges:
        """From the last wait of the process before each moment, or from its start."""
        waits = self.links.host_waits
        last = Timeline(np.arange(len(waits.end)), waits.process, waits.end).last(process, time)
        reference = self._last_returns(process, last)
        source = np.where(last >= 0, self.release + last, self.start + process)
        lengths = _constant(self.host.between(process, reference, time, False))
        typical = np.array([variant.is_typical_host for variant in self.variants])
        lengths[:, typical] = self.host.between(process, reference, time, True)[:, None]
        return _Edges(source, targets, process, lengths)


class _HostTimes:
    """How long the host was busy between two moments, and how long that would take it if it were like its peers."""

    def __init__(self, excerpt: Excerpt, peers: Peers) -> None:
        self.clock: HostClock = host_clock(excerpt)
        self.peers = peers

    def between(self, process: Array, start: Array, end: Array, is_typical: bool) -> Array:
        length = np.maximum(end - start, 0).astype(np.float64)
        if not is_typical:
            return np.asarray(length)
        low, high = (self.clock.at(process, time) for time in (start, end))
        translate = self.peers.host_map.translate
        wanted = translate(process, high) - translate(process, low)
        # Threads that do not work in turns wait while others are busy: only the ratio counts then.
        ratio: Array = np.divide(wanted, high - low, out=np.ones(len(length)), where=high > low)
        scaled: Array = length * ratio
        return scaled


def _constant(lengths: Array) -> Array:
    """The same in all variants."""
    repeated: Array = np.repeat(np.asarray(lengths, np.float64)[:, None], N_VARIANTS, axis=1)
    return repeated


def _cut_into_runs(excerpt: Excerpt) -> Array:
    """The first work of each run."""
    work, links = excerpt.work, excerpt.links
    n_rows = len(work.process)
    is_first = links.before != np.arange(n_rows) - 1
    is_first |= links.before < 0
    is_first |= work.is_comm
    is_first[1:] |= work.is_comm[:-1] | (links.release[1:] != links.release[:-1]) | (work.step[1:] != work.step[:-1])
    is_first[links.stream_waits.work] = True
    awaited = np.concatenate((links.stream_waits.awaited, links.host_waits.work))
    is_first[(awaited + 1)[awaited + 1 < n_rows]] = True
    return np.flatnonzero(is_first)
