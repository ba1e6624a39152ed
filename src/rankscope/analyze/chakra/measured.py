"""When the ranks of a job began and ended as measured, where their clocks can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.analyze.chakra.columns import RankGraph
from rankscope.model.chakra import METADATA

Window = tuple[int, int]  # first begin and last end


def window_of(graph: RankGraph) -> Window | None:
    """As written; nodes that are no work, or have no time, say nothing about it."""
    is_timed = (graph.type != METADATA) & ((graph.start_ns > 0) | (graph.duration_ns > 0))
    if not is_timed.any() or not graph.start_ns.any():
        return None
    starts = graph.start_ns[is_timed]
    return int(starts.min()), int((starts + graph.duration_ns[is_timed]).max())


def are_comparable(windows: Sequence[Window | None]) -> bool:
    """Ranks of one job run side by side: where they do not, their clocks have nothing to do with each other."""
    known = [window for window in windows if window is not None]
    return len(known) == len(windows) > 0 and max(begin for begin, _ in known) < min(end for _, end in known)


def begins_of(windows: Sequence[Window | None]) -> list[int]:
    """How much later than the first rank each one started; all at once if that is unknown."""
    known = [window for window in windows if window is not None]
    if not are_comparable(windows):
        return [0] * len(windows)
    first = min(begin for begin, _ in known)
    return [begin - first for begin, _ in known]


def span_of(windows: Sequence[Window | None]) -> int:
    """From the first begin to the last end; of clocks that cannot be compared, the longest of one rank."""
    known = [window for window in windows if window is not None]
    if not are_comparable(known):
        return max((end - begin for begin, end in known), default=0)
    return max(end for _, end in known) - min(begin for begin, _ in known)
