from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collect.desync.report import Group, GroupState, numbers, read_group, report_lines, report_record
from rankscope.collect.desync.values import (
    State,
    StateKey,
    decode_state,
    detail_key,
    encode_detail,
    encode_state,
    end_key,
    op_type,
    parse_key,
    start_key,
)

WORLD = Group("0", "default_pg", 4, (0, 1, 2, 3))
NOON_NS = 1_794_830_400_000_000_000


class DictStore(dict[str, bytes]):
    """As much of a store as the report may use. From request `fails_at` on it is down."""

    fails_at = 1 << 30
    n_requests = 0

    def check(self, keys: Sequence[str]) -> bool:
        self._count()
        assert len(keys) == 1
        return keys[0] in self

    def get(self, key: str) -> bytes:  # type: ignore[override]
        self._count()
        return self[key]  # torch's stores wait for a key that is not there: it must not be asked for

    def _count(self) -> None:
        self.n_requests += 1
        if self.n_requests >= self.fails_at:
            raise RuntimeError("Broken pipe\nException raised from sendBytes")


def store_of(states: dict[int, tuple[int, str, int | None]], group: str = "0") -> DictStore:
    """By rank in the group: what it started, its name, and the number of what it finished last."""
    store = DictStore()
    for rank, (seq, op, finished) in states.items():
        store[start_key(group, rank)] = encode_state(seq, op)
        if finished is not None:
            store[end_key(group, rank)] = encode_state(finished, op)
    return store


def told(state: GroupState, own_rank: int = -1) -> list[str]:
    first, *lines, last = report_lines([state], "rank 0 of 4 on host gpu-1", own_rank, NOON_NS)
    assert first == "rankscope desync report, 2026-11-16 12:00:00 UTC, rank 0 of 4 on host gpu-1"
    assert last == "end of desync report"
    return lines


# Keys and values


def test_keys_and_values_are_laid_out_as_torch_does() -> None:
    assert start_key("0", 3) == "0_3_trace_start"
    assert end_key("NCCL", 12) == "NCCL_12_trace_end"
    assert detail_key("0", 3) == "0_3_rankscope"
    assert encode_state(258, "ALLREDUCE") == b"\x02\x01\0\0\0\0\0\0ALLREDUCE\0"
    assert decode_state(b"\x02\x01\0\0\0\0\0\0ALLREDUCE\0") == State(258, "ALLREDUCE")
    assert json.loads(encode_detail({"rank": 3, "entry": {"frames": []}})) == {"rank": 3, "entry": {"frames": []}}


@given(st.integers(0, 2**62 - 1), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80))
def test_values_survive_the_way_through_a_store(seq: int, op: str) -> None:
    assert decode_state(encode_state(seq, op)) == State(seq, op)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\5",
        bytes(8),
        bytes(9),
        b"\xff" * 40,
        encode_state(5, ""),
        encode_state(5, "ALL\nREDUCE"),
        bytes(7) + b"A",
    ],
    ids=repr,
)
def test_what_is_no_state_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="its value"):
        decode_state(value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_state_or_refused(value: bytes) -> None:
    try:
        state = decode_state(value)
    except ValueError:
        return
    assert value.startswith(encode_state(*state)[:-1])


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        ("0_3_trace_start", StateKey("", "0", 3, "trace_start")),
        ("default_pg/0//cuda//NCCL_1_trace_end", StateKey("default_pg/0//cuda//", "NCCL", 1, "trace_end")),
        ("/worker/attempt_0/0//0_2_rankscope", StateKey("/worker/attempt_0/0//", "0", 2, "rankscope")),
        ("my_group_10_trace_start", StateKey("", "my_group", 10, "trace_start")),
        ("default_pg/0//cpu//0/0", None),
        ("0_x_trace_start", None),
        ("_1_trace_start", None),
        ("0_1_trace_start/1", None),
    ],
)  # fmt: skip
def test_keys_below_any_prefix_are_known(key: str, parsed: StateKey | None) -> None:
    assert parse_key(key) == parsed


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "ALLREDUCE"),
        ("nccl:_all_gather_base", "_ALLGATHER_BASE"),
        ("gloo:send 0->1", "SEND"),
        ("gloo:recv 1<-0", "RECV"),
        ("broadcast", "BROADCAST"),
        ("nccl:reduce_scatter", "REDUCE_SCATTER"),
    ],
)
def test_operations_are_named_as_torch_names_their_types(name: str, kind: str) -> None:
    assert op_type(name) == kind


# The branches of the report


def test_lagging_ranks_joined_or_not() -> None:
    store = store_of({0: (5, "ALLREDUCE", 4), 1: (4, "ALLREDUCE", 4), 2: (5, "ALLREDUCE", 4), 3: (4, "BROADCAST", 3)})
    state = read_group(store, WORLD)
    assert told(state, own_rank=0) == [
        'group 0 "default_pg" (4 ranks: 0, 1, 2, 3), collective state from the job\'s store',
        " - [0] Timeout at collective: ALLREDUCE, #5",
        " - Lagging ranks:",
        "   - [3] joined but did not finish collective #4 (counted from 1)",
        "   - [1] finished collective #4 but did not join collective #5 (counted from 1)",
        " - Latest state of each rank:",
        "   #4 started:",
        "     [3] started BROADCAST",
        "   #4 finished:",
        "     [1] finished ALLREDUCE",
        "   #5 started:",
        "     [0, 2] started ALLREDUCE",
    ]
    record = json.loads(json.dumps(report_record(state)))
    assert record["lagging"] == {"seq": 4, "joined": [3], "finished": [1]}
    assert [(each["global_rank"], each["seq"], each["state"]) for each in record["latest"]] == [
        (0, 5, "started"), (1, 4, "finished"), (2, 5, "started"), (3, 4, "started")
    ]  # fmt: skip


