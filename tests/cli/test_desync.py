from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from rankscope.collect.desync.values import detail_key, encode_detail, encode_state, end_key, start_key
from rankscope.live import store_groups
from read.store_server import LIST_KEYS, MULTI_GET, StoreServer

WORLD = (0, 1, 2, 3)
GROUP = "default_pg/0//"
Values = dict[str, bytes]


def state(key: str, rank: int, seq: int, op: str = "ALLREDUCE", finished: bool = False) -> Values:
    """What torch's tracker writes for one rank."""
    values = {start_key(key, rank): encode_state(seq, op)}
    if finished or seq > 1:
        values[end_key(key, rank)] = encode_state(seq if finished else seq - 1, op)
    return values


def call(seq: int, op: str, line: int) -> dict[str, Any]:
    now = time.time_ns()
    sizes = {"input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    frames = [{"name": "all_reduce", "filename": "/x/torch/distributed/c.py", "line": 1}]
    frames += [{"name": "train", "filename": "/job/train.py", "line": line}]
    names = {"profiling_name": f"gloo:{op}", "collective_seq_id": seq, "time_created_ns": now - 20 * 10**9}
    return {**names, **sizes, "state": "started", "timeout_ms": 600_000, "frames": frames}


def tracked(ranks: Iterable[int], group: str = "0", members: Iterable[int] = WORLD, behind: int = -1) -> Values:
    """What rankscope's tracker writes; the rank `behind` has finished the call before that of the others."""
    members = list(members)
    prefix = GROUP if group == "0" else f"{GROUP}{group}//"
    values: Values = {}
    for rank in ranks:
        place, is_behind = members.index(rank), rank == behind
        seq = 4 if is_behind else 5
        detail = {
            "rank": rank,
            "world_size": 4,
            "host": f"gpu-{rank // 2}",
            "pid": 100 + rank,
            "group": {"name": group, "desc": "default_pg" if group == "0" else "dp", "ranks": members},
            "entry": call(seq, "all_reduce", 10 + seq),
            "status": {"last_enqueued": seq, "last_completed": 4},
            "time_ns": time.time_ns(),
        }
        values |= state(prefix + group, place, seq, finished=is_behind)
        values[detail_key(prefix + group, place)] = encode_detail(detail)
    return values


class Answer:
    """What the command says about a store."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.out)
        return record


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(values: Values, *options: str, **behaviour: Any) -> Answer:
        with StoreServer(values, **behaviour) as server:
            code = main(["desync", server.address, *options])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return run


def test_the_report_and_the_verdict(ask: Callable[..., Answer]) -> None:
    answer = ask(tracked(WORLD, behind=1))
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith("rankscope desync report, ")
    assert ", read from the store at 127.0.0.1:" in lines[0]
    assert lines[1:10] == [
        'group 0 "default_pg" (4 ranks: 0, 1, 2, 3), collective state from the job\'s store',
        " - Lagging ranks:",
        "   - [1] finished collective #4 but did not join collective #5 (counted from 1)",
        " - Latest state of each rank:",
        "   #4 finished:",
        "     [1] finished ALLREDUCE",
        "   #5 started:",
        "     [0, 2, 3] started ALLREDUCE",
        "end of desync report",
    ]
    assert "error[H105] (certain) rank 1 never reached the all_reduce that 3 peers are waiting in" in answer.out
    assert "--> train.py:15 in train" in answer.out, "where the peers wait"
    assert "--> train.py:14 in train" in answer.out, "where the culprit was last"
    assert answer.err == ""


def test_the_culprit_is_where_its_main_thread_is_now(ask: Callable[..., Answer]) -> None:
    values = tracked(WORLD, behind=1)
    key = detail_key(f"{GROUP}0", 1)
    detail = json.loads(values[key])
    now = [
        ("wait\n=== rankscope stacks", 'C:\\"odd"\n.py', 3),
        ("load", "/job/data.py", 31),
        ("train", "/job/train.py", 9),
    ]
    detail["now"] = [{"name": name, "filename": file, "line": line} for name, file, line in now[1:]]
    answer = ask({**values, key: encode_detail(detail)})
    assert "--> data.py:31 in load" in answer.out
    assert "the main thread of rank 1 is in load (data.py:31)" in answer.out
    detail["now"] = [{"name": name, "filename": file, "line": line} for name, file, line in now]
    assert ask({**values, key: encode_detail(detail)}).code == 1, "text of a store cannot make sections of its own"


def test_the_same_as_json(ask: Callable[..., Answer]) -> None:
    record = ask(tracked(WORLD, behind=1), "--json").json
    [group] = record["groups"]
    assert group["group"] == {"name": "0", "desc": "default_pg", "size": 4, "ranks": [0, 1, 2, 3]}
    assert group["lagging"] == {"seq": 4, "joined": [], "finished": [1]}
    assert group["tracker"] == "rankscope"
    [finding] = [each for each in record["report"]["findings"] if each["severity"] == "error"]
    assert (finding["rule"], finding["ranks"]) == ("rank-stuck", [1])
    assert record["report"]["capture"]["paths"] == [record["store"]]


def test_a_job_in_step_is_clean(ask: Callable[..., Answer]) -> None:
    values: Values = {}
    for rank in WORLD:
        values |= state(f"{GROUP}0", rank, 7, finished=True)
    answer = ask(values)
    assert answer.code == 0
    assert " - No rank lags: all finished collective #7 (counted from 1)" in answer.out


def test_the_tracker_of_torch_is_judged_by_its_states_alone(ask: Callable[..., Answer]) -> None:
    values: Values = {}
    for rank in WORLD:
        values |= state(f"{GROUP}cuda//NCCL", rank, 9, "BROADCAST" if rank == 2 else "ALLREDUCE")
    record = ask(values, "--json").json
    assert record["groups"][0]["tracker"] == "torch"
    assert record["groups"][0]["group"]["name"] == "0"
    errors = [each for each in record["report"]["findings"] if each["severity"] == "error"]
    assert [(each["rule"], each["ranks"]) for each in errors] == [("op-mismatch", [2])]


def test_members_of_a_subgroup_that_nobody_tells_give_a_report_without_a_verdict(ask: Callable[..., Answer]) -> None:
    values = state(f"{GROUP}7//cuda//NCCL", 0, 5) | state(f"{GROUP}7//cuda//NCCL", 1, 4, finished=True)
    answer = ask(values)
    assert answer.code == 1, "they are out of step"
    assert "group 7 (2 ranks), collective state" in answer.out
    assert "not judged: the store does not say which ranks are in group 7\n" in answer.out
    assert "Found" not in answer.out


def test_ranks_that_never_joined_are_known_by_the_world_size(ask: Callable[..., Answer]) -> None:
    record = ask(tracked((0, 1, 2)), "--json").json
    assert record["groups"][0]["never_joined"] == [3]
    assert record["report"]["findings"][0]["ranks"] == [3]


def test_the_world_size_is_given_where_nobody_tells(ask: Callable[..., Answer]) -> None:
    values = state(f"{GROUP}cuda//NCCL", 0, 1) | state(f"{GROUP}cuda//NCCL", 1, 1)
    assert ask(values, "--json").json["groups"][0]["never_joined"] == []
    record = ask(values, "--json", "--world-size", "4").json
    assert record["groups"][0]["never_joined"] == [2, 3]
    assert record["report"]["findings"][0]["ranks"] == [2, 3]


def test_the_world_size_is_told_by_the_addresses_of_gloo(ask: Callable[..., Answer]) -> None:
    values = state(f"{GROUP}0", 0, 1) | {f"{GROUP}cpu//0/{rank}": b"address" for rank in range(3)}
    assert ask(values, "--json").json["groups"][0]["never_joined"] == [1, 2]


def test_the_world_size_is_told_by_the_agents_of_torchrun(ask: Callable[..., Answer]) -> None:
    values = state(f"{GROUP}cuda//NCCL", 0, 1) | state(f"{GROUP}cuda//NCCL", 1, 1)
    agents = {f"none/torchelastic/assigned_ranks/{node}": f"[{2 * node}, 4, {2 * node}, 4]".encode() for node in (0, 1)}
    record = ask(values | agents, "--json").json
    assert record["groups"][0]["never_joined"] == [2, 3]
    assert record["notes"] == []


@pytest.mark.parametrize("told", [b"[0, 4]", b"[0, 9000000, 0, 4]", b"[0, -1, 0, 4]", b"x", b"[" * 5000], ids=repr)
def test_agents_that_tell_nonsense_tell_nothing(ask: Callable[..., Answer], told: bytes) -> None:
    values = state(f"{GROUP}cuda//NCCL", 0, 1) | {"none/torchelastic/assigned_ranks/0": told}
    record = ask(values, "--json").json
    assert record["groups"][0]["group"]["size"] == 1
    assert len(record["notes"]) == 1


def test_agents_of_two_sizes_tell_nothing(ask: Callable[..., Answer]) -> None:
    """One of them is of the time before the job was given more nodes."""
    values = state(f"{GROUP}cuda//NCCL", 0, 1) | {"a/torchelastic/assigned_ranks/0": b"[0, 4, 0, 4]"}
    record = ask(values | {"a/torchelastic/assigned_ranks/1": b"[4, 8, 4, 8]"}, "--json").json
    assert record["groups"][0]["never_joined"] == []


def test_ranks_that_cannot_be_seen_are_told(ask: Callable[..., Answer]) -> None:
    values = state(f"{GROUP}cuda//NCCL", 0, 1) | state(f"{GROUP}cuda//NCCL", 1, 1)
    answer = ask(values)
    assert answer.out.startswith(
        "the store does not say how many ranks group 0 has; one after rank 1 of it that never joined a collective "
        "cannot be seen: give --world-size\n"
    )
    assert "cannot be seen" not in ask(values, "--world-size", "2").out
    assert "cannot be seen" not in ask(tracked(WORLD, behind=1)).out, "rankscope's tracker tells"


def test_groups_are_told_each_and_judged_together(ask: Callable[..., Answer]) -> None:
    """Ranks 0 and 3 wait in the world's group, 1 in a pair for 2, which is the one that is stuck."""
    values = tracked((0, 3)) | tracked((1, 2), "4", (2, 1), behind=2)
    for rank in (1, 2):
        values |= state(f"{GROUP}0", rank, 4, finished=True)
    record = ask(values, "--json").json
    assert [each["group"]["name"] for each in record["groups"]] == ["0", "4"]
    assert [each["group"]["ranks"] for each in record["groups"]] == [[0, 1, 2, 3], [2, 1]]
    errors = [each for each in record["report"]["findings"] if each["severity"] == "error"]
    assert [(each["rule"], each["ranks"]) for each in errors] == [("rank-stuck", [2])]


def test_one_group_is_chosen_by_name_or_description(ask: Callable[..., Answer]) -> None:
    values = tracked(WORLD) | tracked((1, 2), "4", (2, 1), behind=2)
    for name in ("4", "dp"):
        assert [each["group"]["name"] for each in ask(values, "--json", "--group", name).json["groups"]] == ["4"]
    answer = ask(values, "--group", "tp")
    assert answer.code == 2
    assert "but none about collectives of group tp" in answer.err


@pytest.mark.parametrize("unknown", [frozenset[int](), frozenset({LIST_KEYS})], ids=["listed", "tried"])
def test_only_the_newest_attempt_of_a_restarted_job_is_told(
    unknown: frozenset[int], ask: Callable[..., Answer]
) -> None:
    old = {f"/worker/attempt_0/{key}": value for key, value in tracked(WORLD, behind=3).items()}
    new = {f"/worker/attempt_1/{key}": value for key, value in tracked(WORLD, behind=1).items()}
    record = ask(old | new, "--json", unknown=unknown).json
    assert [each["lagging"]["finished"] for each in record["groups"]] == [[1]]
    assert record["notes"] == ["the job was restarted: only attempt 1 is shown"]


@pytest.mark.parametrize("tracker", ["0", "cuda//NCCL"])
def test_a_server_that_lists_no_keys_is_asked_for_the_known_ones(tracker: str, ask: Callable[..., Answer]) -> None:
    values: Values = {}
    for rank in range(130):
        values |= state(f"{GROUP}{tracker}", rank, 4 if rank == 77 else 5, finished=rank == 77)
    record = ask(values, "--json", unknown=frozenset({LIST_KEYS})).json
    assert record["groups"][0]["group"]["size"] == 130
    assert record["report"]["findings"][0]["ranks"] == [77]


def test_keys_below_a_prefix_of_ones_own(ask: Callable[..., Answer]) -> None:
    values = {f"my/job/{key}": value for key, value in tracked(WORLD, behind=1).items()}
    assert ask(values | tracked(WORLD), "--prefix", "my/job/", "--json").json["report"]["findings"][0]["ranks"] == [1]
    tried = ask(values, "--prefix", f"my/job/{GROUP}", "--json", unknown=frozenset({LIST_KEYS}))
    assert tried.json["report"]["findings"][0]["ranks"] == [1]


def test_both_trackers_on_one_group_are_judged_once(ask: Callable[..., Answer]) -> None:
    values = tracked(WORLD, behind=1)
    for rank in WORLD:
        values |= state(f"{GROUP}cuda//NCCL", rank, 4 if rank == 1 else 5, finished=rank == 1)
    record = ask(values, "--json").json
    assert sorted(each["tracker"] for each in record["groups"]) == ["rankscope", "torch"]
    assert record["report"]["capture"]["n_groups"] == 1
    assert record["report"]["findings"][0]["location"]["line"] == 14


@pytest.mark.parametrize(
    "detail",
    [b"", b"not JSON", b"[]", b"{}", b'{"rank": "x"}', b"[" * 10_000, b'{"rank":1,"group":{"name":"0","ranks":[-5]}}'],
)
def test_details_that_are_none_leave_the_states_to_speak(detail: bytes, ask: Callable[..., Answer]) -> None:
    values = tracked(WORLD, behind=1)
    values[detail_key(f"{GROUP}0", 2)] = detail
    errors = [each for each in ask(values, "--json").json["report"]["findings"] if each["severity"] == "error"]
    assert [(each["rule"], each["ranks"]) for each in errors] == [("rank-stuck", [1])], "absent sizes are no mismatch"


def test_a_malformed_value_gives_a_partial_report(ask: Callable[..., Answer]) -> None:
    values = tracked(WORLD, behind=1)
    values[start_key(f"{GROUP}0", 3)] = b"\5"
    answer = ask(values)
    assert " - Partial report: the store gave nothing readable for rank 3 (" in answer.out
    assert "error[H105] (certain) rank 1 " in answer.out


def test_what_was_read_is_kept_on_request(
    ask: Callable[..., Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dumps"
    assert ask(tracked(WORLD, behind=1), "-o", str(folder)).code == 1
    assert sorted(path.name for path in folder.iterdir()) == [f"rankscope_trace_rank_{rank}.json" for rank in WORLD]
    assert main([str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["ranks"] == [1]
    assert ask(tracked(WORLD), "-o", str(folder)).code == 2, "dumps of two moments do not go into one folder"


def transfer(rank: int, name: str, seq: int, finished: bool) -> Values:
    """The latest call of a rank is a send or a receive: it has the number of the collective before it."""
    key, op = f"{GROUP}0", name.split()[0].upper()
    values = state(key, rank, 4, op, finished=True)
    values[end_key(key, rank)] = encode_state(4, op if finished else "ALLREDUCE")
    entry = {**call(4, name, 30 + rank), "record_id": seq + 4, "p2p_seq_id": seq, "is_p2p": True, "retired": finished}
    entry["state"] = "completed" if finished else "started"
    group = {"name": "0", "desc": "default_pg", "ranks": [0, 1]}
    detail = {"rank": rank, "world_size": 2, "group": group, "entry": entry}
    counters = {"last_enqueued": 4, "last_completed": 4}
    return {**values, detail_key(key, rank): encode_detail({**detail, "status": counters})}


def test_who_does_not_answer_a_send_is_named(ask: Callable[..., Answer]) -> None:
    """The receive that rank 1 has finished is that of the send before the one that rank 0 waits in."""
    values = transfer(0, "send 0->1", 10, finished=False) | transfer(1, "recv 1<-0", 9, finished=True)
    [finding] = ask(values, "--json").json["report"]["findings"]
    assert (finding["rule"], finding["ranks"], finding["location"]["line"]) == ("rank-stuck", [1], 31)


def test_a_transfer_that_both_finished_is_in_order(ask: Callable[..., Answer]) -> None:
    values = transfer(0, "send 0->1", 10, finished=True) | transfer(1, "recv 1<-0", 10, finished=True)
    assert ask(values, "--json").json["report"]["findings"] == []


def test_a_store_with_more_groups_than_any_job_is_not_read_without_end(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_groups, "_MAX_STATES", 100)
    values: Values = {}
    for group in range(5):
        values |= state(f"{GROUP}{group}//{group}", 29, 1)
    record = ask(values, "--json").json
    assert len(record["groups"]) == 3
    assert "2 groups are left out: the store has more than any job's" in record["notes"]


def test_hundreds_of_ranks_that_never_joined_are_told_without_a_dump_each(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    values = state(f"{GROUP}cuda//NCCL", 0, 1)
    record = ask(values, "--json", "--world-size", "300", "-o", str(tmp_path / "dumps")).json
    assert record["groups"][0]["never_joined"] == list(range(1, 300))
    assert record["report"]["findings"][0]["ranks"] == list(range(1, 300))
    assert len(list((tmp_path / "dumps").iterdir())) == 1


# What cannot be done


def test_a_store_that_nobody_tracks_in(ask: Callable[..., Answer]) -> None:
    answer = ask({"default_pg/0//cpu//0/0": b"x"})
    assert answer.code == 2
    assert "has 1 key, but none about collectives: this job does not track them" in answer.err
    assert "rankscope record --desync" in answer.err
    assert "TORCH_NCCL_DESYNC_DEBUG=1" in answer.err


def test_another_program_at_the_port(ask: Callable[..., Answer]) -> None:
    answer = ask({}, greeting=b"HTTP/1.0 400 Bad Request\r\n\r\n")
    assert answer.code == 2
    assert "is not a torch store: it answers in HTTP" in answer.err
    assert "MASTER_ADDR:MASTER_PORT" in answer.err


def test_a_store_that_breaks_off(ask: Callable[..., Answer]) -> None:
    answer = ask(tracked(WORLD), "--timeout", "1", answers={MULTI_GET: b""})
    assert answer.code == 2
    assert "closed the connection" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [["node"], ["node:x"], ["a:1", "--world-size", "0"], ["a:1", "--timeout", "0"], ["a:1", "--timeout", "x"]],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["desync", *arguments]) == 2
    assert "= fix: " in capsys.readouterr().err
