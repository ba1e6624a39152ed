"""Collectives in which every member has sizes of its own, as with experts that get different numbers of tokens."""

from __future__ import annotations

from dataclasses import replace

from rankscope.simulate.groups import Group
from rankscope.simulate.program import Call, Shape
from rankscope.simulate.sites import Site

_WIDTH = 512
_EXCESS = 3  # what a wrong size adds: no other size of the job differs by it


def uneven_call(op: str, group: Group, rank: int, site: Site) -> Call:
    """The call of one member. Member i sends or holds _share(i, j) rows for or of member j."""
    n_members, position = len(group.ranks), group.ranks.index(rank)
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    if op == "all_to_all":
        sent = sum(_share(position, other) for other in range(n_members))
        taken = sum(_share(other, position) for other in range(n_members))
        inputs, outputs = ((sent, _WIDTH),), ((taken, _WIDTH),)
    else:
        parts = tuple((_share(member, 0), _WIDTH) for member in range(n_members))
        inputs, outputs = ((parts[position],), parts) if op == "all_gather" else (parts, (parts[position],))
    return Call(group, op, site, inputs, outputs, agreement=("shares", op))


def with_wrong_size(call: Call, rank: int) -> Call:
    """The rank has miscounted its own rows."""
    position = call.group.ranks.index(rank)

    def grown(sizes: tuple[tuple[int, ...], ...], position: int) -> tuple[tuple[int, ...], ...]:
        return tuple((size[0] + _EXCESS, *size[1:]) if at == position else size for at, size in enumerate(sizes))

    inputs = grown(call.input_sizes, position if call.op == "reduce_scatter" else 0)
    outputs = (
        call.output_sizes
        if call.op == "all_to_all"
        else grown(call.output_sizes, position if call.op == "all_gather" else 0)
    )
    return replace(call, input_sizes=inputs, output_sizes=outputs, agreement=("shares", call.op, rank))


def _share(member: int, other: int) -> int:
    return 64 + 7 * member + 16 * ((3 * member + 5 * other) % 4)
