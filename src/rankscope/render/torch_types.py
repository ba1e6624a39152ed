"""The row types of torch's analyzer of dumps, by name only: torch itself is not imported.

A pickle refers to a class by its module and name. These classes stand in for torch's while rows are made; in the file
they carry torch's module, so that loading it with torch installed yields torch's own.
"""

from __future__ import annotations

import pickle
import sys
from enum import Enum, auto
from typing import IO, Any, Generic, NamedTuple, TypeVar, get_type_hints

TORCH_MODULE = "torch.distributed.flight_recorder.components.types"
_PROTOCOL = 4

T = TypeVar("T")


class Ref(Generic[T]):
    pass


class TypeInfo(NamedTuple):
    name: str
    fields: list[tuple[str, Any]]


class MatchState(Enum):
    FULLY_MATCHED = auto()
    COLLECTIVE_TYPE_MISMATCH = auto()
    SIZE_OR_SYNTAX_MISMATCH = auto()
    COLLECTIVE_STATE_MISMATCH = auto()
    COLLECTIVE_DTYPE_MISMATCH = auto()
    UNDECIDED = auto()


class MatchInfo:
    def __init__(self, state: MatchState, culprit: str | None = None) -> None:
        self._state = state
        self.culprit = culprit


class Group(NamedTuple):
    id: str
    desc: str
    size: int


class Membership(NamedTuple):
    group_id: str
    global_rank: int


class Traceback(NamedTuple):
    id: int
    frames: str


class Collective(NamedTuple):
    id: int
    group_id: str
    pass_check: bool
    collective_seq_id: int
    p2p_seq_id: int
    record_id: int
    pg_desc: str
    collective_name: str
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    expected_ranks: set[int]
    collective_state: str
    collective_frames: list[dict[str, str]]
    input_numel: int | None = None
    output_numel: int | None = None
    missing_ranks: set[int] | None = None
    mismatch_collectives: dict[int, Collective] | None = None
    type_of_mismatch: MatchInfo | None = None


class NCCLCall(NamedTuple):
    id: int
    collective_id: Ref[Collective]
    group_id: str
    global_rank: int
    traceback_id: Ref[Traceback]
    collective_type: str
    sizes: list[list[int]]


class Database(NamedTuple):
    groups: list[Group]
    memberships: list[Membership]
    tracebacks: list[Traceback]
    collectives: list[Collective]
    ncclcalls: list[NCCLCall]


_ROWS: tuple[type, ...] = (Database, NCCLCall, Collective, Traceback, Membership, Group)
TYPES = [TypeInfo(row.__name__, list(get_type_hints(row).items())) for row in _ROWS]
_STAND_INS = {*_ROWS, Ref, TypeInfo, MatchState, MatchInfo}


_Pickler: Any = pickle._Pickler  # the one in Python, whose steps can be overridden


class _TorchPickler(_Pickler):  # type: ignore[misc]
    """Names torch's classes without importing them, which a plain pickler does to check that they exist."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj not in _STAND_INS:
            super().save_global(obj, name)
            return
        self.save(TORCH_MODULE)
        self.save(sys.intern(obj.__name__))
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)


def dump_for_torch(database: Database, file: IO[bytes]) -> None:
    """Writes what torchfrtrace -o writes: the pair of the types' descriptions and the database."""
    _TorchPickler(file, _PROTOCOL).dump((TYPES, database))
