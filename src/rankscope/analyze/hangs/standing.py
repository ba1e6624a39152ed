"""Where each rank's main thread was when its stacks were written, what that adds to a verdict, what it waits for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import frame_location, frames_of_stack, place_text, user_part
from rankscope.analyze.hangs.printed import with_printed
from rankscope.analyze.hangs.signatures import user_points
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.model.finding import Finding, Location, StackGroup, ranks_phrase
from rankscope.model.source_text import source_line
from rankscope.model.tables import MISSING, Trace

_SHORTEST_STAY_NS = 10**9  # two looks at a thread within a moment show the same place in any job
_IN_COLLECTIVE = re.compile(r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)\.py$")
# The collector writes an exception that ends a rank as its type and text; an interrupt is the user's, not the cause.
_RAISED = re.compile(r"(?!KeyboardInterrupt\b|SIG)[A-Za-z_][\w.]*(: |$)|Fatal Python error: ")
_GAVE_UP = re.compile(  # what ends a call that others did not answer
    r"(?i)tim(ed|e) ?-?out|(closed|reset) by peer|broken pipe|connection (was likely )?closed|failed to pass monitored"
    r"|communicator was aborted|remote (process|error)|failed to recv"
)
# A connection that broke ends a call at once: nobody gave up waiting.
_LOST = re.compile(r"(?i)(closed|reset) by peer|broken pipe|connection (was likely )?closed|remote (process|error)")
_TIMED_OUT = re.compile(r"(?i)tim(ed|e) ?-?out")
_OF_PEERS = re.compile(r"Dist(Store|Network|Backend)?Error|/gloo/|monitoredBarrier|c10d|(?i:nccl)")
# Stacks that were written because nothing moved, by the collector's watchdog or by torch's.
STALLS = re.compile(
    r"(?i)no collective|has not (returned|been initialized|ended)|no python code could run"
    r"|time.?out|watchdog|hang|stall"
)
_IN_THREAD = re.compile(r" \(in thread (?P<name>.+)\)$")  # how the collector ends the reason where a helper raised
_HELD = "no Python code could run"  # as the collector says of stacks that C code had to print
_LOADER = re.compile(r"(^|/)torch/utils/data/dataloader\.py$")
_WORKER = "DataLoader worker"
_MAX_PLACES = 4
# Verdicts whose culprits' own calls do not show where they are now.
_ASKS_WHERE = frozenset(("rank-stuck", "rank-lost", "collective-stalled"))
# A stack without native frames ends at the user's line where a store is asked, as that is no Python code: only the line
# itself says so. Nothing else with these names blocks without Python frames, but the queue between two threads.
_LINE = re.compile(r"(?P<whose>[\w.]+(\(\))?)\s*\.\s*(?P<call>get|multi_get|wait|recv\w*|accept)\s*\(")
_FOR_THREADS = re.compile(
    r"(queue|event|lock|condition|barrier|future|proc(ess)?|stream|work|handle|req(uest)?s?)(\(\))?$|\bq$", re.I
)
_FRAMES = (
    (re.compile(r"(TCP|File|Prefix|Hash)Store(::\w+)*::\w*(get|wait)", re.IGNORECASE), "a store"),
    (re.compile(r"(^|/)ray/.* (get|wait|_?get_objects|recv)$"), "ray.get"),
    (
        re.compile(r"(^|/)(multiprocessing/(queues|managers|connection)|torch/multiprocessing/queue)\.py \w+$"),
        "a queue",
    ),
    (
        re.compile(r"(^|/)(torch/distributed/rpc|grpc|zmq|redis|http/client|urllib3?|requests|httpx)(/|\.py).* "),
        "a request",
    ),
)
# These wait for processes or threads of the rank itself; so does Python's own queue.Queue, which is not listed above.
_OWN_HELPERS = re.compile(r"(^|/)(torch/utils/data/|concurrent/futures/|multiprocessing/pool\.py|torch/_inductor/)")


class Standing(NamedTuple):
    """Where one rank's main thread was last seen."""

    rank: int
    time_ns: int
    reason: str
    point: int  # code of the user's part of the stack
    stack: int
    site: int  # the user's innermost frame, MISSING where the thread is in nobody's code
    has_stayed: bool  # the stacks before show it at the same point


def standings_of(trace: Trace) -> dict[int, Standing]:
    return derived(trace, _find_standings)


def endings_of(trace: Trace) -> dict[int, Standing]:
    """The ranks that ended with an exception of their own, and where they raised it."""
    raised = {rank: each for rank, each in standings_of(trace).items() if _RAISED.match(each.reason)}
    mains = {rank: each for rank, each in raised.items() if not _IN_THREAD.search(each.reason)}
    return {rank: each for rank, each in mains.items() if not gave_up(trace, each)}


