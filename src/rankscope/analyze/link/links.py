"""The table et_links: durations are from steps that were profiled without the observer, where the capture has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived, table
from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.link.alignment import Profile, Track, align, align_ends, common_names, profile_recording
from rankscope.analyze.link.nodes import EVENTS, Events, nodes_of
from rankscope.analyze.link.partners import HOW, partners_of
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_NAME = r"regexp_replace(name, '#\d+$', '#')"  # ProfilerStep#7 is in each step another one
_MAX_KINDS = 8  # of steps that are compared with a step that has no equal
_MOSTLY = 0.5  # of both steps has to be the same, or they are steps of other things
_CLEAN = f"""
    SELECT file_id, coalesce(rank, {MISSING}) FROM {EVENTS}
    GROUP BY file_id, rank HAVING count(record_id) = 0 ORDER BY file_id, rank
"""
# Of other runs of the same program only what is asked for: their times may be of other machines.
_OWN_CLEAN = f"""
    SELECT DISTINCT e.file_id FROM et_traces AS t JOIN (
        SELECT file_id, rank, list(DISTINCT pid) AS pids FROM {EVENTS}
        GROUP BY file_id, rank HAVING count(record_id) = 0
    ) AS e ON e.rank IS NOT DISTINCT FROM t.rank AND list_contains(e.pids, t.pid)