def test_ranks_that_never_joined_come_before_those_that_lag() -> None:
    state = read_group(store_of({0: (1, "BARRIER", None), 2: (2, "BARRIER", 1)}), WORLD)
    assert told(state)[1:] == [
        " - Ranks that never joined any collective: [1, 3]",
        " - Latest state of each rank:",
        "   #1 started:",
        "     [0] started BARRIER",
        "   #2 started:",
        "     [2] started BARRIER",
    ]
    assert report_record(state)["never_joined"] == [1, 3]
    assert report_record(state)["lagging"] is None


def test_a_group_in_step_has_nobody_who_lags() -> None:
    state = read_group(store_of(dict.fromkeys(range(4), (9, "ALLREDUCE", 9))), WORLD)
    assert state.is_in_step
    assert told(state, own_rank=0)[1:] == [
        " - No rank lags: all finished collective #9 (counted from 1)",
        " - Latest state of each rank:",
        "   #9 finished:",
        "     [0, 1, 2, 3] finished ALLREDUCE",
    ]


def test_an_untracked_group_never_joined() -> None:
    assert told(read_group(DictStore(), WORLD))[1:] == [" - Ranks that never joined any collective: [0, 1, 2, 3]"]


def test_a_send_is_not_finished_by_the_collective_before_it() -> None:
    store = store_of({0: (4, "ALLREDUCE", 4)})
    store[start_key("0", 0)] = encode_state(4, "SEND")
    [member] = read_group(store, Group("0", "", 1, (0,))).members
    assert not member.is_finished
    assert member.last_finished == 4


def test_a_malformed_value_costs_one_rank_only() -> None:
    store = store_of(dict.fromkeys(range(4), (5, "ALLREDUCE", 4)))
    store[start_key("0", 1)] = b"\5"
    store[end_key("0", 3)] = b"\xff" * 20
    lines = told(read_group(store, WORLD))
    assert "     [0, 2] started ALLREDUCE" in lines
    assert lines[-2:] == [
        " - Partial report: the store gave nothing readable for rank 1 "
        "(its value has 1 bytes and no name of a collective)",
        " - Partial report: the store gave nothing readable for rank 3 "
        "(its value is not a sequence number and the name of a collective)",
    ]


@pytest.mark.parametrize("fails_at", range(1, 17))
def test_a_store_that_goes_down_gives_what_it_gave_before_and_is_asked_no_more(fails_at: int) -> None:
    store = store_of(dict.fromkeys(range(4), (5, "ALLREDUCE", 4)))
    store.fails_at = fails_at
    state = read_group(store, WORLD)
    n_read = (fails_at - 1) // 4
    assert [member.rank for member in state.members] == list(range(n_read))
    assert [each.rank for each in state.unreadable] == list(range(n_read, 4))
    assert store.n_requests == fails_at
    lost = f"rank{'' if n_read == 3 else 's'} {', '.join(map(str, range(n_read, 4)))}"
    assert told(state)[-1] == (
        f" - Partial report: the store gave nothing readable for {lost} "
        "(the store does not answer: RuntimeError: Broken pipe Exception raised from sendBytes)"
    )


def test_numbers_in_brackets_are_ranks_of_the_group() -> None:
    group = Group("7", 'pipe "a"', 2, (6, 2), key="default_pg/7//7")
    state = read_group(store_of({0: (3, "ALLGATHER", 2), 1: (2, "ALLGATHER", 2)}, group.key), group)
    lines = told(state, own_rank=6)
    assert lines[:2] == [
        'group 7 "pipe \\"a\\"" (2 ranks: 6, 2), collective state from the job\'s store',
        " - [0] Timeout at collective: ALLGATHER, #3",
    ]
    assert [each["global_rank"] for each in report_record(state)["latest"]] == [6, 2]


def test_many_ranks_are_told_as_ranges() -> None:
    assert numbers(range(16)) == ", ".join(map(str, range(16)))
    assert numbers([*range(512), *range(513, 1024)]) == "0-511, 513-1023"
    assert numbers([9, *range(20, 40)]) == "9, 20-39"


STATE_KEYS = [make("0", rank) for make in (start_key, end_key) for rank in range(4)]
some_value = st.one_of(st.binary(max_size=24), st.builds(encode_state, st.integers(0, 9), st.just("A")))


@given(st.dictionaries(st.sampled_from(STATE_KEYS), some_value))
def test_whatever_the_store_holds_every_rank_is_told_of_once(values: dict[str, bytes]) -> None:
    state = read_group(DictStore(values), WORLD)
    ranks = [*state.never_joined, *(each.rank for each in state.members), *(each.rank for each in state.unreadable)]
    assert sorted(ranks) == [0, 1, 2, 3]
    assert told(state, own_rank=1)
    json.dumps(report_record(state))