class ThreadEnd(NamedTuple):
    """A helper thread that an exception ended; the rank continued without it."""

    name: str
    text: str  # `OSError: cannot open shard 3`
    location: Location | None


def thread_end_of(trace: Trace, rank: int) -> ThreadEnd | None:
    table = trace.table("thread_stacks")
    for row in table.take(np.flatnonzero((table.array("rank") == rank) & table.array("is_current"))).rows():
        match = _IN_THREAD.search(row["reason"])
        if match and not row["is_main"]:
            location = frame_location(trace, row["site_id"]) if row["site_id"] != MISSING else None
            return ThreadEnd(match["name"], row["reason"][: match.start()], location)
    return None


def give_up_times(trace: Trace, *, only_waiting: bool = False) -> dict[int, int]:
    """When each rank first raised because others did not answer; `only_waiting`: not where a connection broke."""
    table = trace.table("thread_stacks")
    times: dict[int, int] = {}
    for row in table.take(np.flatnonzero(table.array("is_main"))).rows():
        reason, time_ns = row["reason"], row["time_ns"]
        is_tired = _RAISED.match(reason) and _GAVE_UP.search(reason) and time_ns != MISSING
        has_waited = _TIMED_OUT.search(reason) or not _LOST.search(reason)
        if is_tired and (has_waited or not only_waiting) and (_OF_PEERS.search(reason) or "Timed out" in reason):
            times[row["rank"]] = min(time_ns, times.get(row["rank"], time_ns))
    return times


def victims_of(trace: Trace) -> dict[int, Standing]:
    """The ranks that raised because others did not answer."""
    return {rank: standing for rank, standing in standings_of(trace).items() if gave_up(trace, standing)}


def gave_up(trace: Trace, standing: Standing) -> bool:
    """The rank raised because others did not answer: it is their victim."""
    if not (_RAISED.match(standing.reason) and _GAVE_UP.search(standing.reason)):
        return False
    return bool(_OF_PEERS.search(standing.reason)) or is_in_collective(trace, standing)


def _find_standings(trace: Trace) -> dict[int, Standing]:
    table = trace.table("thread_stacks")
    mains = table.take(np.flatnonzero(table.array("is_main")))
    points = user_points(trace.table("stacks"), trace.table("frames"))
    history: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in mains.rows():
        history[row["rank"]].append(row)
    calls = trace.table("collectives")
    newest_call: dict[int, int] = {}
    for rank, time_ns in zip(calls.array("rank").tolist(), calls.array("created_ns").tolist(), strict=True):
        newest_call[rank] = max(time_ns, newest_call.get(rank, MISSING))
    standings: dict[int, Standing] = {}
    for rank, rows in history.items():
        ordered = sorted(_dated(rows), key=lambda row: (row["time_ns"], row["file_id"], row["section"]))
        last = _telling(ordered, newest_call.get(rank, MISSING))
        earlier = ordered[: ordered.index(last)]
        point = int(points[last["stack_id"]])
        before = [row for row in earlier if last["time_ns"] - row["time_ns"] >= _SHORTEST_STAY_NS]
        has_stayed = bool(before) and int(points[before[-1]["stack_id"]]) == point
        stack, site = last["stack_id"], last["site_id"]
        standings[rank] = Standing(rank, last["time_ns"], last["reason"], point, stack, site, has_stayed)
    return standings


def _telling(rows: list[dict[str, Any]], newest_call_ns: int) -> dict[str, Any]:
    """Of the stacks of one rank, oldest first, those that show why it ended or waited; later ones show it giving up.

    Stacks of a stall that is older than a call of the rank are of another one, which it has left.
    """
    raised = [row for row in rows if _RAISED.match(row["reason"])]
    main = [row for row in raised if not _IN_THREAD.search(row["reason"])]
    exceptions = [row for row in main if not _GAVE_UP.search(row["reason"])]
    stalls = [row for row in rows if STALLS.search(row["reason"]) and row not in raised]
    current = [row for row in stalls if row["time_ns"] >= newest_call_ns]
    return (exceptions[:1] or current[:1] or stalls[-1:] or main[:1] or rows[-1:])[0]