"""

StepKey = tuple[bytes, bytes, bytes]


@table("et_links", needs=("et_nodes",))
def et_links(trace: Trace) -> Table:
    """With durations from clean steps of the same processes, where the capture has such steps."""
    clean = {file_id for (file_id,) in trace.sql(_OWN_CLEAN).rows()}
    return transplanted_links(trace, clean)


def transplanted_links(trace: Trace, clean_files: Collection[int]) -> Table:
    """et_links with durations from clean profiles of the same rank: the median of what corresponds in their steps.

    Beginnings stay as recorded. What has no counterpart keeps its duration, and stays marked as inflated. Of the files,
    those that were recorded with the observer are left out.
    """
    links = derived(trace, recorded_links)
    if not clean_files:
        return links
    profile_id, rank = links.array("profile_id"), links.array("rank")
    clean = _clean_profiles(trace, clean_files)
    duration_ns, duration_from = links.array("duration_ns").copy(), links.array("duration_from").copy()
    for profiled_file, own_rank, rows in _by_profile(profile_id, rank):
        if profiled_file in (file_id for file_id, _ in clean.get(own_rank, ())) or own_rank not in clean:
            continue
        profile = profile_recording(trace, profiled_file, own_rank, _NAME)
        typical, source = _clean_durations(profile, clean[own_rank])
        event = _event_of(profile.events, links.array("op_id")[rows], links.array("annotation_id")[rows])
        is_found = (event >= 0) & (source[event] >= 0)
        duration_ns[rows[is_found]] = typical[event[is_found]]
        duration_from[rows[is_found]] = source[event[is_found]]
    is_new = duration_from != profile_id
    new_own = _own_ns(links, duration_ns)
    return links.replaced(
        {
            "duration_ns": duration_ns,
            "own_ns": np.where(is_new, new_own, links.array("own_ns")),
            "is_inflated": links.array("is_inflated") & ~is_new,
            "duration_from": duration_from,
        }
    )


def _own_ns(links: Table, duration_ns: Array) -> Array:
    """New durations without those of what lay in them as recorded."""
    recorded = {name: links.array(name) for name in ("profile_id", "rank", "tid", "start_ns", "duration_ns")}
    caller = own_time(recorded).caller
    inner = np.flatnonzero(caller >= 0)
    taken = np.bincount(caller[inner], duration_ns[inner].astype(np.float64), len(caller)).astype(np.int64)
    return np.maximum(duration_ns - taken, 0)


def _clean_profiles(trace: Trace, clean_files: Collection[int]) -> dict[int, list[tuple[int, Profile]]]:
    """By rank, with the number of the file."""
    profiles: dict[int, list[tuple[int, Profile]]] = {}
    for file_id, rank in trace.sql(_CLEAN).rows():
        if file_id in clean_files:
            profiles.setdefault(rank, []).append((file_id, profile_recording(trace, file_id, rank, _NAME)))
    return profiles


def _by_profile(profile_id: Array, rank: Array) -> Iterator[tuple[int, int, Array]]:
    order = np.lexsort((rank, profile_id))
    order = order[profile_id[order] >= 0]
    is_border = (np.diff(profile_id[order]) != 0) | (np.diff(rank[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_border) + 1):
        if len(rows):
            yield int(profile_id[rows[0]]), int(rank[rows[0]]), rows


def _event_of(events: Events, op_id: Array, annotation_id: Array) -> Array:
    """Where the operators and annotations of links are among the events."""
    known, wanted = (
        np.where(op >= 0, 2 * op, 2 * annotation + 1)
        for op, annotation in ((events.op_id, events.annotation_id), (op_id, annotation_id))
    )
    order = np.argsort(known)
    position = np.minimum(np.searchsorted(known[order], wanted), len(order) - 1)
    return np.where(known[order[position]] == wanted, order[position], MISSING)


@dataclass
class _Kind:
    """Steps in which a thread does the same."""

    track: Track
    durations: list[Array] = field(default_factory=list)  # one array per step
    files: set[int] = field(default_factory=set)


def _clean_durations(profile: Profile, clean: Sequence[tuple[int, Profile]]) -> tuple[Array, Array]:
    """Per event the typical duration in clean steps, and the file that it is from (the first, when it is of several).

    Both MISSING where nothing corresponds.
    """
    kinds: dict[int, dict[StepKey, _Kind]] = {}  # by thread of the profile
    for file_id, other in clean:
        _collect(kinds, file_id, other, _same_threads(profile, other))
    typical = np.full(len(profile.events.tid), MISSING, np.int64)
    source = np.full(len(typical), MISSING, np.int32)
    known: dict[tuple[int, StepKey], tuple[Array, Array]] = {}
    for thread, rows in _steps_of(profile):
        track = _without_numbers(profile.recording.track.take(rows))
        key = thread, _key(track)
        if key not in known:
            known[key] = _typical(track, kinds.get(thread, {}))
        typical[rows], source[rows] = known[key]
    return typical, source


def _same_threads(profile: Profile, other: Profile) -> dict[int, int]:
    """Threads of the other profile: those of the same number, which is one process's, else those that do the same."""
    n_common = common_names(profile.recording, other.recording)
    own_tid, other_tid = _tids(profile), _tids(other)
    is_same = own_tid[:, None] == other_tid[None, :]
    rank = np.where(n_common > 0, n_common + is_same * (n_common.max(initial=0) + 1), 0)
    thread_of: dict[int, int] = {}
    for cell in np.argsort(-rank, axis=None, kind="stable").tolist():
        thread, candidate = divmod(cell, len(other_tid))
        if not rank[thread, candidate]:
            break
        if candidate not in thread_of and thread not in thread_of.values():
            thread_of[candidate] = thread
    return thread_of


def _tids(profile: Profile) -> Array:
    _, first = np.unique(profile.recording.thread, return_index=True)
    tids: Array = profile.events.tid[first]
    return tids


def _collect(
    kinds: dict[int, dict[StepKey, _Kind]], file_id: int, profile: Profile, own_thread: dict[int, int]
) -> None:
    for thread, rows in _steps_of(profile):
        if thread not in own_thread:
            continue
        track = _without_numbers(profile.recording.track.take(rows))
        of_thread = kinds.setdefault(own_thread[thread], {})
        kind = of_thread.setdefault(_key(track), _Kind(track))
        kind.durations.append(profile.events.duration_ns[rows])
        kind.files.add(file_id)


