"""Stacks are told whatever the job's threads do, also when no Python code can run."""

from __future__ import annotations

import faulthandler
import gc
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.children import RANK, child, wait_until
from rankscope.collect.dumps.stacks import HELD, ON_REQUEST, Stacks, publish_left_behind
from rankscope.collect.run import EXIT, Run
from rankscope.collect.settings import Settings

HEADER = re.compile(
    r"^=== rankscope stacks: rank 3, pid \d+, \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z, reason: (.*) ===$", re.MULTILINE
)


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    run = Run(Settings(folder=str(tmp_path)))
    run.rank = RANK
    part = Stacks(run)
    part.start()
    yield part
    part.close()


def told(stacks: Stacks) -> str:
    return (stacks.run.folder / "stacks_3.txt").read_text()


def test_every_thread_is_told_by_name_with_the_reason(stacks: Stacks) -> None:
    go_on = threading.Event()

    def loading_data() -> None:
        go_on.wait()

    thread = threading.Thread(target=loading_data, name="loader")
    thread.start()
    stacks.dump("no collective\nhas finished")
    go_on.set()
    thread.join()
    assert HEADER.findall(told(stacks)) == ["no collective has finished"]
    assert re.search(
        rf"Thread 0x[0-9a-f]+ \[loader\] \(most[^)]*\):\n(  File .*\n)*  File .* in {loading_data.__name__}\n",
        told(stacks),
    )
    assert "[MainThread] (most recent call first):\n" in told(stacks)
    assert f"in {test_every_thread_is_told_by_name_with_the_reason.__name__}\n" in told(stacks)


def test_threads_of_the_collector_are_left_out(stacks: Stacks) -> None:
    thread = threading.Thread(target=stacks.dump, args=("asked",), name="rankscope dump")
    thread.start()
    thread.join()
    assert "[MainThread]" in told(stacks)
    assert "rankscope dump" not in told(stacks)


def test_sections_follow_each_other_in_one_file(stacks: Stacks) -> None:
    stacks.dump("first")
    stacks.dump("second")
    assert HEADER.findall(told(stacks)) == ["first", "second"]


def test_a_normal_end_is_not_told(stacks: Stacks) -> None:
    stacks.dump(EXIT)
    stacks.close()
    assert list(stacks.run.folder.iterdir()) == []


def broken_loss() -> None:
    raise ValueError("nan")


def dump_of_an_exception(stacks: Stacks) -> None:
    try:
        broken_loss()
    except ValueError as error:
        stacks.raised(threading.get_ident(), error.__traceback__)
    stacks.dump("ValueError: nan")


def test_an_exception_is_told_with_the_place_where_it_was_raised(stacks: Stacks) -> None:
    dump_of_an_exception(stacks)
    _, section = told(stacks).split("===\n")
    first_stack = section.split("\n\n")[0].splitlines()
    assert re.fullmatch(r"Current thread 0x[0-9a-f]+ \[MainThread\] \(most recent call first\):", first_stack[0])
    assert first_stack[1].endswith(f"in {broken_loss.__name__}")
    assert first_stack[2].endswith(f"in {dump_of_an_exception.__name__}")
    assert section.count("[MainThread]") == 1


def test_the_next_dump_does_not_tell_of_that_exception(stacks: Stacks) -> None:
    dump_of_an_exception(stacks)
    stacks.dump("later")
    last = told(stacks).split("===\n")[-1]
    assert "[MainThread]" in last
    assert broken_loss.__name__ not in last


