"""The part behind `--desync`: records the calls of all process groups, keeps this rank's position in the store, and
writes the calls and, when the job hangs, the report.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from rankscope.collect.desync import layout, recorded
from rankscope.collect.desync.calls import Call, Calls, is_timeout, stack_above
from rankscope.collect.desync.connections import Connections
from rankscope.collect.desync.hang_report import Captured, failed_stack, hang_report
from rankscope.collect.desync.hooks import Hooks
from rankscope.collect.desync.writer import Writer
from rankscope.collect.part import Part
from rankscope.collect.run import EXIT
from rankscope.collect.telling import tell

if TYPE_CHECKING:
    from rankscope.collect.run import Run

_STALLED = "no collective has finished"
_MAX_TIMEOUTS = 3  # a job that catches its time-outs may have many
_MAX_TEXTS = 8
_HOLD_SECONDS = 5.0


class Tracker(Part):
    NAME: ClassVar[str] = "desync"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._calls = Calls(run.settings.ring_size, self._timed_out)
        self._hooks = Hooks(self._calls)
        self._connections = Connections()
        self._speaker = layout.Rank(run.rank, run.world_size, run.host, os.getpid())
        self._writer: Writer | None = None
        self._captured: Captured | None = None
        self._n_timeouts = 0
        self._told = threading.Event()
        self._texts: list[str] = []
        self._failures_told: frozenset[Call] = frozenset()
        self._newest: dict[int, int] = {}
        self._moved_at: float | None = None

    def start(self) -> None:
        from torch import distributed

        if not distributed.is_available():
            self.run.problem(
                self.NAME, "this torch was built without torch.distributed", "install a build with torch.distributed"
            )
            return
        self._hooks.install()

    def joined(self) -> None:
        self._know_groups()
        if self._writer is None:
            self._writer = Writer(self._calls, self._connections, self._speaker, self._note)
            self._writer.start()

    def tick(self) -> None:
        self._calls.poll()
        for group in tuple(self._calls.groups):
            newest = group.newest_seq()
            if newest != self._newest.get(group.local_id, newest):
                self._moved_at = time.monotonic()
            self._newest[group.local_id] = newest

    def last_progress(self) -> float | None:
        """When a call last ended, or a group moved on to its next one, in seconds of time.monotonic()."""
        ended_ns = self._calls.last_end_ns
        ended = time.monotonic() - (time.time_ns() - ended_ns) / 1e9 if ended_ns else None
        return max((moment for moment in (ended, self._moved_at) if moment is not None), default=None)

    def to_bytes(self) -> bytes:
        """The dump, as the file holds it; nothing if there are no peers and no calls."""
        self._know_groups()
        self._calls.poll()
        if self._is_behind():
            recorded.adopt(self._calls)
        is_alone = all(group.size == 1 for group in self._calls.groups)
        if is_alone and not self._calls.all():
            return b""
        return layout.to_bytes(self._calls, self._speaker)

    def dump(self, reason: str) -> None:
        try:
            dumped = self.to_bytes()
            if dumped:
                name = f"rankscope_trace_rank_{self.run.rank}"
                self.run.publish(self.NAME, name, lambda path: _write(path, dumped), replace=True)
                if reason != EXIT and self.run.world_size > 1:
                    self._report(reason)
        finally:
            self._told.set()

    def close(self) -> None:
        self._hooks.remove()
        if self._writer is not None:
            self._writer.stop()
        self._connections.drop()

    def _report(self, reason: str) -> None:
        waiting = frozenset(call for call in self._calls.waiting() if call.error)
        if waiting and waiting <= self._failures_told and not self._calls.pending():
            return  # the time-out that now ends the job
        self._failures_told = waiting
        if self._writer is not None:
            self._writer.hurry()
        report = hang_report(self._calls, self._connections, self._speaker, reason)
        self._keep(report.text)
        is_hanging = _STALLED in reason or is_timeout(reason)
        if is_hanging and report.is_first and self._calls.waiting():
            tell(report.text)
        self._told.set()
        captured, self._captured = self._captured, None
        stack = failed_stack(captured, self.run.rank) if captured is not None and report.is_first else ""
        if stack:
            self._keep(stack)

    def _keep(self, text: str) -> None:
        self._texts = [*self._texts, text][-_MAX_TEXTS:]
        content = "\n".join(self._texts).encode("utf-8", "replace")
        self.run.publish(self.NAME, f"desync_{self.run.rank}.txt", lambda path: _write(path, content), replace=True)

    def _timed_out(self, call: Call) -> None:
        """In the failing thread, which is held until the report is made: the job may not live much longer."""
        if self._n_timeouts >= _MAX_TIMEOUTS or self.run.has_ended:
            return
        self._n_timeouts += 1
        self._captured = Captured(call, stack_above(0), _native_stack())
        self._told.clear()
        where = f"{layout.op_name(call)} #{call.seq} of group {call.group.name}"
        self.run.request_dump(f"timeout of {where}: {call.error.splitlines()[0]}")
        self._told.wait(_HOLD_SECONDS)

    def _know_groups(self) -> None:
        """Unused groups are reported as well: other ranks may wait for their members."""
        from torch.distributed import distributed_c10d

        for pg in tuple(distributed_c10d._world.pg_map):
            self._calls.group_of(pg)

    def _is_behind(self) -> bool:
        """Whether calls were made that no hook has seen, or wait on a device, where only torch sees their ends."""
        is_short = any(group.newest_seq() > group.n_collectives for group in self._calls.groups)
        return is_short or any(call.is_pending and not call.is_on_cpu for call in tuple(self._calls.ring))

    def _note(self, problem: str) -> None:
        hint = "the job continues; reports lack the states of the ranks that could not reach the store"
        self.run.problem(self.NAME, problem, hint)


def _write(path: Any, content: bytes) -> None:
    path.write_bytes(content)


def _native_stack() -> Any:
    """The C++ stack of this thread; None if torch cannot capture it."""
    try:
        from torch._C._profiler import gather_traceback

        return gather_traceback(python=False, script=True, cpp=True)
    except Exception:
        return None