def _steps_of(profile: Profile) -> Iterator[tuple[int, Array]]:
    """Each thread in each step: its number, and the rows of what it did. Without marks, all is one step."""
    thread, step = profile.recording.thread, profile.events.step
    order = np.lexsort((step, thread))
    is_border = (np.diff(thread[order]) != 0) | (np.diff(step[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_border) + 1):
        if len(rows):
            yield int(thread[rows[0]]), rows


def _without_numbers(track: Track) -> Track:
    """Autograd counts on: its numbers are never those of another step."""
    return track._replace(seq_id=np.full(track.n_rows, MISSING))


def _key(track: Track) -> StepKey:
    return track.name.tobytes(), track.caller.tobytes(), track.shapes.tobytes()


def _typical(track: Track, kinds: dict[StepKey, _Kind]) -> tuple[Array, Array]:
    """Per element the median duration over clean steps, from steps that do exactly the same where there are some."""
    same = kinds.get(_key(track))
    if same is not None:
        medians = np.median(np.stack(same.durations), axis=0)
        return np.rint(medians).astype(np.int64), np.full(track.n_rows, min(same.files), np.int32)
    names = _key(track)[0]
    alike = sorted(kinds.items(), key=lambda item: (item[0][0] != names, -len(item[1].durations)))
    typical = np.full(track.n_rows, MISSING, np.int64)
    source = np.full(track.n_rows, MISSING, np.int32)
    for _, kind in reversed(alike[:_MAX_KINDS]):  # the most similar one has the last word
        partner = align(track, kind.track)
        if not (partner >= 0).any():
            partner = align_ends(track, kind.track, _MOSTLY)
        paired = np.flatnonzero(partner >= 0)
        if len(paired) < _MOSTLY * max(track.n_rows, kind.track.n_rows):
            continue
        medians = np.median(np.stack(kind.durations), axis=0)
        typical[paired] = np.rint(medians[partner[paired]])
        source[paired] = min(kind.files)
    return typical, source


def recorded_links(trace: Trace) -> Table:
    """The table et_links with all durations as they were recorded, be it while the observer ran."""
    nodes, partners = nodes_of(trace), partners_of(trace)
    columns = {"file_id": nodes.file_id.astype(np.int32), "rank": nodes.rank.astype(np.int32), "node_id": nodes.node_id}
    for name, values in partners.events._asdict().items():
        columns[name] = np.full(len(nodes), MISSING, values.dtype)
        columns[name][partners.node] = values
    how = np.zeros(len(nodes), np.int8)
    how[partners.node] = partners.how
    columns["profile_id"] = columns["profile_id"].astype(np.int32)
    return Table(
        "et_links",
        {
            **columns,
            "how": Text(how, HOW),
            "own_ns": own_time(columns).own_ns,
            # A node exists because the observer saw it: whatever recorded it besides was slowed down by that.
            "is_inflated": how > 0,
            "duration_from": columns["profile_id"],
        },
    )


class OwnTime(NamedTuple):
    """Of every node; both MISSING where it is not linked."""

    own_ns: Array
    caller: Array  # place of the node in whose time it lies on its thread; MISSING at the top as well


def own_time(links: Mapping[str, Array]) -> OwnTime:
    """By time, as a thread's time can be spent only once.

    Parents in the execution trace would not do: gloo runs a call on a thread of its own, at times after the operator
    that asked for it is over.
    """
    rows = np.flatnonzero(links["profile_id"] >= 0)
    threads = [links[name][rows] for name in ("profile_id", "rank", "tid")]
    nesting = nest(_numbered(threads), links["start_ns"][rows], links["duration_ns"][rows])
    ordered = rows[nesting.order]
    own_ns, caller = np.full((2, len(links["profile_id"])), MISSING)
    own_ns[ordered] = nesting.self_ns()
    caller[ordered] = np.where(nesting.parent >= 0, ordered[nesting.parent], MISSING)
    return OwnTime(own_ns, caller)


def _numbered(columns: Sequence[Array]) -> Array:
    """Numbers from 0 for equal rows."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        number = number * len(values) + code
    numbers: Array = np.unique(number, return_inverse=True)[1]
    return numbers
