"""What a simulated execution trace is made of, whichever version of its layout it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

FUNCTION_SCOPE = 0
BACKWARD_SCOPE = 1
USER_SCOPE = 7

ROOT_ID = 1
PROCESS_NAME = "[pytorch|profiler|execution_trace|process]"
THREAD_NAME = "[pytorch|profiler|execution_trace|thread]"
GROUPS_NAME = "## process_group:init ##"


class Device(str):
    """The name of a device, which has a type of its own among the arguments."""

    __slots__ = ()


@dataclass(frozen=True)
class Opaque:
    """An argument that the observer cannot look into, such as a process group."""


class Tensor(NamedTuple):
    tensor_id: int
    storage_id: int
    offset: int
    n_elements: int
    item_bytes: int
    device: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def value(self) -> tuple[object, ...]:
        return self[:6]


Argument: TypeAlias = "Tensor | Device | Opaque | str | int | float | list[Argument] | tuple[Argument, ...] | None"


class Communication(NamedTuple):
    """What record_param_comms says about a call; each version of the layout has its own way to say it."""

    op: str
    tensor: Tensor
    dtype: str
    """As torch names it, not C++."""
    sequence: int
    is_p2p: bool
    rank: int
    """Inside the group: the own one in a collective, the peer's in a transfer."""
    group_name: str
    group_desc: str
    first_rank: int
    stride: int
    group_size: int


class Node(NamedTuple):
    node_id: int
    name: str
    parent_id: int
    record_id: int = 0
    fw_parent_id: int = 0
    sequence: int = -1
    scope: int = USER_SCOPE
    thread: int = 0
    fw_thread: int = 0
    op_schema: str = ""
    inputs: tuple[Argument, ...] = ()
    outputs: tuple[Argument, ...] = ()
    communication: Communication | None = None


@dataclass(frozen=True)
class ExecutionTrace:
    pid: int
    time: str
    start_ms: int
    finish_ms: int
    nodes: tuple[Node, ...]
    """In the order of the file, which is that of their ends."""
