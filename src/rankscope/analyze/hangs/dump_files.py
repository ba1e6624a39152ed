"""What the list of files tells about the ranks: who was alive at the end, and whose dump is cut short."""

from __future__ import annotations

from rankscope.model.schema_recorder import EARLIER_MOMENT, MAY_HOLD_MORE
from rankscope.model.tables import Trace

# Sources that a rank writes while it trains: they neither tell its last calls nor that it was alive at the end.
_WRITTEN_BEFORE = frozenset(("kineto", "nsys", "execution_trace", "compile_log", "torch_logs", "metrics", "manifest"))
_NO_DUMPS = _WRITTEN_BEFORE | {"thread_stacks", "desync"}


def ranks_alive(trace: Trace) -> frozenset[int]:
    """Ranks that wrote something when the job hung, readable or not."""
    return _ranks(trace, ("read", "damaged", "duplicate"), _WRITTEN_BEFORE)


def ranks_stale(trace: Trace) -> frozenset[int]:
    """Ranks whose only dump is of another moment or attempt."""
    return _ranks(trace, ("stale",), _NO_DUMPS) - _ranks(trace, ("read", "damaged", "duplicate"), _NO_DUMPS)


def ranks_gone_on(trace: Trace) -> frozenset[int]:
    """Ranks whose dump is older than the others': these show that it took part in calls which it does not have yet."""
    files = trace.table("files")
    columns = zip(files.array("rank").tolist(), files.text("problem").tolist(), strict=True)
    return frozenset(rank for rank, problem in columns if problem.startswith(EARLIER_MOMENT))


def ranks_cut(trace: Trace) -> frozenset[int]:
    """Ranks of which only the older part of the dump could be read, and no other dump is whole."""
    return _ranks(trace, ("damaged",), _NO_DUMPS) - _ranks(trace, ("read",), _NO_DUMPS)


def may_hold_more(trace: Trace) -> list[str]:
    """Archives and folders that could not be looked into to their end: any rank's dump may be in there."""
    files = trace.table("files")
    columns = zip(files.text("path").tolist(), files.text("problem").tolist(), strict=True)
    return [path for path, problem in columns if problem.endswith(MAY_HOLD_MORE)]


def _ranks(trace: Trace, statuses: tuple[str, ...], without: frozenset[str]) -> frozenset[int]:
    files = trace.table("files")
    columns = (files.array("rank").tolist(), files.text("source").tolist(), files.text("status").tolist())
    return frozenset(
        rank for rank, source, status in zip(*columns, strict=True) if status in statuses and source not in without
    )
