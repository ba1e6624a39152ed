"""The process groups of a mesh, named as torch names them."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.simulate.spec import Mesh


@dataclass(frozen=True, eq=False)
class Group:
    # Compared by identity: a group is made once per job and looked up once per call.
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """Every group of the job, and who belongs to which."""

    world: Group
    tp: dict[int, Group]
    dp: dict[int, Group]
    pp: dict[int, Group]
    ep: dict[int, Group]
    of_rank: tuple[tuple[Group, ...], ...]
    """For each rank its groups in the order of creation: the position is the process-local pg_id."""
    n_with_desc: dict[str, int]


def build_groups(mesh: Mesh, *, experts: bool = False) -> Groups:
    world = Group("0", "default_pg", tuple(range(mesh.world)))
    lines = {
        "tp": [tuple(mesh.rank_at(p, d, t) for t in range(mesh.tp)) for p in range(mesh.pp) for d in range(mesh.dp)],
        "dp": [tuple(mesh.rank_at(p, d, t) for d in range(mesh.dp)) for p in range(mesh.pp) for t in range(mesh.tp)],
        "pp": [tuple(mesh.rank_at(p, d, t) for p in range(mesh.pp)) for d in range(mesh.dp) for t in range(mesh.tp)],
    }
    lines["ep"] = lines["dp"] if experts else []
    of_rank: list[list[Group]] = [[world] for _ in range(mesh.world)]
    by_desc: dict[str, dict[int, Group]] = {}
    n_with_desc = {"default_pg": 1}
    next_name = 1
    for desc, members_of_each in lines.items():
        by_desc[desc] = {}
        for members in members_of_each:
            if len(members) == 1:
                continue
            group = Group(str(next_name), desc, members)
            next_name += 1
            n_with_desc[desc] = n_with_desc.get(desc, 0) + 1
            for rank in members:
                by_desc[desc][rank] = group
                of_rank[rank].append(group)
    return Groups(
        world=world,
        tp=by_desc["tp"],
        dp=by_desc["dp"],
        pp=by_desc["pp"],
        ep=by_desc["ep"],
        of_rank=tuple(tuple(groups) for groups in of_rank),
        n_with_desc=n_with_desc,
    )
