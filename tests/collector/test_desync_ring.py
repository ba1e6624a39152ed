"""The ring of tracked calls: their numbers, ends and failures, and the dump that is made of them."""

from __future__ import annotations

import gc
import pickle
import time
import weakref
from typing import Any

import pytest

from collector.tracked_calls import RECV, SEND, SPEAKER, SUM, Backend, Handle, Job, Values
from rankscope.collect.desync import layout, recorded
from rankscope.collect.desync.calls import OPERATIONS, Call, Calls
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.hooks import Hooks

pytest.importorskip("torch.distributed")


@pytest.mark.parametrize("backend", [Backend(), Backend(counts_transfers=False), Backend(counts=False)])
def test_collectives_are_numbered_without_the_transfers_between_them(backend: Backend) -> None:
    job = Job(backend)
    made = [job.call(operation, [Values(4)], 0) for operation in (SUM, SEND, SUM, RECV, SEND, SUM)]
    assert [(call.seq, call.p2p_seq) for call in made] == [(1, 0), (1, 1), (2, 1), (2, 2), (2, 3), (3, 3)]
    assert job.group.newest_seq() == 3


def test_calls_sent_off_together_share_a_number_and_an_end() -> None:
    job = Job(Backend())
    job.call()
    job.calls.start_coalescing(job.backend)
    members = [job.calls.begin(job.backend, SUM, ([Values(size)],)) for size in (1, 2)]
    for member in members:
        assert member is not None
        job.calls.returned(member, None)
    whole = job.calls.end_coalescing(job.backend)
    assert whole is not None
    handle = Handle()
    job.calls.returned(whole, handle)
    assert [call.seq for call in job.calls.ring] == [1, 2, 2, 2]
    assert [call.is_pending for call in job.calls.ring] == [False, True, True, True]
    job.calls.waited(handle)
    assert not job.calls.pending()


def test_a_handle_ends_its_call_when_it_is_done_waited_for_or_gone() -> None:
    job = Job()
    handles = [Handle(is_done=True), Handle(), Handle(), Handle(error="connection closed", is_done=True)]
    done, waited, gone, failed = (job.call(work=handle) for handle in handles)
    still = Handle()
    waiting = job.call(work=still)
    job.calls.waited(handles[1])
    assert waited.ended_ns
    assert done in job.calls.pending(), "nobody has looked yet"
    handles[2] = still
    gc.collect()
    job.calls.poll()
    assert done.ended_ns
    assert gone.ended_ns
    assert (failed.ended_ns, failed.error) == (0, "connection closed")
    assert job.calls.pending() == [waiting]


def test_calls_on_a_device_are_not_asked_and_do_not_end_with_their_handles() -> None:
    class Asked(Handle):
        def is_completed(self) -> bool:
            raise AssertionError("this would spoil the capture of a graph")

    job = Job()
    handle = Asked()
    call = job.call(SUM, [Values(4, is_cpu=False)], work=handle)
    job.calls.poll()
    job.calls.waited(handle)
    del handle
    job.calls.poll()
    assert call.is_pending
    assert job.call(SUM, [Values(4, is_cpu=False)]).is_pending, "without a handle, too"


def test_nothing_of_the_job_is_kept_alive() -> None:
    job = Job()
    values, handle = Values(4), Handle()
    job.call(SUM, [values], work=handle)
    kept = [weakref.ref(thing) for thing in (values, handle, job.backend)]
    del values, handle
    job.backend = Backend()
    assert [reference() for reference in kept] == [None, None, None]
    assert job.call().group is job.calls.groups[1], "a new group, also where the old one has been"


