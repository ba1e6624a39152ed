"""What each piece of work had to wait for before it could start, and whose end came last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.path.waits import HostWaits, StreamWaits, find_host_waits, recorded_stream_waits
from rankscope.analyze.path.work import Timeline, Work, job_of, numbered
from rankscope.model.tables import MISSING, Array, Trace

# Without measurements of its own a process is taken to be like most: a launch takes 5 us to reach the device, and the
# device 1 us from one kernel to the next.
_USUAL_LATENCY_NS = 5_000
_USUAL_GAP_NS = 1_000
# What usually takes longer than this is no launch and no gap: most of the process's work waits for something.
_MAX_LATENCY_NS = 50_000
_MAX_GAP_NS = 20_000
# A start that is later than the order of the stream and the launch explain, by more than the first, is taken for the
# end of a wait if work of another stream ended before it, by less than the second.
_MIN_UNEXPLAINED_NS = 5_000
_MAX_AFTER_EVENT_NS = 50_000
# Who is done long before the last member came did not wait for it: a small send, the root of a broadcast.
_MIN_EARLIER_NS = 1_000_000
# Threads that launch while another one waits in more than this share of the waits do not work in turns.
_MAX_APART = 0.05


class Links(NamedTuple):
    """By row of the work; MISSING where there is no such work."""

    before: Array
    """The work before on the same stream."""
    held_by: Array
    """Of that and of what its stream waited for: what ended last."""
    is_host_bound: Array
    """The launch came later than all of them."""
    latency: Array
    """From launch to start: as it was if the host was late, else as is usual in the process."""
    gap: Array
    """From the end of what held it to its start: as it was if the device was late, else as is usual in the process."""
    last_member: Array
    """The call of the member that joined its collective last; itself if no one came later."""
    moved: Array
    """Of communication: how long data moved, from the arrival of the last member to its end. Where the partners are not
    known: as long as that usually takes, but no longer than the call was."""
    stream_waits: StreamWaits
    host_waits: HostWaits
    release: Array
    """The last host wait that held up, before the launch, the thread that made it, or any thread of the process where
    they work in turns."""


def links_of(trace: Trace) -> Links:
    return derived(trace, _find_links)


def middle(group: Array, values: Array, n_groups: int, otherwise: int | float = 0) -> Array:
    """Per group: the median, of an even number the lower of the two."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=n_groups)
    firsts = np.cumsum(counts) - counts
    result = np.full(n_groups, otherwise, values.dtype)
    seen = np.flatnonzero(counts)
    result[seen] = values[order[firsts[seen] + (counts[seen] - 1) // 2]]
    return result


def _find_links(trace: Trace) -> Links:
    processes, work, _ = job_of(trace)
    before = work.before
    latency, gap = _usual_delays(work, before, len(processes.rank))
    host_waits = find_host_waits(trace, work)
    stream_waits = _stream_waits(trace, work, before, latency, gap)
    held_by = _ended_last_of(work, before, stream_waits)
    held_until = np.where(held_by >= 0, np.minimum(work.end[held_by], work.start), MISSING)
    last_member = _last_members(work)
    launched = work.launch >= 0
    by_launch = np.where(launched, work.launch + latency, MISSING)
    since_held = work.start - held_until
    is_host_bound = launched & ((held_by < 0) | (by_launch > held_until + gap))
    return Links(
        before=before,
        held_by=held_by,
        is_host_bound=is_host_bound,
        latency=np.where(is_host_bound, work.start - work.launch, np.minimum(latency, work.start - work.launch)),
        gap=np.where(held_by < 0, 0, np.where(is_host_bound, np.minimum(gap, since_held), since_held)),
        last_member=last_member,
        moved=_moved(work, last_member),
        stream_waits=stream_waits,
        host_waits=host_waits,
        release=_last_release(host_waits, work),
    )


def _last_release(waits: HostWaits, work: Work) -> Array:
    """Per work: the last wait that held the host up before the launch; MISSING where there is none."""
    of_work, of_waits = _chains(work, waits)
    rows = np.flatnonzero(waits.is_blocking(work))
    return Timeline(rows, of_waits[rows], waits.end[rows]).last(of_work, work.launch)


def _chains(work: Work, waits: HostWaits) -> tuple[Array, Array]:
    """A number per thread, for all work and for all waits; one per process where no thread launches anything while
    another one waits, as it is with the threads of forward and backward."""
    n_work = len(work.process)
    process = np.concatenate((work.process, waits.process))
    thread = numbered(process, np.concatenate((work.tid, waits.tid)))
    launched = np.flatnonzero(work.launch >= 0)
    meanwhile = Timeline(launched, work.process[launched], work.launch[launched]).last(waits.process, waits.end)
    # The last launch before a wait was over: was it made by another thread, while this one waited?
    apart = (meanwhile >= 0) & (work.launch[meanwhile] > waits.start) & (thread[meanwhile] != thread[n_work:])
    balance = np.zeros(int(process.max(initial=-1)) + 1)
    np.add.at(balance, waits.process, np.where(apart, 1.0, -_MAX_APART / (1 - _MAX_APART)))
    chain = np.where(balance[process] > 0, thread + len(balance), process)
    return chain[:n_work], chain[n_work:]


def _usual_delays(work: Work, before: Array, n_processes: int) -> tuple[Array, Array]:
    """By row: how long a launch usually takes to reach an idle stream, and a stream from one work to the next."""
    launched = work.launch >= 0
    free_at = np.where(before >= 0, work.end[before], MISSING)
    late = np.flatnonzero(launched & (work.launch > free_at) & (work.start >= work.launch) & ~work.is_comm)
    latency = middle(work.process[late], work.start[late] - work.launch[late], n_processes, _USUAL_LATENCY_NS)
    begun_at = np.where(before >= 0, work.start[before], MISSING)
    queued = np.flatnonzero(launched & (work.launch < begun_at) & (work.start >= free_at) & ~work.is_comm)
    gap = middle(work.process[queued], work.start[queued] - free_at[queued], n_processes, _USUAL_GAP_NS)
    latency[latency > _MAX_LATENCY_NS] = _USUAL_LATENCY_NS
    gap[gap > _MAX_GAP_NS] = _USUAL_GAP_NS
    return latency[work.process], gap[work.process]


def _stream_waits(trace: Trace, work: Work, before: Array, latency: Array, gap: Array) -> StreamWaits:
    recorded = recorded_stream_waits(trace, work)
    has_syncs = np.zeros(int(work.process.max(initial=-1)) + 1, bool)
    has_syncs[work.process[recorded.work]] = True
    unknown = np.flatnonzero(~has_syncs[work.process])
    parts = (recorded, _inferred_waits(work, unknown, before, latency, gap), _order_of_communication(work, unknown))
    return StreamWaits(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _inferred_waits(work: Work, rows: Array, before: Array, latency: Array, gap: Array) -> StreamWaits:
    """Starts that neither the stream nor the launch explains, and what ended just before them elsewhere."""
    free_at = np.where(before >= 0, work.end[before] + gap, MISSING)[rows]
    launched_at = np.where(work.launch >= 0, work.launch + latency, MISSING)[rows]
    expected = np.maximum(free_at, launched_at)
    late = (expected >= 0) & (work.start[rows] - expected > _MIN_UNEXPLAINED_NS)
    rows, expected = rows[late], expected[late]
    ends = Timeline(np.arange(len(work.process)), work.process, work.end)
    candidate = ends.last(work.process[rows], work.start[rows])
    fits = (candidate >= 0) & (work.stream[candidate] != work.stream[rows]) & (work.end[candidate] > expected)
    fits &= work.start[rows] - work.end[candidate] <= _MAX_AFTER_EVENT_NS
    return StreamWaits(rows[fits], candidate[fits])


def _order_of_communication(work: Work, rows: Array) -> StreamWaits:
    """torch makes a collective wait for what its process had launched before."""
    rows = rows[work.is_comm[rows] & ~work.on_host[rows] & (work.launch[rows] >= 0)]
    others = np.flatnonzero(~work.is_comm & (work.launch >= 0))
    launches = Timeline(others, work.process[others], work.launch[others])
    candidate = launches.last(work.process[rows], work.launch[rows])
    fits = (candidate >= 0) & (work.end[candidate] <= work.start[rows])
    return StreamWaits(rows[fits], candidate[fits])


def _ended_last_of(work: Work, before: Array, waits: StreamWaits) -> Array:
    """Per row: of the work before and all that was waited for, what ended last but not after the start."""
    held_by = before.copy()
    order = np.lexsort((work.end[waits.awaited], waits.work))
    rows, awaited = waits.work[order], waits.awaited[order]
    is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    rows, awaited = rows[is_last], awaited[is_last]
    later = (held_by[rows] < 0) | (work.end[awaited] > work.end[held_by[rows]])
    held_by[rows[later]] = awaited[later]
    return held_by


def _last_members(work: Work) -> Array:
    """All members of a collective are done at about the same time, so who came last was in it for the shortest time.

    That needs no common clock, which is only asked for who was done before the last one came.
    """
    last = np.arange(len(work.process))
    rows = np.flatnonzero(work.match >= 0)
    if not len(rows):
        return last
    match = np.unique(work.match[rows], return_inverse=True)[1].ravel()
    latest = np.full(int(match.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, match, work.start[rows])
    waited = work.end[rows] >= latest[match] - _MIN_EARLIER_NS
    rows, match = rows[waited], match[waited]
    order = np.lexsort((work.end[rows] - work.start[rows], match))
    is_first = np.concatenate(([True], match[order][1:] != match[order][:-1]))
    shortest = np.empty(len(latest), np.int64)
    shortest[match[order][is_first]] = rows[order][is_first]
    last[rows] = shortest[match]
    return last


def _moved(work: Work, last_member: Array) -> Array:
    duration = work.end - work.start
    moved = duration[last_member]
    calls = np.flatnonzero(work.is_comm)
    kind = numbered(work.is_p2p[calls], work.n_bytes[calls])
    is_matched = work.match[calls] >= 0
    usual = middle(kind[is_matched], moved[calls[is_matched]], int(kind.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    alone = calls[~is_matched]
    moved[alone] = np.minimum(duration[alone], usual[kind[~is_matched]])
    return moved
