"""Fault-tolerant jobs made of replicas, each of which counts its ranks from 0."""

from __future__ import annotations

import msgspec

from rankscope.model.tables import Table, Text


def shift_replica_ranks(group_config: Table, replica_size: int) -> Table:
    """The table group_config with global ranks as members.

    Rank r is number r % replica_size of its replica. A group that lists this number and not the rank itself is counted
    within the replica; groups across replicas are recorded with global ranks already.
    """
    members = group_config.text("members").tolist()
    for row, rank in enumerate(group_config.array("rank").tolist()):
        listed = msgspec.json.decode(members[row], type=list[int])
        if rank not in listed and rank % replica_size in listed and max(listed) < replica_size:
            first = rank - rank % replica_size
            members[row] = msgspec.json.encode([first + member for member in listed]).decode()
    return group_config.replaced({"members": Text.encode(members)})
