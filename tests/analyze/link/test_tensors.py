"""Who reads what whom wrote, by the memory behind tensors."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from analyze.link.edge_traces import Memory, Observed, assert_sound, edges_in, edges_of, trace_of
from rankscope.analyze.link.edges.tensors import written_arguments

A, B, C = (Memory(storage) for storage in (50, 60, 70))
RUNNER = 200
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
# What signatures say is bound to the first letters of the alphabet; more than one alias may be written.
SIGNATURES = {
    "aten::mm(Tensor self, Tensor mat2) -> Tensor": [],
    VIEW: [],
    "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)": [0],
    "aten::_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()": [0],
    "aten::sum.IntList_out(Tensor self, int[1]? dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)": [3],
    "aten::topk.values(Tensor self, int k, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))": [
        2,
        3,
    ],
    "aten::_fused_adam_(Tensor(a!)[] self, Tensor[] grads, Tensor(c|d!)[] avgs, float lr, *, str s='(,!') -> ()": [
        0,
        2,
    ],
    "": [],
    "broken(Tensor(a!) self": [],
}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_signatures_tell_what_is_written(signature: str) -> None:
    assert written_arguments(signature) == sum(1 << argument for argument in SIGNATURES[signature])


def test_a_reader_comes_after_the_outermost_writer_that_is_over() -> None:
    process = Observed()
    outer = process.node("aten::linear", 0, 30, gives=[A])
    inner = process.node("aten::addmm", 1, 10, parent=outer, gives=[A])
    within = process.node("aten::add", 12, 20, parent=outer, takes=[A])
    after = process.node("aten::relu", 31, 40, takes=[A], gives=[B])
    deeper = process.node("aten::clamp", 32, 39, parent=after, takes=[A], gives=[B])

    assert edges_of(process, kind="data") == [(outer, after), (outer, deeper), (inner, within)]


def test_views_are_read_but_write_nothing() -> None:
    process = Observed()
    writer = process.node("aten::mm", 0, 10, gives=[A])
    view = process.node("aten::view", 11, 12, takes=[A], gives=[A], op_schema=VIEW)
    reader = process.node("aten::relu", 13, 14, takes=[A])

    assert edges_of(process, kind="data") == [(writer, view), (writer, reader)]


def test_a_view_of_another_size_is_the_same_memory() -> None:
    process = Observed()
    writer = process.node("aten::mm", 0, 10, gives=[A])
    part = Memory(A.storage_id, n_elements=2)
    view = process.node("aten::slice", 11, 12, takes=[A], gives=[part], op_schema=VIEW)
    reader = process.node("aten::relu", 13, 14, takes=[part])

    assert edges_of(process, kind="data") == [(writer, view), (writer, reader)]


def test_writing_in_place_is_writing() -> None:
    """By the signature, else by the name, as collectives have no better one; what is read only is not written."""
    process = Observed()
    made = process.node("aten::mm", 0, 10, gives=[A])
    other = process.node("aten::mm", 11, 12, gives=[B])
    added = process.inplace("add_", 13, 14, A, B._replace(argument=1))
    reduced = process.node("c10d::allreduce_", 15, 16, takes=[A, C._replace(argument=1)], gives=[A])
    reader = process.node("aten::relu", 17, 18, takes=[A, B, C])

    assert edges_of(process, kind="data") == [
        (made, added), (other, added), (other, reader), (added, reduced), (reduced, reader)
    ]  # fmt: skip


def test_memory_that_is_used_anew_starts_from_nothing() -> None:
    process = Observed()
    process.node("aten::mm", 0, 10, gives=[A])
    again = process.node("aten::empty", 20, 21, gives=[A])
    filled = process.inplace("fill_", 22, 23, A)
    reader = process.node("aten::relu", 24, 25, takes=[A])

    assert edges_of(process, kind="data") == [(again, filled), (filled, reader)]


def test_what_an_operator_allocates_for_itself_is_new_to_what_it_calls() -> None:
    """The allocation is no node: the call writes to memory that the last operator of that number left behind."""
    process = Observed()
    process.node("aten::mm", 0, 10, gives=[A])
    outer = process.node("aten::addmm", 20, 40, gives=[A])
    copied = process.inplace("copy_", 22, 25, A, parent=outer)
    read = process.node("aten::resolve_conj", 26, 27, parent=outer, takes=[A])

    assert edges_of(process, kind="data") == [(copied, read)]


def test_a_tensor_of_a_size_that_nobody_gave_is_another_one() -> None:
    """Numbers that python hands over are tensors without an operator that made them, in memory used before."""
    process = Observed()
    process.node("aten::mm", 0, 10, gives=[A])
    scalar = Memory(A.storage_id, n_elements=1, n_item_bytes=8)
    outer = process.node("aten::mul", 20, 30, takes=[scalar])
    process.node("aten::to", 21, 22, parent=outer, takes=[scalar])

    assert edges_of(process, kind="data") == []


def test_memory_of_two_devices_is_not_the_same() -> None:
    process = Observed()
    process.node("aten::mm", 0, 10, gives=[A])
    process.node("aten::relu", 11, 12, takes=[A._replace(device="cuda:0")])
    process.node("aten::mm", 13, 14, gives=[Memory(0)])
    process.node("aten::relu", 15, 16, takes=[Memory(0), Memory(A.storage_id, n_elements=0)])

    assert edges_of(process, kind="data") == []


def test_what_a_collective_writes_is_there_when_its_runner_is_done() -> None:
    process = Observed()
    made = process.node("aten::mm", 0, 5, gives=[A])
    caller = process.node("c10d::allreduce_", 6, 20, takes=[A], gives=[A])
    runner = process.node("gloo:all_reduce", 8, 60, takes=[A], tid=RUNNER, scope=7)
    early = process.node("aten::view", 30, 31, takes=[A])
    late = process.node("aten::relu", 61, 62, takes=[A])
    process.ran(caller, runner)

    assert edges_of(process, kind="data") == [(made, caller), (made, runner), (caller, early), (runner, late)]


class Access(NamedTuple):
    start: int
    end: int
    takes: list[Memory]
    gives: list[Memory]
    is_inplace: bool


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_all_edges_are_those_of_a_walk_through_time(seed: int, is_seen: bool) -> None:
    process, made = Observed(), []
    for access in random_accesses(random.Random(seed)):
        columns: dict[str, Any] = {"takes": access.takes, "gives": access.gives, "is_seen": is_seen}
        name = "aten::add_" if access.is_inplace else "aten::mm"
        made.append((process.node(name, access.start, access.end, **columns), access))

    trace = trace_of(process)
    assert edges_in(trace, "data") == sorted(walked(made))
    assert edges_in(trace, "data")
    assert_sound(trace)


def random_accesses(chance: random.Random) -> list[Access]:
    """Nested operators that take and give some of very few memories."""
    accesses: list[Access] = []

    def run(start: int, depth: int) -> int:
        takes = [Memory(chance.randint(1, 4), chance.randint(1, 2)) for _ in range(chance.randint(0, 2))]
        gives = [Memory(chance.randint(1, 4), chance.randint(1, 2)) for _ in range(chance.randint(0, 1))]
        place = len(accesses)
        accesses.append(Access(start, 0, takes, gives, chance.random() < 0.3))
        end = start + 1
        for _ in range(chance.randint(0, 2) if depth < 3 else 0):
            end = run(end + 1, depth + 1)
        accesses[place] = accesses[place]._replace(end=end + 1)
        return end + 1

    now = 0
    while len(accesses) < 60:
        now = run(now + 1, 0)
    return accesses


def walked(made: list[tuple[int, Access]]) -> set[tuple[int, int]]:
    """Through all starts and ends in order, one by one."""
    edges: set[tuple[int, int]] = set()
    writer: dict[int, int] = {}
    sizes: dict[int, set[int]] = {}
    events = [(access.start, 1, number, access) for number, access in made]
    events += [(access.end, 0, number, access) for number, access in made]
    for _, is_start, number, access in sorted(events, key=lambda event: event[:2]):
        taken = {memory.storage_id for memory in access.takes}
        new = {memory.storage_id for memory in access.gives} - taken
        written = new | ({memory.storage_id for memory in access.takes} if access.is_inplace else set())
        if is_start:
            for storage, n_elements, *_ in access.takes:
                if storage in writer and n_elements in sizes[storage]:
                    edges.add((writer[storage], number))
            for storage in new:
                writer.pop(storage, None)
                sizes[storage] = set()
            continue
        for storage in written:
            writer[storage] = number
        given = access.gives + (access.takes if access.is_inplace else [])
        for storage, n_elements, *_ in given:
            sizes.setdefault(storage, set()).add(n_elements)
    return edges
