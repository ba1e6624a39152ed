"""A job whose calls go through the hooks, a group of its own that is none of torch's, and a store in memory."""

from __future__ import annotations

from typing import Any

from rankscope.collect.desync import layout
from rankscope.collect.desync.calls import OPERATIONS, Call, Calls
from rankscope.collect.desync.connections import Connections
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.hooks import Hooks

SPEAKER = layout.Rank(rank=3, world_size=4, host="gpu-1", pid=4711)
SUM, SEND, RECV = (OPERATIONS[name] for name in ("allreduce", "send", "recv"))


class Backend:
    """A process group that counts as gloo does: transfers among collectives."""

    group_name, group_desc = "0", "default_pg"
    store: Any = None

    def __init__(self, counts: bool = True, counts_transfers: bool = True) -> None:
        self.count = 0
        self.counts, self.counts_transfers = counts, counts_transfers

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2

    def get_group_store(self) -> Any:
        return self.store

    def _get_sequence_number_for_group(self) -> int:
        if not self.counts:
            raise RuntimeError("this backend does not count")
        return self.count


class Values:
    """A tensor, as far as the hooks look at it."""

    dtype = "torch.float32"

    def __init__(self, *shape: int, is_cpu: bool = True) -> None:
        self.shape, self.is_cpu = shape, is_cpu


class Handle:
    def __init__(self, is_done: bool = False, error: str = "") -> None:
        self.is_done, self.error = is_done, error

    def is_completed(self) -> bool:
        return self.is_done

    def get_future(self) -> Handle:
        return self

    def value(self) -> None:
        if self.error:
            raise RuntimeError(self.error)


class Job:
    """Makes calls through the hooks of a group that is none of torch's."""

    def __init__(self, backend: Backend | None = None, n_most: int = 100) -> None:
        self.backend = backend or Backend()
        self.timeouts: list[Call] = []
        self.calls = Calls(n_most, self.timeouts.append)
        self.hooks = Hooks(self.calls)
        self.hooks._is_on = True

    def call(self, operation: Any = SUM, *arguments: Any, work: Any = None) -> Call:
        def method(backend: Backend, *arguments: Any) -> Any:
            backend.count += not operation.is_p2p or backend.counts_transfers
            return work

        self.hooks._noted(operation, method)(self.backend, *(arguments or ([Values(4)], None)))
        return self.calls.ring[-1]

    @property
    def group(self) -> Group:
        return self.calls.groups[0]


class Stored:
    """A store in memory that can be told to fail."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.n_trips = 0
        self.is_down = False

    def _trip(self) -> None:
        self.n_trips += 1
        if self.is_down:
            raise ConnectionError("the store is gone")

    def has_extended_api(self) -> bool:
        return True

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        self._trip()
        self.values.update(zip(keys, values, strict=True))

    def check(self, keys: list[str]) -> bool:
        self._trip()
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._trip()
        return [self.values[key] for key in keys]

    def add(self, key: str, amount: int) -> int:
        self._trip()
        self.values[key] = b"%d" % (int(self.values.get(key, b"0")) + amount)
        return int(self.values[key])


class OneStore(Connections):
    def __init__(self, store: Stored) -> None:
        super().__init__()
        self.store = store

    def store_of(self, group: Group) -> Any:
        return self.store