@pytest.mark.parametrize("crashes_go_to", ["sys.stderr", "2", "open(os.devnull, 'w')"])
def test_the_timer_of_faulthandler_is_left_to_a_job_that_uses_it(tmp_path: Path, crashes_go_to: str) -> None:
    body = f"""
        import faulthandler, gc
        faulthandler.enable(file={crashes_go_to})
        faulthandler.register(signal.SIGUSR1)
        file = open(os.devnull, "w")
        faulthandler.dump_traceback_later(1000, file=file)
        begin().part("stacks").tick()
        print(any(held is file for held in gc.get_referents(faulthandler)), flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "True"


@pytest.mark.parametrize("crashes_go_to", ["sys.stderr", "2", "open(os.devnull, 'w')"])
def test_the_timer_is_used_where_the_job_uses_the_rest_of_faulthandler(tmp_path: Path, crashes_go_to: str) -> None:
    body = f"""
        import faulthandler
        faulthandler.enable(file={crashes_go_to})
        faulthandler.register(signal.SIGUSR1)
        begin()
        time.sleep(1)
        wait_for_ever_in_c(ctypes.PyDLL(None))
    """
    with child(tmp_path, body, stall_seconds=0.2) as stuck:
        stuck.read_line()
        wait_until(lambda: "Timeout" in stuck.printed_in_c())


def test_the_timer_goes_to_a_job_that_starts_to_use_it(stacks: Stacks, tmp_path: Path) -> None:
    stacks.tick()
    with (tmp_path / "of_the_job").open("w") as file:
        faulthandler.dump_traceback_later(1000, file=file)
        try:
            assert stacks._printer is not None
            stacks._printer._armed_at -= 1000
            stacks.tick()
            stacks.close()
            assert any(held is file for held in gc.get_referents(faulthandler))
        finally:
            faulthandler.cancel_dump_traceback_later()


def test_the_gil_is_held(tmp_path: Path) -> None:
    body = "begin(); time.sleep(1); wait_for_ever_in_c(ctypes.PyDLL(None))"
    with child(tmp_path, body, stall_seconds=0.2) as stuck:
        stuck.read_line()
        wait_until(lambda: "in wait_for_ever_in_c" in stuck.printed_in_c())
        stuck.send(signal.SIGUSR2)  # printed at once, by C code
        wait_until(lambda: stuck.printed_in_c().count("in wait_for_ever_in_c") == 2)
        assert not (tmp_path / "stacks_3.txt").exists()
        stuck.send(signal.SIGKILL)
        assert stuck.ended() == -signal.SIGKILL
    assert publish_left_behind(tmp_path, RANK)
    assert HEADER.findall(stuck.stacks()) == [HELD]
    assert stuck.stacks().count("in wait_for_ever_in_c") == 2
    assert "_watch" not in stuck.stacks()
    assert not publish_left_behind(tmp_path, RANK)


def test_what_was_left_behind_is_added_to_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "stacks_3.txt").write_text("=== earlier ===\n")
    (tmp_path / "stacks_3.held.txt.77.partial").write_text(
        'Thread 0x0001 (most recent call first):\n  File "a.py", line 1 in f\nTimeout (0:00:03)!\n'
        'Thread 0x0001 (most recent call first):\n  File "a.py", line 2 in g\n'
    )
    assert publish_left_behind(tmp_path, RANK)
    text = (tmp_path / "stacks_3.txt").read_text()
    assert text.startswith("=== earlier ===\n")
    assert HEADER.findall(text) == [ON_REQUEST, HELD]
    assert [path.name for path in tmp_path.iterdir()] == ["stacks_3.txt"]


def test_torch_is_not_imported_for_the_collector(tmp_path: Path) -> None:
    with child(tmp_path, "begin(); print('torch' in sys.modules, flush=True)") as job:
        assert job.read_line() == "False"


def test_a_child_forked_while_the_timer_runs_ends(tmp_path: Path) -> None:
    body = """
        run = begin()
        run.part("stacks").tick()
        process = os.fork()
        if not process:
            signal.alarm(120)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    """
    with child(tmp_path, body) as parent:
        assert parent.read_line() == "7"
        assert parent.ended() == 0


@pytest.mark.skipif(sys.version_info < (3, 14), reason="faulthandler does not name threads")
def test_names_are_not_told_twice(stacks: Stacks) -> None:
    stacks.dump("asked")
    assert "[MainThread] [" not in told(stacks)
