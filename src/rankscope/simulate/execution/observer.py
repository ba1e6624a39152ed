"""The observer of one rank: it sees every operator and annotation come and go, and notes a node when one ends."""

from __future__ import annotations

import json
from itertools import count
from math import prod
from typing import NamedTuple

from rankscope.simulate.execution.memory import ITEM_BYTES, Memory, View, contiguous_strides
from rankscope.simulate.execution.nodes import (
    BACKWARD_SCOPE,
    FUNCTION_SCOPE,
    GROUPS_NAME,
    PROCESS_NAME,
    ROOT_ID,
    THREAD_NAME,
    USER_SCOPE,
    Argument,
    Communication,
    Device,
    Node,
    Tensor,
)
from rankscope.simulate.execution.schemas import OP_SCHEMAS
from rankscope.simulate.execution.tensors import ACCUMULATE, EVALUATE, StepTensors, Value, Values
from rankscope.simulate.profiler.collective_args import start_and_stride
from rankscope.simulate.profiler.events import Camera
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.numbering import first_record_id
from rankscope.simulate.profiler.program import MAIN_THREAD, Exchange, Span
from rankscope.simulate.profiler.run import RankRun
from rankscope.simulate.profiler.schedule import STEP_NAME


class Observer:
    """Numbers nodes, tensors and storages from one counter, each when it is first seen."""

    def __init__(self, mesh: Mesh, camera: Camera) -> None:
        self.mesh = mesh
        self.camera = camera
        self.memory = Memory(mesh.spec)
        self.device = Device(f"cuda:{camera.device}")
        self.nodes: list[Node] = []
        self._ids = count(ROOT_ID + 1)
        self._threads: dict[int, int] = {}

    def new_id(self) -> int:
        return next(self._ids)

    def node_of_thread(self, thread: int) -> int:
        if thread not in self._threads:
            self._threads[thread] = self.new_id()
            self.nodes.append(Node(self._threads[thread], THREAD_NAME, ROOT_ID, thread=ordinal_of(thread)))
        return self._threads[thread]

    def start(self, record_id: int) -> None:
        """Note the groups that there are; profilers, which start later, never see that."""
        groups = self.mesh.of_rank[self.camera.rank]
        described = [
            {
                "pg_name": group.name,
                "pg_desc": group.desc,
                "backend_config": "cuda:nccl",
                "ranks": [] if group is self.mesh.world else list(group.ranks),
                "group_size": len(group.ranks),
                "group_count": len(groups),
            }
            for group in groups
        ]
        parent = self.node_of_thread(MAIN_THREAD)
        node = Node(self.new_id(), GROUPS_NAME, parent, record_id, thread=ordinal_of(MAIN_THREAD))
        self.nodes.append(node._replace(inputs=(json.dumps(described),)))

    def finish(self) -> tuple[Node, ...]:
        return (*self.nodes, Node(ROOT_ID, PROCESS_NAME, ROOT_ID))

    def see(self, value: Value) -> Argument:
        if isinstance(value, View):
            return self.see_tensor(value)
        if isinstance(value, list):
            return [self.see(each) for each in value]
        return value

    def see_tensor(self, view: View) -> Tensor:
        buffer = view.buffer
        view.tensor_id = view.tensor_id or self.new_id()
        buffer.storage_id = buffer.storage_id or self.new_id()
        return Tensor(
            tensor_id=view.tensor_id,
            storage_id=buffer.storage_id,
            offset=view.offset,
            n_elements=prod(view.shape),
            item_bytes=ITEM_BYTES[buffer.dtype],
            device="cpu" if buffer.is_on_host else self.device,
            shape=view.shape,
            strides=view.strides or contiguous_strides(view.shape),
            dtype=buffer.dtype,
        )


def ordinal_of(thread: int) -> int:
    """Observers count threads from 1."""
    return thread + 1


class _Call(NamedTuple):
    span: Span
    node: Node
    """Without its outputs as yet."""


