"""Which group a call belongs to, by what its trace says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rankscope.analyze.collectives.groups import UNKNOWN_GROUP, CommGroup, Mention, resolve_mentions
from rankscope.model.tables import Table, Trace


def mention(rank: int, name: str = "", ranks: str = "", **other: Any) -> Mention:
    known = {"desc": "", "size": -1, "is_on_host": False, "lane": 20}
    return Mention(file_id=rank, rank=rank, name=name, ranks=ranks, **{**known, **other})


def resolve(mentions: Sequence[Mention], groups: Any = (), world_size: int = -1) -> tuple[list[CommGroup], list[int]]:
    described = [{"file_id": one.file_id, "groups": json.dumps(groups), "world_size": world_size} for one in mentions]
    return resolve_mentions(Trace(("traces",), {"profiles": Table.from_rows("profiles", described)}), mentions)


def test_one_name_with_different_members_is_several_groups() -> None:
    groups, found = resolve([mention(0, "1", "[0, 1]"), mention(1, "1", "[0, 1]"), mention(2, "1", "[2, 3]")])
    assert [group.ranks for group in groups] == [(0, 1), (2, 3)]
    assert found == [0, 0, 1]


def test_a_list_that_torch_cut_short_is_looked_up_in_the_head() -> None:
    everybody = list(range(40))
    cut = f"[{', '.join(map(str, everybody[:30]))}, ...]"
    head = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 40, "ranks": everybody}]
    groups, found = resolve([mention(3, "0", cut, size=40), mention(35, "0", cut, size=40)], head)
    assert found == [0, 0]
    assert groups == [CommGroup("0", "default_pg", tuple(everybody), 40)]


def test_members_left_out_in_the_head_are_all_ranks() -> None:
    groups, _ = resolve([mention(0, "0", size=4)], [{"pg_name": "0", "ranks": [], "pg_size": 4}], world_size=4)
    assert groups[0].ranks == (0, 1, 2, 3)
    assert not groups[0].is_inferred


def test_a_trace_without_members_means_the_group_that_holds_its_rank() -> None:
    groups, found = resolve([mention(0, "7", "[0, 1]"), mention(3, "7", "[2, 3]"), mention(2, "7")])
    assert found == [0, 1, 1]
    assert len(groups) == 2


def test_a_name_without_any_members_makes_a_group_of_those_who_use_it() -> None:
    groups, found = resolve([mention(0, "5"), mention(4, "5")])
    assert found == [0, 0]
    assert groups == [CommGroup("5", "", (0, 4), 2, is_inferred=True)]


def test_calls_without_words_belong_to_the_only_group_of_the_job() -> None:
    head = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    groups, found = resolve([mention(0, is_on_host=True), mention(1, is_on_host=True)], head)
    assert (found, groups[0].ranks) == ([0, 0], (0, 1))


def test_calls_without_words_belong_to_the_group_of_their_stream() -> None:
    head = [{"pg_name": str(number), "ranks": [0, 1]} for number in range(2)]
    _, found = resolve([mention(0, "1", "[0, 1]", lane=24), mention(0, lane=24), mention(0, lane=28)], head)
    assert found == [0, 0, UNKNOWN_GROUP]


def test_without_any_word_on_the_device_the_group_is_unknown() -> None:
    groups, found = resolve([mention(0), mention(1)])
    assert (groups, found) == ([], [UNKNOWN_GROUP, UNKNOWN_GROUP])


def test_a_damaged_list_of_groups_is_no_list() -> None:
    mentions = [mention(0, "1", "[0, 1]")]
    profiles = Table.from_rows("profiles", [{"file_id": 0, "groups": '[{"pg_name": 1'}])
    assert resolve_mentions(Trace(("traces",), {"profiles": profiles}), mentions)[1] == [0]
