"""Fault-tolerant jobs made of replicas, each of which counts its ranks from 0."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rankscope.model.tables import Table, Text


def is_default_group(name: str, description: str) -> bool:
    return description == "default_pg" or (name in ("", "0") and not description)


def outsiders(group_config: Table) -> dict[int, list[int]]:
    """Ranks that are not among the members of a group of their own, with those members: replicas, most likely."""
    return {rank: members for rank, _, members in _listed(group_config) if rank not in members}


def replica_size(group_config: Table) -> int | None:
    """How many ranks a replica has, where the dumps contradict themselves as those of replicas do."""
    worlds = {tuple(members) for _, is_default, members in _listed(group_config) if is_default}
    if len(worlds) != 1 or not outsiders(group_config):
        return None
    [world] = worlds
    return len(world) if world == tuple(range(len(world))) else None


def _listed(group_config: Table) -> Iterator[tuple[int, bool, list[int]]]:
    """Each rank with a group that it is in, and whether that is its default group."""
    decoded: dict[str, list[int]] = {}
    for row in group_config.rows():
        if row["members"] not in decoded:
            decoded[row["members"]] = msgspec.json.decode(row["members"], type=list[int])
        if decoded[row["members"]]:
            yield row["rank"], is_default_group(row["name"], row["description"]), decoded[row["members"]]


def with_global_members(group_config: Table) -> Table:
    """The table group_config with global ranks as members, as far as the layout of replicas can be inferred."""
    size = replica_size(group_config)
    return shift_replica_ranks(group_config, size) if size else group_config


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
