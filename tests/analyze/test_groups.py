"""Which groups there are and who is in them, from each of the places where a dump may tell."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.building import Setting, column, hashed_name, job, unresolved, with_rows
from rankscope.analyze.hangs.groups import resolve_groups
from rankscope.model.tables import Trace


def groups_of(trace: Trace) -> list[tuple[str, list[int], str, bool]]:
    """Name, members in group order, origin and whether inferred."""
    members: dict[int, list[int]] = {}
    for row in trace.table("group_members").rows():
        members.setdefault(row["group_id"], []).append(row["rank"])
    return [
        (row["name"], members[row["group_id"]], row["origin"], row["inferred"]) for row in trace.table("groups").rows()
    ]


def progress_of(trace: Trace, group: int, rank: int) -> dict[str, Any]:
    (row,) = [row for row in trace.table("group_progress").rows() if (row["group_id"], row["rank"]) == (group, rank)]
    return row


def test_members_come_from_the_configuration() -> None:
    trace = job({0: ["dp:1 all_reduce"], 1: ["dp:1 all_reduce"]}, Setting(config={"1": [(1, 0, 2)]}))
    assert groups_of(trace) == [("1", [1, 0, 2], "config", False)]


def test_a_rank_without_configuration_takes_that_of_a_member() -> None:
    setting = Setting(config={"1": [(0, 1, 2)]}, silent=frozenset({1}))
    trace = job({0: ["dp:1 all_reduce"], 1: ["dp:1 all_reduce"]}, setting)
    assert groups_of(trace) == [("1", [0, 1, 2], "config", False)]
    assert set(column(trace, "collectives", "group_id")) == {0}


def test_a_registered_group_of_which_the_ring_kept_nothing_is_listed() -> None:
    trace = job({0: ["dp:1 all_reduce"], 1: []}, Setting(config={"1": [(0, 1)], "2": [(1, 3)]}))
    assert groups_of(trace)[1] == ("2", [1, 3], "config", False)


@pytest.mark.parametrize("group", ["default_pg:0", "0"])
def test_the_nameless_entry_of_gloo_is_the_world(group: str) -> None:
    trace = job({0: [f"{group} all_reduce gloo"]}, Setting(config={"": [(0, 1, 2, 3)]}))
    assert groups_of(trace) == [("0", [0, 1, 2, 3], "world", False)]


def test_the_nameless_entry_says_nothing_about_other_groups() -> None:
    trace = job({0: ["tp:7 all_reduce gloo"], 1: ["tp:7 all_reduce gloo"]}, Setting(config={"": [(0, 1, 2, 3)]}))
    assert groups_of(trace) == [("7", [0, 1], "use", True)]


def test_an_emptied_nameless_entry_leaves_the_world_to_inference() -> None:
    trace = job({rank: ["default_pg:0 barrier gloo"] for rank in (0, 2)}, Setting(config={"": [()]}))
    assert groups_of(trace) == [("0", [0, 1, 2], "use", True)]


@pytest.mark.parametrize("counter", [0, 17, 999])
def test_a_hashed_name_proves_its_members(counter: int) -> None:
    name = hashed_name([0, 2], counter)
    trace = job({rank: [f"mesh_dp:{name} all_reduce"] for rank in (0, 2)}, Setting(config={}))
    assert groups_of(trace) == [(name, [0, 2], "name-hash", False)]


def test_a_hashed_name_proves_a_member_that_left_no_dump() -> None:
    name = hashed_name([0, 1, 2], 3)
    calls = [f"mesh_dp:{name} all_reduce"]
    trace = job({0: calls, 2: calls, 3: []}, Setting(config={}))
    assert groups_of(trace) == [(name, [0, 1, 2], "name-hash", False)]


def test_a_hashed_name_that_fits_no_guess_is_inferred_by_use() -> None:
    name = hashed_name([0, 5, 9], 1)
    trace = job({rank: [f"mesh_dp:{name} all_reduce"] for rank in (0, 1)}, Setting(config={}))
    assert groups_of(trace) == [(name, [0, 1], "use", True)]


def test_without_any_other_source_the_users_of_a_name_are_its_members() -> None:
    trace = job({rank: ["tp:4 all_reduce"] for rank in (1, 3)}, Setting(config={}))
    assert groups_of(trace) == [("4", [1, 3], "use", True)]


def test_two_groups_of_one_name_and_other_members_stay_apart() -> None:
    calls = ["tp:4 all_reduce done", "tp:4 all_reduce"]
    trace = job(dict.fromkeys(range(4), calls), Setting(config={"4": [(0, 1), (2, 3)]}))
    assert [(name, members) for name, members, _, _ in groups_of(trace)] == [("4", [0, 1]), ("4", [2, 3])]
    assert column(trace, "collectives", "group_id") == [0, 0, 0, 0, 1, 1, 1, 1]
    assert column(trace, "matches", "n_members") == [2, 2, 2, 2]


def test_one_name_with_two_descriptions_is_two_inferred_groups() -> None:
    programs = {0: ["tp:4 all_reduce"], 1: ["tp:4 all_reduce"], 2: ["dp:4 all_reduce"], 3: ["dp:4 all_reduce"]}
    trace = job(programs, Setting(config={}))
    assert sorted(members for _, members, _, _ in groups_of(trace)) == [[0, 1], [2, 3]]


def test_the_order_of_members_is_part_of_the_identity() -> None:
    calls = ["pp:4 all_reduce"]
    trace = job({0: calls, 1: calls, 2: calls, 3: calls}, Setting(config={"4": [(0, 1), (3, 2)]}))
    assert [members for _, members, _, _ in groups_of(trace)] == [[0, 1], [3, 2]]


def test_peers_are_positions_in_the_unsorted_member_list() -> None:
    programs = {5: ["pp:1 barrier", "pp:1 send>1"], 2: ["pp:1 barrier", "pp:1 recv<0"]}
    trace = job(programs, Setting(config={"1": [(5, 2, 7)]}))
    assert column(trace, "collectives", "peer") == [-1, 2, -1, 5]
    transfer = list(trace.table("matches").rows())[-1]
    assert (transfer["src"], transfer["dst"], transfer["n_joined"]) == (5, 2, 2)


def test_a_peer_outside_the_group_is_missing_not_wrong() -> None:
    trace = job({0: ["pp:1 barrier", "pp:1 send>6"], 1: ["pp:1 barrier"]})
    assert column(trace, "collectives", "peer") == [-1, -1, -1]


def test_groups_are_numbered_by_number_not_by_letter() -> None:
    calls = ["a:10 all_reduce", "b:9 all_reduce", "c:x all_reduce"]
    trace = job({0: calls, 1: calls})
    assert [name for name, *_ in groups_of(trace)] == ["9", "10", "x"]


def test_undefined_is_no_description() -> None:
    trace = job({0: ["undefined:1 all_reduce"], 1: ["undefined:1 all_reduce"]})
    assert column(trace, "groups", "description") == [""]


def test_counters_widen_the_window_beyond_the_ring() -> None:
    programs = {0: ["dp:1 all_reduce #5 done", "dp:1 all_reduce #6"], 1: []}
    setting = Setting(config={"1": [(0, 1)]}, dropped={1: 40}, counters={(1, "1"): (9, 8)})
    kept, evicted = (progress_of(job(programs, setting), 0, rank) for rank in (0, 1))
    assert (kept["first_seq"], kept["last_seq"], kept["n_kept"], kept["known"]) == (5, 6, 2, True)
    assert (evicted["first_seq"], evicted["last_seq"], evicted["last_completed"]) == (-1, 9, 8)
    assert evicted["known"]


def test_a_wrapped_ring_without_calls_or_counters_knows_nothing() -> None:
    setting = Setting(config={"1": [(0, 1, 2, 3)]}, dropped={1: 40})
    trace = job({0: ["dp:1 all_reduce"], 1: [], 2: []}, setting)
    # Rank 1 has dropped calls, rank 2 made none, rank 3 left no dump: only of rank 2 is it known that it never came.
    assert [progress_of(trace, 0, rank)["known"] for rank in range(4)] == [True, False, True, False]


def test_a_cut_dump_is_known_only_by_its_counters() -> None:
    calls = ["dp:1 all_reduce done"]
    cut = Setting(damaged=frozenset({1}))
    counted = Setting(damaged=frozenset({1}), counters={(1, "1"): (4, 3)})
    assert not progress_of(job({0: calls, 1: calls}, cut), 0, 1)["known"]
    assert progress_of(job({0: calls, 1: calls}, counted), 0, 1)["last_seq"] == 4


def test_a_counter_without_calls_is_named_by_elimination() -> None:
    calls = ["tp:2 all_reduce #8"]
    setting = Setting(
        config={"1": [(0, 1)], "2": [(0, 1)]}, dropped={0: 30, 1: 30}, counters={(0, "2"): (8, 7), (0, ""): (3, 3)}
    )
    trace = job({0: calls, 1: calls}, setting)
    assert column(trace, "group_status", "group_name") == ["2", "1"]
    assert progress_of(trace, 0, 0)["last_seq"] == 3


def test_several_counters_are_named_in_order_of_numbers_or_not_at_all() -> None:
    counters = [
        {"rank": 0, "pg_id": 5, "group_name": "", "last_enqueued": 50},
        {"rank": 0, "pg_id": 3, "group_name": "", "last_enqueued": 30},
    ]
    for names, expected in ((("1", "2"), ["2", "1"]), (("1", "x"), ["", ""])):
        setting = Setting(config={name: [(0, 1)] for name in names}, dropped={0: 30})
        trace = with_rows(unresolved({0: [], 1: []}, setting), "group_status", counters)
        assert resolve_groups(trace)["group_status"].text("group_name").tolist() == expected


def test_counters_of_a_group_with_transfers_are_no_frontier() -> None:
    # torch counts transfers and collectives of such a group in one number: 9 would look like a collective joined.
    programs = {
        0: ["pp:1 all_reduce done", "pp:1 send>1 done", "pp:1 all_reduce"],
        1: ["pp:1 all_reduce done", "pp:1 recv<0 done"],
    }
    trace = job(programs, Setting(counters={(1, "1"): (9, 9)}))
    assert progress_of(trace, 0, 1)["last_seq"] == 1
    assert column(trace, "matches", "n_missing")[:2] == [0, 1]