def test_a_time_out_is_told_and_other_failures_are_not() -> None:
    job = Job()
    handle = Handle()
    late, broken = job.call(work=handle), job.call(work=Handle())
    job.calls.wait_failed(handle, RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
    job.calls.failed(broken, RuntimeError("Connection closed by peer"))
    assert job.timeouts == [late]
    assert [call.is_pending for call in (late, broken)] == [False, False]
    assert job.calls.waiting() == [late, broken]


def test_what_fails_here_never_reaches_the_job() -> None:
    def fail(call: Call) -> None:
        raise ValueError("no report today")

    calls = Calls(10, fail)
    call = calls.begin(Backend(), SUM, ([Values(4)],))
    assert call is not None
    calls.failed(call, TimeoutError("timed out"))
    hooks = Hooks(calls)
    hooks._is_on = True
    n_noted = len(calls.ring)
    assert hooks._noted(SUM, lambda *_: "what the call gives")(Backend(), "no tensor at all") == "what the call gives"
    assert len(calls.ring) == n_noted
    assert calls.group_of(object()) is None


def test_hooks_come_and_go() -> None:
    from torch._C._distributed_c10d import ProcessGroup, Work

    before = {name: ProcessGroup.__dict__[name] for name in OPERATIONS if name in ProcessGroup.__dict__}
    wait = Work.__dict__["wait"]
    hooks = Hooks(Calls(10, lambda call: None))
    hooks.install()
    assert all(ProcessGroup.__dict__[name] is not original for name, original in before.items())
    assert ProcessGroup.allreduce.__name__ == ProcessGroup.allreduce.__code__.co_name == "allreduce"
    hooks.remove()
    assert {name: ProcessGroup.__dict__[name] for name in before} == before
    assert Work.__dict__["wait"] is wait


def user_code(job: Job) -> Call:
    handle = Handle()
    return job.call(SUM, [Values(2, 3)], work=handle)


def test_the_dump_has_the_recorders_layout() -> None:
    job = Job(n_most=2)
    for _ in range(3):
        job.call()
    waiting = user_code(job)
    dump = pickle.loads(layout.to_bytes(job.calls, SPEAKER))
    assert dump["version"] == "2.10"
    assert dump["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[]"}}
    assert dump["pg_status"]["0"]["last_enqueued_collective"] == 4
    assert dump["pg_status"]["0"]["last_completed_collective"] == 3
    assert {**dump["rankscope"], "written_ns": 0} == {**SPEAKER._asdict(), "written_ns": 0}
    done, last = dump["entries"]
    assert [done["record_id"], last["record_id"]] == [2, 3], "two have been dropped"
    assert (done["state"], done["retired"], done["collective_seq_id"]) == ("completed", True, 3)
    assert done["duration_ms"] >= 0
    assert (last["state"], last["retired"], last["time_discovered_completed_ns"]) == ("started", False, None)
    assert (last["input_sizes"], last["output_dtypes"]) == ([[2, 3]], ["Float"])
    assert last["time_created_ns"] == waiting.created_ns
    assert last["process_group"] == ("0", "default_pg")
    names = [frame["name"] for frame in last["frames"]]
    first_line = user_code.__code__.co_firstlineno
    assert {"name": "user_code", "filename": __file__, "line": first_line + 2} in last["frames"]
    assert names.index("user_code") < names.index("test_the_dump_has_the_recorders_layout")


def test_transfers_name_both_ends() -> None:
    job = Job()
    sent, received = job.call(SEND, [Values(4)], 0), job.call(RECV, [Values(4)], 0)
    assert [layout.profiling_name(call) for call in (sent, received)] == [":send 1->0", ":recv 1<-0"]
    assert [layout.entry(call)["is_p2p"] for call in (sent, received)] == [True, True]


def recorded_entry(seq: int, **changes: Any) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "is_p2p": False,
        "input_sizes": [[20]],
        "input_dtypes": ["Float"],
        "output_sizes": [[20]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": True,
        "time_created_ns": time.time_ns(),
        "time_discovered_completed_ns": 0,
        "thread_id": "7",
        **changes,
    }


def test_calls_from_cpp_are_taken_from_torchs_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.call()
    job.backend.count = 3
    entries = [recorded_entry(1), recorded_entry(2), recorded_entry(3, retired=False)]
    monkeypatch.setattr(recorded, "_entries", lambda: entries)
    recorded.adopt(job.calls)
    assert [(call.seq, call.is_pending) for call in job.calls.all()] == [(1, False), (2, False), (3, True)]
    assert job.group.latest is job.calls.all()[-1]
    assert job.group.finished is job.calls.all()[1]
    assert layout.entry(job.calls.all()[1])["time_discovered_completed_ns"] is None, "nobody has seen when"

    monkeypatch.setattr(Group, "timeout_ms", 1)
    time.sleep(0.002)
    entries[2] = {**entries[2], "retired": True}
    for _ in range(2):
        recorded.adopt(job.calls)
        assert job.calls.all()[-1].error, "it waited, and was retired when its time was up"


def test_the_ends_of_calls_on_a_device_are_taken_from_torchs_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    call = job.call(SUM, [Values(4, is_cpu=False)])
    ended_ns = call.created_ns + 5
    entry = recorded_entry(1, state="completed", time_discovered_completed_ns=ended_ns)
    monkeypatch.setattr(recorded, "_entries", lambda: [entry])
    recorded.adopt(job.calls)
    assert call.ended_ns == ended_ns


def test_a_handle_that_cannot_be_followed_is_the_jobs_all_the_same() -> None:
    job = Job()
    handle = (1, 2)  # no weak reference to it can be made
    call = job.call(work=handle)
    assert call.is_pending
    assert job.calls.n_unnoted == 1
