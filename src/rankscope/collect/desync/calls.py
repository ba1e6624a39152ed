"""The calls of process groups that the hooks see: a ring of the newest ones, and what is known of each.

All of it runs in the job's threads, between its own lines: it takes numbers and references, and leaves text, files and
stores to others. No tensor and no handle is kept alive.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from sys import _getframe
from threading import Lock, get_ident
from time import time_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import ref

from rankscope.collect.desync.groups import Group

_MAX_FRAMES = 32


class Operation(NamedTuple):
    """A method of a process group: its name in a Flight Recorder dump, and where its arguments are."""

    name: str
    outputs: int | None = None
    inputs: int | None = None
    peer: int | None = None  # the position of the other rank, in the group's own numbers
    is_p2p: bool = False


_ALL_GATHER_SINGLE = Operation("_all_gather_base", 0, 1)
_ALL_GATHER_SINGLES = Operation("all_gather_into_tensor_coalesced", 0, 1)
_REDUCE_SCATTER_SINGLE = Operation("_reduce_scatter_base", 0, 1)
_REDUCE_SCATTER_SINGLES = Operation("reduce_scatter_tensor_coalesced", 0, 1)
_ALL_TO_ALL_SINGLE = Operation("all_to_all_single", 0, 1)
_MONITORED_BARRIER = Operation("barrier")
COALESCED = Operation("coalesced")
# By the names of the methods, those of older and newer versions of torch.
OPERATIONS = {
    "allreduce": Operation("all_reduce", 0, 0),
    "allreduce_coalesced": Operation("allreduce_coalesced", 0, 0),
    "broadcast": Operation("broadcast", 0, 0),
    "reduce": Operation("reduce", 0, 0),
    "allgather": Operation("all_gather", 0, 1),
    "allgather_coalesced": Operation("all_gather", 0, 1),
    "_allgather_base": _ALL_GATHER_SINGLE,
    "all_gather_single": _ALL_GATHER_SINGLE,
    "allgather_into_tensor_coalesced": _ALL_GATHER_SINGLES,
    "all_gather_single_coalesced": _ALL_GATHER_SINGLES,
    "gather": Operation("gather", 0, 1),
    "scatter": Operation("scatter", 0, 1),
    "reduce_scatter": Operation("reduce_scatter", 0, 1),
    "_reduce_scatter_base": _REDUCE_SCATTER_SINGLE,
    "reduce_scatter_single": _REDUCE_SCATTER_SINGLE,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTER_SINGLES,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTER_SINGLES,
    "alltoall": Operation("all_to_all", 0, 1),
    "alltoall_base": _ALL_TO_ALL_SINGLE,
    "all_to_all_single": _ALL_TO_ALL_SINGLE,
    "barrier": Operation("barrier"),
    "monitored_barrier": _MONITORED_BARRIER,
    "send": Operation("send", 0, 0, 1, is_p2p=True),
    "recv": Operation("recv", 0, 0, 1, is_p2p=True),
    "recv_anysource": Operation("recvAnySource", 0, 0, is_p2p=True),
}


# Plain tuples, of which the garbage collector lets go at first sight. Thousands of calls are kept: if it had to visit
# many objects of each, collecting would cost more than all the rest here.
Shape = tuple[Sequence[int], object]  # sizes and dtype, both torch's own, or a list and a name
Frames = tuple[CodeType | int, ...]  # innermost first: code, offset of the instruction, code, offset, ...


class Call:
    """One call. `ended_ns` is 0 until it has ended, `error` says how it failed."""

    __slots__ = (
        "created_ns",
        "ended_ns",
        "error",
        "frames",
        "group",
        "inputs",
        "is_on_cpu",
        "members",
        "number",
        "op_id",
        "operation",
        "outputs",
        "p2p_seq",
        "peer",
        "seq",
        "thread",
        "work",
    )

    def __init__(self, group: Group, operation: Operation, number: int) -> None:
        self.group = group
        self.operation = operation
        self.number = number
        self.seq = self.p2p_seq = self.op_id = 0
        self.peer = -1
        self.inputs: tuple[Shape, ...] = ()
        self.outputs: tuple[Shape, ...] = ()
        self.frames: Frames = ()
        self.is_on_cpu = True
        self.members: Sequence[Call] = ()  # the calls that this one sends off together
        self.thread = 0
        self.work: Callable[[], Any] | None = None
        self.error = ""
        self.ended_ns = 0
        self.created_ns = time_ns()

    @property
    def is_pending(self) -> bool:
        return not self.ended_ns and not self.error


class Calls:
    """The newest calls of all groups. `on_timeout` is called, in the failing thread, with a call that timed out."""

    def __init__(self, n_most: int, on_timeout: Callable[[Call], None]) -> None:
        self.ring: deque[Call] = deque(maxlen=max(n_most, 1))
        self.seen_by_torch_only: tuple[Call, ...] = ()  # those of callers in C++, which come by no hook
        self.read_torch_ns = 0  # when torch's recorder was last asked about them
        self.groups: list[Group] = []
        self.last_end_ns = 0
        self.n_unnoted = 0  # calls that something about them kept from being noted
        self._on_timeout = on_timeout
        self._by_pg: dict[int, Group] = {}
        self._by_work: dict[int, Call] = {}
        self._numbers = itertools.count()
        self._lock = Lock()

    def group_of(self, pg: Any) -> Group | None:
        """None: the group is not ready, or torch has not given it a name."""
        group = self._by_pg.get(id(pg))
        if group is not None:
            return group
        key = id(pg)
        with self._lock:
            try:
                group = Group(pg, len(self.groups), lambda _: _forget(self._by_pg, key))
            except Exception:
                return None
            self._by_pg[key] = group
            self.groups.append(group)
        return group

    def begin(self, pg: Any, operation: Operation, arguments: Sequence[Any]) -> Call | None:
        """Called before the call is made. None: its group is unknown."""
        group = self._by_pg.get(id(pg)) or self.group_of(pg)
        if group is None:
            return None
        call = Call(group, operation, next(self._numbers))
        if operation.outputs is not None and len(arguments) > operation.outputs:
            call.outputs, call.is_on_cpu = _shapes(arguments[operation.outputs])
        if operation.inputs == operation.outputs:
            call.inputs = call.outputs
            if not call.outputs:
                call.is_on_cpu = group.is_on_cpu
        elif operation.inputs is not None and len(arguments) > operation.inputs:
            call.inputs, call.is_on_cpu = _shapes(arguments[operation.inputs])
        if operation.peer is not None and len(arguments) > operation.peer:
            call.peer = arguments[operation.peer]
        _number(call, pg)
        call.thread = get_ident()
        call.frames = stack_above(2)
        self.ring.append(call)
        group.latest = call
        return call

    def returned(self, call: Call, work: Any) -> None:
        """The call has been made. Without a handle it is over, unless a device is still at work on it."""
        group, operation = call.group, call.operation
        if operation.is_p2p:
            group.transferred(call.seq)
        elif operation is _MONITORED_BARRIER:
            group.settle(call.seq + 1)  # gloo takes two of the numbers that its recorder gives to calls
        if group.coalesced is not None and operation is not COALESCED:
            group.coalesced.append(call)
        elif work is not None:
            call.work = ref(work)
            self._by_work[id(work)] = call
        elif call.is_on_cpu:
            self.end(call)

    def waited(self, work: Any) -> None:
        """The job has waited for a handle. On a device that proves nothing yet.

        A call that is known by the identity of another handle had one that is gone by now: it has ended as well.
        """
        call = self._by_work.pop(id(work), None)
        if call is None:
            return
        if call.is_on_cpu:
            self.end(call)
        else:
            self._by_work[id(work)] = call

    def wait_failed(self, work: Any, error: BaseException) -> None:
        call = self._by_work.get(id(work))
        if call is not None and call.work is not None and call.work() is work:
            del self._by_work[id(work)]
            self.failed(call, error)

    def failed(self, call: Call, error: BaseException) -> None:
        call.error = f"{type(error).__name__}: {error}"[:500] or "failed"
        if is_timeout(call.error):
            try:
                self._on_timeout(call)
            except Exception:  # the job gets its own error, not ours
                call.error += " (and no report could be made)"

    def end(self, call: Call, ended_ns: int = 0) -> None:
        call.ended_ns = ended_ns = ended_ns or time_ns()
        if call.members:
            for member in call.members:
                member.ended_ns = ended_ns
        if ended_ns > self.last_end_ns:
            self.last_end_ns = ended_ns
        group = call.group
        if not call.operation.is_p2p and (group.finished is None or group.finished.seq <= call.seq):
            group.finished = call

    def start_coalescing(self, pg: Any) -> None:
        group = self.group_of(pg)
        if group is not None:
            group.coalesced = []

    def end_coalescing(self, pg: Any) -> Call | None:
        """What is called here sends off all calls since start_coalescing: it takes their number, and they its end."""
        group = self.group_of(pg)
        if group is None or group.coalesced is None:
            return None
        call = Call(group, COALESCED, next(self._numbers))
        call.members, group.coalesced = group.coalesced, None
        call.is_on_cpu = group.is_on_cpu
        call.thread, call.frames = get_ident(), stack_above(2)
        if call.members:
            call.seq, call.p2p_seq = call.members[-1].seq, call.members[-1].p2p_seq
        call.op_id = group.n_ops
        self.ring.append(call)
        group.latest = call
        return call

    def poll(self) -> None:
        """Ends the calls whose handles are done or gone. Handles of devices are not asked: while a graph is captured
        that would spoil it.
        """
        for key, call in tuple(self._by_work.items()):
            work = call.work() if call.work is not None else None
            if work is not None and not (call.is_on_cpu and work.is_completed()):
                continue
            self._by_work.pop(key, None)
            if not call.is_on_cpu or not call.is_pending:
                continue
            call.error = _failure(work)[:500] if work is not None else ""
            if not call.error:
                self.end(call)

    def all(self) -> list[Call]:
        """Oldest first."""
        return sorted((*tuple(self.ring), *self.seen_by_torch_only), key=lambda call: call.created_ns)

    def pending(self) -> list[Call]:
        return [call for call in self.all() if call.is_pending]

    def waiting(self) -> list[Call]:
        """The calls that have not ended well, oldest first: they wait, or gave up waiting."""
        return [call for call in self.all() if not call.ended_ns]


def _failure(work: Any) -> str:
    """How a handle that is done has failed. Asking itself would print a warning into the job's output; its future does
    not. Handles without a future are done only when they have been waited for: a failure was seen there.
    """
    try:
        future = work.get_future()
    except Exception:
        return ""
    try:
        future.value()
    except Exception as error:
        return str(error) or "failed"
    return ""


def _forget(groups: dict[int, Group], key: int) -> None:
    groups.pop(key, None)  # another group may get the same identity later


def is_timeout(text: str) -> bool:
    lower = text.lower()
    return "timed out" in lower or "timeout" in lower or "time-out" in lower


def _number(call: Call, pg: Any) -> None:
    """The numbers by which the ranks' calls are matched, the same that torch's recorder gives."""
    group = call.group
    try:
        newest = pg._get_sequence_number_for_group() + group.n_uncounted if group.counts_itself else group.n_collectives
    except Exception:  # this backend does not number its calls
        group.counts_itself = False
        newest = group.n_collectives
    group.n_ops += 1
    call.op_id = group.n_ops
    call.seq = newest
    if call.operation.is_p2p:
        group.n_p2p += not group.coalesced
    elif group.coalesced:
        call.seq = group.coalesced[0].seq
    else:
        call.seq += 1
        group.n_collectives += 1
    call.p2p_seq = group.n_p2p


def _shapes(value: Any) -> tuple[tuple[Shape, ...], bool]:
    """The shapes of a tensor, a list of tensors or a list of such lists; and whether they are in host memory."""
    if type(value) is list and len(value) == 1 and type(tensor := value[0]) is not list:  # nearly always
        return ((tensor.shape, tensor.dtype),), tensor.is_cpu
    tensors: Sequence[Any] = value if isinstance(value, (list, tuple)) else (value,)
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    elif tensors and isinstance(tensors[0], (list, tuple)):
        tensors = [tensor for some in tensors for tensor in some]
    if len(tensors) == 1:
        tensor = tensors[0]
        return ((tensor.shape, tensor.dtype),), tensor.is_cpu
    shapes = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
    return shapes, not tensors or tensors[0].is_cpu


def stack_above(depth: int) -> Frames:
    """Where the call comes from. Lines are looked up on demand: that takes longer than the rest."""
    frame: FrameType | None = _getframe(depth).f_back
    frames: list[CodeType | int] = []
    while frame is not None and len(frames) < 2 * _MAX_FRAMES:
        frames.append(frame.f_code)
        frames.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(frames)
