"""Who is in which process group, from whatever the dumps of a job tell."""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.dumps import make_dump, make_entry, rows_of

pytestmark = pytest.mark.slow

WORLD = 6
# Gloo registers its groups before they have a name.
NAMELESS = {"": {"name": "", "desc": "", "ranks": "[]"}}

member_lists = st.lists(st.integers(0, WORLD - 1), min_size=2, max_size=WORLD, unique=True)
quickly = settings(deadline=None, max_examples=40)


def call_on(name: str, desc: str, seq: int = 1, **fields: Any) -> dict[str, Any]:
    return make_entry(seq, process_group=(name, desc), profiling_name="gloo:all_reduce", **fields)


def load_job(dumps: dict[int, dict[str, Any]]) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in dumps.items():
            Path(folder, f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        return load([folder])


def groups_of(trace: Trace) -> dict[tuple[str, tuple[int, ...]], dict[str, Any]]:
    members: dict[int, list[tuple[int, int]]] = {}
    for row in rows_of(trace, "group_members"):
        members.setdefault(row["group_id"], []).append((row["group_rank"], row["rank"]))
    return {
        (row["name"], tuple(rank for _, rank in sorted(members[row["group_id"]]))): row
        for row in rows_of(trace, "groups")
    }


def hashed_name(members: list[int], counter: int) -> str:
    return hashlib.sha1(("_".join(map(str, members)) + f"_{counter}").encode(), usedforsecurity=False).hexdigest()


@given(members=member_lists, counter=st.integers(0, 300))
@quickly
def test_a_hashed_name_proves_its_members(members: list[int], counter: int) -> None:
    name = hashed_name(sorted(members), counter)
    dumps = {rank: make_dump([], pg_config=NAMELESS, pg_status={}) for rank in range(WORLD)}
    for rank in members:
        dumps[rank]["entries"] = [call_on(name, "undefined")]
    (group,) = groups_of(load_job(dumps)).items()
    assert group[0] == (name, tuple(sorted(members)))
    assert (group[1]["origin"], group[1]["inferred"]) == ("name-hash", False)


@given(members=member_lists, data=st.data())
@quickly
def test_a_hashed_name_proves_a_member_without_a_dump(members: list[int], data: st.DataObject) -> None:
    name = hashed_name(sorted(members), 3)
    lost = data.draw(st.sampled_from(members))
    world = {"": {"name": "", "desc": "", "ranks": str(list(range(WORLD)))}}
    dumps = {rank: make_dump([call_on("0", "default_pg")], pg_config=world) for rank in range(WORLD) if rank != lost}
    for rank in members:
        if rank != lost:
            dumps[rank]["entries"].append(call_on(name, "undefined", 2, pg_id=1, collective_seq_id=1))
    assert (name, tuple(sorted(members))) in groups_of(load_job(dumps))


@given(members=member_lists)
@quickly
def test_members_that_no_one_recorded_are_inferred_from_use(members: list[int]) -> None:
    dumps = {rank: make_dump([], pg_config=NAMELESS, pg_status={}) for rank in range(WORLD)}
    for rank in members:
        dumps[rank]["entries"] = [call_on("7", "mesh_dp")]
    (group,) = groups_of(load_job(dumps)).items()
    assert group[0] == ("7", tuple(sorted(members)))
    assert group[1]["inferred"]


@given(members=member_lists.filter(lambda members: len(members) >= 2), data=st.data())
@quickly
def test_the_order_of_members_is_kept_and_maps_peers(members: list[int], data: st.DataObject) -> None:
    sender, receiver = data.draw(st.permutations(range(len(members))))[:2]
    config = {"5": {"name": "5", "desc": "pp", "ranks": str(members)}}
    name = f"nccl:send {sender}->{receiver}"
    sent = make_entry(1, process_group=("5", "pp"), profiling_name=name, is_p2p=True, p2p_seq_id=1)
    trace = load_job({members[sender]: make_dump([sent], pg_config=config)})
    assert ("5", tuple(members)) in groups_of(trace)
    (call,) = rows_of(trace, "collectives")
    assert call["peer"] == members[receiver]


@given(split=st.integers(1, WORLD - 1))
@quickly
def test_two_groups_of_one_name_stay_apart(split: int) -> None:
    halves = (tuple(range(split)), tuple(range(split, WORLD)))
    dumps = {
        rank: make_dump([call_on("1", "tp")], pg_config={"1": {"name": "1", "desc": "tp", "ranks": str(list(half))}})
        for half in halves
        for rank in half
    }
    trace = load_job(dumps)
    assert set(groups_of(trace)) == {("1", half) for half in halves}
    ids = {row["rank"]: row["group_id"] for row in rows_of(trace, "collectives")}
    assert len({ids[rank] for rank in halves[0]}) == len({ids[rank] for rank in halves[1]}) == 1
    assert ids[0] != ids[WORLD - 1]


@given(members=st.permutations(range(WORLD)))
@quickly
def test_one_name_in_another_order_is_another_group(members: list[int]) -> None:
    orders = {rank: list(range(WORLD)) if rank % 2 else members for rank in range(WORLD)}
    dumps = {
        rank: make_dump([call_on("1", "x")], pg_config={"1": {"name": "1", "desc": "x", "ranks": str(order)}})
        for rank, order in orders.items()
    }
    assert set(groups_of(load_job(dumps))) == {("1", tuple(order)) for order in orders.values()}