def _dated(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with times: stacks without a time are at least as new as those before them in their file."""
    newest: dict[int, int] = {}
    dated = []
    for row in sorted(rows, key=lambda row: (row["file_id"], row["section"])):
        newest[row["file_id"]] = max(row["time_ns"], newest.get(row["file_id"], MISSING))
        dated.append({**row, "time_ns": newest[row["file_id"]]})
    return dated


def location_of_standing(trace: Trace, standing: Standing) -> Location | None:
    return frame_location(trace, standing.site) if standing.site != MISSING else None


def standing_text(trace: Trace, standing: Standing) -> str:
    """`load_batch (data.py:31), inside read (ssl.py:1130)`."""
    innermost = frames_of(trace, standing)[:1]
    texts = [place_text(frame_location(trace, frame)) for frame in innermost]
    location = location_of_standing(trace, standing)
    if location is None:
        return texts[0] if texts else "a thread without Python frames"
    inside = [text for text in texts if text != place_text(location)]
    return ", inside ".join([place_text(location), *inside])


def is_in_collective(trace: Trace, standing: Standing) -> bool:
    files = trace.table("frames").text("file")
    return any(_IN_COLLECTIVE.search(files[frame]) for frame in frames_of(trace, standing))


def frames_of(trace: Trace, standing: Standing) -> list[int]:
    stacks = trace.table("stacks")
    return frames_of_stack(stacks.array("stack_id"), stacks.array("frame_id"), standing.stack)


def places(standings: Sequence[Standing]) -> list[list[Standing]]:
    """The ranks grouped by the point they are at, the rarest point first."""
    together: dict[int, list[Standing]] = defaultdict(list)
    for standing in sorted(standings):
        together[standing.point].append(standing)
    return sorted(together.values(), key=lambda group: (len(group), group[0].rank))


def standing_stacks(trace: Trace, standings: Sequence[Standing], when: str = "") -> tuple[StackGroup, ...]:
    groups = []
    for group in places(standings)[:_MAX_PLACES]:
        frames, n_hidden = user_part(trace, group[0].stack)
        ranks = tuple(standing.rank for standing in group)
        if frames:
            groups.append(StackGroup(ranks, f"{ranks_phrase(ranks)} {when}" if when else "", frames, n_hidden))
    return tuple(groups)


def with_standing(view: JobView, cause: Cause, finding: Finding) -> Finding:
    """The finding, with where the culprits' main threads are now, if their stacks were collected."""
    trace = view.trace
    if cause.rule not in _ASKS_WHERE:
        return finding
    by_rank = standings_of(trace) if trace.has("thread_stacks") else {}
    current = [by_rank[rank] for rank in cause.ranks if rank in by_rank and is_current(view, by_rank[rank])]
    if not current:
        return with_printed(trace, finding) if cause.rule == "rank-stuck" else finding
    lines = tuple(
        f"the main thread of {ranks_phrase([standing.rank for standing in group])} is in "
        f"{standing_text(trace, group[0])}"
        for group in places(current)[:_MAX_PLACES]
    )
    if cause.rule != "collective-stalled":
        lines += tuple(line for standing in current[:1] for line in beside_lines(trace, standing))
    evidence = msgspec.structs.replace(
        finding.evidence,
        certain=(*finding.evidence.certain, *lines),
        stacks=(*standing_stacks(trace, current, "now"), *finding.evidence.stacks),
    )
    finding = msgspec.structs.replace(finding, evidence=evidence)
    return finding if cause.rule == "collective-stalled" else _placed(trace, places(current)[0][0], finding)


def _placed(trace: Trace, standing: Standing, finding: Finding) -> Finding:
    """The finding about ranks that did not make or record a call, with where they are now as the answer."""
    likely = f"rank {standing.rank} is stuck or busy there"
    advice = f"find out why rank {standing.rank} does not leave {standing_text(trace, standing)}"
    worker = None if _RAISED.match(standing.reason) else worker_site(trace, standing)
    if _HELD in standing.reason:
        likely = f"the call there held Python's lock (GIL): no other thread of rank {standing.rank} could run"
        advice = f"keep {standing_text(trace, standing)} from running that long, or move it to another process"
    elif worker is not None:
        name, location = worker
        likely = f"rank {standing.rank} waits there for its data: {name} is in {place_text(location)}"
        advice = f"find out why {name} of rank {standing.rank} does not leave {place_text(location)}"
        finding = msgspec.structs.replace(finding, peer_location=location_of_standing(trace, standing))
    title, place = finding.title, worker[1] if worker else None
    if _GAVE_UP.search(standing.reason) and is_in_collective(trace, standing):
        likely = f"rank {standing.rank} gave up there, in a call that its recorder does not show: {standing.reason}"
        advice = f"find out which rank should answer {standing_text(trace, standing)}: peer, tag and size must agree"
    elif (ended := thread_end_of(trace, standing.rank)) is not None:
        where = f" in {place_text(ended.location)}" if ended.location else ""
        title = title.replace(
            f"rank {standing.rank} ", f"rank {standing.rank} lost its thread {ended.name} to {ended.text}; it ", 1
        )
        likely = f"rank {standing.rank} waits for thread {ended.name}, which ended{where}: {ended.text}"
        advice = f"fix the exception{where}, and let the program end when the thread fails"
        place = ended.location
    elif _RAISED.match(standing.reason):
        title = title.replace(f"rank {standing.rank} ", f"rank {standing.rank} raised {standing.reason}; it ", 1)
        likely = f"rank {standing.rank} ended there: {standing.reason}"
        advice = f"fix the exception on rank {standing.rank} in {standing_text(trace, standing)}"
    elif is_in_collective(trace, standing):
        likely = f"rank {standing.rank} is waiting there in a call that its recorder does not show"
    return msgspec.structs.replace(
        finding,
        title=title,
        location=place or location_of_standing(trace, standing) or finding.location,
        evidence=msgspec.structs.replace(finding.evidence, likely=(likely, *finding.evidence.likely[1:])),
        help=advice,
    )


def worker_site(trace: Trace, standing: Standing) -> tuple[str, Location] | None:
    """The DataLoader worker that is in the user's code while the main thread waits for the loader."""
    files = trace.table("frames").text("file")
    if not any(_LOADER.search(files[frame]) for frame in frames_of(trace, standing)):
        return None
    workers = [row for row in threads_beside(trace, standing) if row["thread_name"].startswith(_WORKER)]
    return (workers[0]["thread_name"], frame_location(trace, workers[0]["site_id"])) if workers else None


def threads_beside(trace: Trace, standing: Standing) -> list[dict[str, Any]]:
    """The other threads of the rank, and its workers, that were in the user's code at the same moment."""
    table = trace.table("thread_stacks")
    same = (table.array("rank") == standing.rank) & (table.array("time_ns") == standing.time_ns)
    rows = np.flatnonzero(same & ~table.array("is_main") & (table.array("site_id") != MISSING))
    return [row for row in table.take(rows).rows() if row["thread_name"] != "MainThread"]  # another one trains


def beside_lines(trace: Trace, standing: Standing) -> list[str]:
    """Where other threads are: one of them may hold what the main thread waits for."""
    threads = threads_beside(trace, standing)[:_MAX_PLACES]
    texts = [(row["thread_name"] or "(unnamed)", frame_location(trace, row["site_id"])) for row in threads]
    return [f"{_thread_text(name)} of rank {standing.rank} is in {place_text(location)}" for name, location in texts]


def _thread_text(name: str) -> str:
    return name if name.startswith(_WORKER) else f"thread {name}"


def is_current(view: JobView, standing: Standing) -> bool:
    """False if the stack is older than the rank's newest call: the rank has moved since."""
    rows = view.rows_of(standing.rank)
    newest = int(view.calls.array("created_ns")[rows[-1]]) if len(rows) else MISSING
    return standing.time_ns == MISSING or standing.time_ns >= newest


class OutsideWait(NamedTuple):
    rank: int
    what: str  # `a store`, `weights_store.get()`
    text: str  # `wait_for_weights (rollout.py:31)`
    location: Location | None


def outside_waits(trace: Trace) -> dict[int, OutsideWait]:
    """By rank, from the newest stacks of the main threads."""
    if not trace.has("thread_stacks"):
        return {}
    view = job_view(trace) if trace.has("collectives") else None
    waits: dict[int, OutsideWait] = {}
    for rank, standing in standings_of(trace).items():
        what = _awaited(trace, standing)
        if what and (view is None or is_current(view, standing)):
            location = frame_location(trace, standing.site) if standing.site != MISSING else None
            waits[rank] = OutsideWait(rank, what, standing_text(trace, standing), location)
    return waits


def _awaited(trace: Trace, standing: Standing) -> str:
    locations = [frame_location(trace, frame) for frame in _inside_user_code(frames_of(trace, standing), standing.site)]
    if any(_OWN_HELPERS.search(each.file) for each in locations):
        return ""
    for location in locations:
        for pattern, what in _FRAMES:
            if pattern.search(f"{location.file} {location.function}"):
                return what
    line = (source_line(locations[-1]) or "") if len(locations) == 1 else ""
    calls = [
        f"{call['whose']}.{call['call']}()" for call in _LINE.finditer(line) if not _FOR_THREADS.search(call["whose"])
    ]
    return calls[0] if calls else ""


def _inside_user_code(frames: Sequence[int], site: int) -> Sequence[int]:
    """The innermost frames, down to the user's own line."""
    return frames[: frames.index(site) + 1] if site in frames else frames
