"""The process groups of this rank, as far as they are known without keeping them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.collect.desync.calls import Call


class Group:
    """Its name and members, its newest calls, and the counters that number them."""

    def __init__(self, pg: Any, local_id: int, forget: Callable[[Any], None]) -> None:
        from torch.distributed import distributed_c10d

        self.pg = weakref.ref(pg, forget)
        self.local_id = local_id
        self.name = str(pg.group_name)
        self.desc = str(pg.group_desc)
        self.rank = int(pg.rank())
        self.size = int(pg.size())
        self.ranks: tuple[int, ...] = tuple(distributed_c10d._world.pg_group_ranks.get(pg, ()))
        self.backends = _backends(pg, distributed_c10d)
        self._timeout_ms = 0
        self.latest: Call | None = None  # the one that was started last
        self.finished: Call | None = None  # the collective with the highest number that has ended
        self.coalesced: list[Call] | None = None  # calls that wait to be sent off together
        self.n_p2p = self.n_ops = self.n_collectives = 0
        self.counts_itself = True  # the backend numbers its collectives
        self.n_uncounted = 0  # what is to be added to the backend's count to get the number that its recorder gives
        self.counts_transfers: bool | None = None  # None: not known yet
        self._newest = 0

    def transferred(self, before: int) -> None:
        """A transfer was sent off. gloo counts it among its collectives; its recorder and other backends do not."""
        if self.counts_transfers is None:
            self.counts_transfers = self.counts_itself and self.newest_seq() > before
        if self.counts_transfers:
            self.n_uncounted -= 1

    def settle(self, newest: int) -> None:
        """Whatever the backend has counted meanwhile: this is the number of the newest collective."""
        if self.counts_itself:
            self.n_uncounted += newest - self.newest_seq()

    def newest_seq(self) -> int:
        """The number of the group's newest collective, whoever called it: as torch's recorder numbers them."""
        pg = self.pg() if self.counts_itself else None
        if pg is not None:
            try:
                self._newest = int(pg._get_sequence_number_for_group()) + self.n_uncounted
            except Exception:  # this backend does not number its calls
                self.counts_itself = False
        return self._newest if self.counts_itself else self.n_collectives

    @property
    def timeout_ms(self) -> int:
        """What the job has set by now."""
        pg = self.pg()
        self._timeout_ms = self._timeout_ms if pg is None else _timeout_ms(pg)
        return self._timeout_ms

    def backend(self, is_on_cpu: bool) -> str:
        """What carries out calls on tensors of the processor, or of a device."""
        for device, name in self.backends.items():
            if (device == "cpu") is is_on_cpu:
                return name
        return next(iter(self.backends.values()), "")

    @property
    def is_on_cpu(self) -> bool:
        """Whether a call without tensors is one of the processor's."""
        return self.backend(False) in ("gloo", "mpi", "")


def _backends(pg: Any, distributed_c10d: Any) -> dict[str, str]:
    """Device -> what carries out its calls: {"cpu": "gloo", "cuda": "nccl"}."""
    try:
        config = str(distributed_c10d.get_backend_config(pg))
    except Exception:
        return {}
    pairs = (part.partition(":") for part in config.split(","))
    return {device: name for device, colon, name in pairs if colon}


def _timeout_ms(pg: Any) -> int:
    try:
        limits = [pg._get_backend(device).options._timeout for device in pg._device_types]
        return int(max(limits).total_seconds() * 1000)
    except Exception:  # not every backend tells
        return 0
