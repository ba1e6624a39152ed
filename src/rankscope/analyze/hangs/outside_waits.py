"""Which ranks wait for a process outside their own world: in a store, a queue, a remote call, a message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rankscope.analyze.hangs.evidence import frame_location
from rankscope.analyze.hangs.standing import Standing, frames_of, is_current, standing_text, standings_of
from rankscope.analyze.hangs.view import job_view
from rankscope.model.finding import Location
from rankscope.model.source_text import source_line
from rankscope.model.tables import MISSING, Trace

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
        what = _what(trace, standing)
        if what and (view is None or is_current(view, standing)):
            location = frame_location(trace, standing.site) if standing.site != MISSING else None
            waits[rank] = OutsideWait(rank, what, standing_text(trace, standing), location)
    return waits


def _what(trace: Trace, standing: Standing) -> str:
    places = [frame_location(trace, frame) for frame in _inside_user_code(frames_of(trace, standing), standing.site)]
    if any(_OWN_HELPERS.search(place.file) for place in places):
        return ""
    for place in places:
        for pattern, what in _FRAMES:
            if pattern.search(f"{place.file} {place.function}"):
                return what
    line = (source_line(places[-1]) or "") if len(places) == 1 else ""
    calls = [
        f"{call['whose']}.{call['call']}()" for call in _LINE.finditer(line) if not _FOR_THREADS.search(call["whose"])
    ]
    return calls[0] if calls else ""


def _inside_user_code(frames: Sequence[int], site: int) -> Sequence[int]:
    """The innermost frames, down to the user's own line."""
    return frames[: frames.index(site) + 1] if site in frames else frames
