"""C++ frames of threads that wait: read without stopping them, and left out where they cannot be known."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.children import RANK, wait_until
from rankscope.collect.dumps import cpp_stacks
from rankscope.collect.dumps.cpp_stacks import CppStacks, is_wanted, with_native
from rankscope.collect.dumps.stacks import ON_REQUEST, Stacks
from rankscope.collect.native.elf import ElfFile
from rankscope.collect.native.frames import NativeFrame, native_stacks, prepare
from rankscope.collect.native.threads import read_mappings, waiting_at
from rankscope.collect.native.unwind_rules import rules_at
from rankscope.collect.requests import ASKED
from rankscope.collect.run import EXIT, Run
from rankscope.collect.settings import Settings

pytestmark = pytest.mark.skipif(bool(prepare()), reason=prepare())


@pytest.fixture
def sleeper() -> Iterator[threading.Thread]:
    """A thread that waits in C until the test is over."""
    go_on = threading.Event()

    def waiting_in_c() -> None:
        go_on.wait()

    thread = threading.Thread(target=waiting_in_c, name="sleeper")
    thread.start()
    wait_until(lambda: waiting_at(thread.native_id or 0) is not None)
    yield thread
    go_on.set()
    thread.join()


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    run = Run(Settings(folder=str(tmp_path), cpp_stacks=True))
    run.rank = RANK
    part = Stacks(run)
    run._parts = (part,)
    part.start()
    yield part
    part.close()


def test_a_thread_that_waits_is_unwound_to_its_beginning(sleeper: threading.Thread) -> None:
    number = sleeper.native_id or 0
    [stack] = native_stacks([number], 10).values()
    functions = [frame.function for frame in stack]
    assert any(function.startswith("PyThread_acquire_lock") for function in functions[:6]), functions
    assert any(function.startswith("_PyEval_EvalFrame") for function in functions), functions
    assert len(functions) > 8, "down to where the system started it"
    assert all(frame.file.startswith("/") for frame in stack)


def test_names_that_would_take_too_long_stay_unknown(sleeper: threading.Thread) -> None:
    stacks = native_stacks([sleeper.native_id or 0], 0.0)
    assert not stacks, "there was no time at all"


def test_threads_that_run_or_are_gone_are_left_out() -> None:
    is_over = False

    def spin() -> None:
        while not is_over:
            sum(range(1000))

    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    assert native_stacks([gone.native_id or 0, 1 << 22], 10) == {}
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert native_stacks([threading.get_native_id()], 10).keys() <= {threading.get_native_id()}
    finally:
        is_over = True
        thread.join()


def test_files_that_are_no_programs_tell_nothing(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve().read_bytes()
    for name, content in (("text", b"#!/bin/sh\n" * 9), ("short", program[:40]), ("cut", program[:3000])):
        path = tmp_path / name
        path.write_bytes(content)
        try:
            known = rules_at(ElfFile(str(path)), 0x1000)
        except ValueError:
            continue
        assert known is None, name


def test_frames_in_cpp_come_first_then_those_in_python(stacks: Stacks, sleeper: threading.Thread) -> None:
    reason = f"{ASKED}rankscope snapshot"
    stacks.dump(reason)
    part = CppStacks(stacks.run)
    part.start()
    part.dump(reason)
    text = (stacks.run.folder / "stacks_3.txt").read_text()
    found = re.search(r"Thread 0x[0-9a-f]+ \[sleeper\] \(most recent call first\):\n((?:#.*\n)+)", text)
    assert found, text
    lines = found[1].splitlines()
    assert [line.split(" ")[0] for line in lines] == [f"#{number}" for number in range(len(lines))]
    python = next(number for number, line in enumerate(lines) if f" waiting_in_c from {__file__}" in line)
    native = [line for line in lines if re.fullmatch(r"#\d+ .* from /.*[^y]:0", line)]
    assert native == lines[: len(native)]
    assert 0 < len(native) < python
    assert "\n  File " in text, "the thread that looked runs: it has its frames in Python alone"


def test_only_for_stalls_and_requests(stacks: Stacks) -> None:
    assert is_wanted(ON_REQUEST)
    assert is_wanted("no collective has finished for 300 s")
    assert not any(map(is_wanted, (EXIT, "SIGTERM", "RuntimeError: no")))


def test_a_thread_that_moved_meanwhile_keeps_its_python_frames(sleeper: threading.Thread) -> None:
    header = f"Thread 0x{sleeper.ident:016x} [sleeper] (most recent call first):\n"
    before = f'{header}  File "a.py", line 1 in f\n'
    assert with_native(before, lambda: before) != before
    assert with_native(before, lambda: before.replace("line 1", "line 2")) == before


def test_waiting_for_the_interpreter_is_no_place_to_stand(
    sleeper: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [NativeFrame("pthread_cond_timedwait", "/libc.so.6"), NativeFrame("take_gil", "/libpython.so")]
    monkeypatch.setattr(cpp_stacks, "native_stacks", lambda threads, seconds: dict.fromkeys(threads, frames))
    stack = f'Thread 0x{sleeper.ident:016x} [sleeper] (most recent call first):\n  File "a.py", line 1 in f\n'
    assert with_native(stack, lambda: stack) == stack


def test_looking_does_not_disturb_the_thread() -> None:
    slept = []

    def sleeping() -> None:
        begin = time.monotonic()
        time.sleep(0.5)
        slept.append(time.monotonic() - begin)

    thread = threading.Thread(target=sleeping)
    thread.start()
    while thread.is_alive():
        native_stacks([thread.native_id or 0], 10)
    assert slept[0] >= 0.5, "its sleep was not cut short"


def test_a_file_that_is_cut_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    library = next(each.path for each in read_mappings() if "/libc.so" in each.path or "/libc-" in each.path)
    copy = tmp_path / "libc.so"
    copy.write_bytes(Path(library).read_bytes())
    file = ElfFile(str(copy))
    os.truncate(copy, 5000)
    with pytest.raises(ValueError, match="truncated"):
        file.function_names([0x1000], time.monotonic() + 10)
    try:
        known = rules_at(file, 0x30000)
    except ValueError:
        known = None
    assert known is None
    file.close()


def test_where_the_kernel_forbids_it_the_manifest_says_so(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_stacks, "prepare", lambda: "the kernel, or the container, forbids process_vm_readv")
    part = CppStacks(stacks.run)
    part.start()
    stacks.dump(ON_REQUEST)
    part.dump(ON_REQUEST)
    assert "\n#0 " not in (stacks.run.folder / "stacks_3.txt").read_text()
    [problem] = stacks.run.describe()["problems"]
    assert (problem["what"], problem["problem"]) == (
        "cpp_stacks",
        "the kernel, or the container, forbids process_vm_readv",
    )
