"""What torch writes about a collective or transfer to the operator and to the kernel."""

from __future__ import annotations

from hashlib import blake2b

from rankscope.simulate.groups import Group
from rankscope.simulate.profiler.layout import Fields, constant
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.program import Exchange, StepProgram

_MAX_RANKS_LISTED = 30


def kernel_args(mesh: Mesh, rank: int, exchange: Exchange, program: StepProgram, step: int) -> Fields:
    group = mesh.group(rank, exchange)
    fields = [
        ("Collective name", constant(exchange.op)),
        ("In msg nelems", str(exchange.n_elements)),
        ("Out msg nelems", str(exchange.n_elements)),
        ("Group size", str(len(group.ranks))),
        ("dtype", '"BFloat16"'),
        ("In split size", '"[]"'),
        ("Out split size", '"[]"'),
        ("Process Group Name", constant(group.name)),
        ("Process Group Description", constant(group.desc)),
        ("Process Group Ranks", constant(_list_ranks(group.ranks))),
    ]
    if exchange.is_p2p:
        fields.append(("Dst Rank" if exchange.op == "send" else "Src Rank", str(mesh.peer(rank, exchange))))
    if mesh.spec.with_seq:
        number = mesh.sequence_number(exchange, program, step)
        fields += [("Seq", str(number)), ("Comms Id", str(_comms_id(group, number, exchange.is_p2p)))]
    return fields


def operator_args(mesh: Mesh, rank: int, exchange: Exchange, program: StepProgram, step: int) -> Fields:
    group = mesh.group(rank, exchange)
    start, stride = start_and_stride(group)
    return [
        *kernel_args(mesh, rank, exchange, program, step),
        ("Rank", str(group.ranks.index(mesh.peer(rank, exchange)))),
        ("Global rank start", str(start)),
        ("Global rank stride", str(stride)),
        ("Is asynchronized op", "1"),
    ]


def _list_ranks(ranks: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, ranks[:_MAX_RANKS_LISTED]))
    return f"[{listed}, ...]" if len(ranks) > _MAX_RANKS_LISTED else f"[{listed}]"


def start_and_stride(group: Group) -> tuple[int, int]:
    return group.ranks[0], group.ranks[1] - group.ranks[0]


def _comms_id(group: Group, number: int, is_p2p: bool) -> int:
    """The same on every rank that counts the call alike; uses all 64 bits, as torch's hash does."""
    what = (group.name, number, is_p2p, *start_and_stride(group), len(group.ranks))
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest(), "big")