class StepObserver:
    """One step of a rank, seen by its observer."""

    def __init__(self, observer: Observer, run: RankRun, step: int) -> None:
        self.observer = observer
        self.run = run
        self.step = step
        camera = observer.camera
        self.tensors = StepTensors(observer.memory, run.program, observer.device)
        self.first_record_id = first_record_id(camera.seed, camera.rank, len(run.program.spans), step)
        self.open: list[_Call] = []

    def watch(self) -> None:
        shown = self.observer.camera.shown | {self.run.pause}
        for index, span in enumerate(self.run.program.spans):
            if span.category != "python_function" and span.needs <= shown:
                self._return_until(span.first_tick)
                self._call(index, span)
        self._return_until(len(self.run.clock))

    def _call(self, index: int, span: Span) -> None:
        observer = self.observer
        parent_id = self._innermost(span.thread)
        node = Node(
            node_id=observer.new_id(),
            name=f"{span.name}{self.step}" if span.name == STEP_NAME else span.name,
            parent_id=parent_id,
            record_id=self.first_record_id + 1 + index,
            sequence=self._sequence(span),
            scope=_scope_of(span),
            thread=ordinal_of(span.thread),
            op_schema=OP_SCHEMAS.get(span.name, ""),
        )
        if node.scope == BACKWARD_SCOPE:
            node = node._replace(fw_thread=ordinal_of(MAIN_THREAD), fw_parent_id=self._innermost(MAIN_THREAD))
        inputs = self.tensors.called(span, self._peer(index, span))
        self.open.append(_Call(span, node._replace(inputs=self._see(inputs), communication=self._communication(span))))

    def _return_until(self, tick: int) -> None:
        while self.open and self.open[-1].span.end_tick <= tick:
            span, node = self.open.pop()
            outputs = self.tensors.returned(span)
            self.observer.nodes.append(node._replace(outputs=self._see(outputs)))

    def _see(self, values: Values) -> tuple[Argument, ...]:
        return tuple(self.observer.see(value) for value in values)

    def _innermost(self, thread: int) -> int:
        calls = (call.node.node_id for call in reversed(self.open) if call.span.thread == thread)
        return next(calls, None) or self.observer.node_of_thread(thread)

    def _sequence(self, span: Span) -> int:
        if span.sequence < 0 or span.name.startswith(EVALUATE):
            return -1
        return self.step * self.run.program.n_sequences + span.sequence

    def _peer(self, index: int, span: Span) -> int:
        """What a transfer gets: the other end's rank in the group."""
        if not span.name.startswith("c10d::"):
            return 0
        exchange = self.run.program.spans[index + 1].exchange
        return 0 if exchange is None else self._rank_in_group(exchange)

    def _rank_in_group(self, exchange: Exchange) -> int:
        mesh, rank = self.observer.mesh, self.observer.camera.rank
        return mesh.group(rank, exchange).ranks.index(mesh.peer(rank, exchange))

    def _communication(self, span: Span) -> Communication | None:
        exchange, exchanged = span.exchange, self.tensors.exchanged
        if exchange is None or exchanged is None:
            return None
        mesh = self.observer.mesh
        group = mesh.group(self.observer.camera.rank, exchange)
        first_rank, stride = start_and_stride(group)
        return Communication(
            op=exchange.op,
            tensor=self.observer.see_tensor(exchanged),
            dtype="BFloat16",
            sequence=mesh.sequence_number(exchange, self.run.program, self.step),
            is_p2p=exchange.is_p2p,
            rank=self._rank_in_group(exchange),
            group_name=group.name,
            group_desc=group.desc,
            first_rank=first_rank,
            stride=stride,
            group_size=len(group.ranks),
        )


def _scope_of(span: Span) -> int:
    if span.category == "user_annotation":
        return USER_SCOPE
    is_backward = span.thread != MAIN_THREAD and (span.is_linked or span.name == ACCUMULATE)
    return BACKWARD_SCOPE if is_backward else FUNCTION_SCOPE
