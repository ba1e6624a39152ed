"""A job that is told to end, asked how it is, or dies of an exception leaves its dumps; its own handlers are called."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from collector.children import Child, child, wait_until

STUCK = {
    "in C": "wait_for_ever_in_c(ctypes.CDLL(None))",
    "in Python": "do_python_for_ever()",
    "in a lock": "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()",
}


def reasons(job: Child) -> list[str]:
    lines = job.stacks().splitlines()
    return [line.partition("reason: ")[2].removesuffix(" ===") for line in lines if line.startswith("=== ")]


def ending(folder: Path) -> str | None:
    """As the manifest has it."""
    (rank,) = json.loads((folder / "manifest.json").read_text())["ranks"]
    told: str | None = rank["ending"]
    return told


@pytest.mark.parametrize("where", STUCK)
def test_it_answers_while_the_main_thread_is_stuck_and_dies_by_sigterm(tmp_path: Path, where: str) -> None:
    with child(tmp_path, f"begin()\n{STUCK[where]}") as job:
        job.read_line()
        job.send(signal.SIGUSR2)
        wait_until(lambda: job.has_told("SIGUSR2"))
        job.send(signal.SIGUSR2)
        wait_until(lambda: len(reasons(job)) == 2)
        job.send(signal.SIGTERM)
        assert job.ended() == -signal.SIGTERM
    assert reasons(job) == ["SIGUSR2", "SIGUSR2", "SIGTERM"]
    assert ending(tmp_path) == "signal"
    assert 'File "<string>"' in job.stacks()
    assert "endings.py" not in job.stacks()
    assert not list(tmp_path.glob("*.partial"))


HANDLER = """
def of_the_job(number, frame):
    print("called with", number, type(frame).__name__, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_handlers_of_the_job_are_called(tmp_path: Path, when: str) -> None:
    install = "for number in (signal.SIGUSR2, signal.SIGTERM): signal.signal(number, of_the_job)"
    lines = (install, "begin()") if when == "before" else ("begin()", install)
    with child(tmp_path, "\n".join((HANDLER, *lines, "do_python_for_ever()"))) as job:
        job.read_line()
        job.send(signal.SIGUSR2)
        assert job.read_line() == f"called with {signal.SIGUSR2:d} frame"
        wait_until(lambda: job.has_told("SIGUSR2"))
        job.send(signal.SIGTERM)
        assert job.read_line() == f"called with {signal.SIGTERM:d} frame"
        assert job.ended() == 5
    # A handler that was set later is called at once, and may end the job before the dump is made.
    assert reasons(job) == ["SIGUSR2", "SIGTERM"] or (when == "after" and reasons(job) == ["SIGUSR2"])


def test_a_handler_set_later_that_calls_the_one_before_it_decides_how_the_job_ends(tmp_path: Path) -> None:
    body = """
        begin()
        before = signal.getsignal(signal.SIGTERM)
        def composed(number, frame):
            before(number, frame)
            sys.exit(6)
        signal.signal(signal.SIGTERM, composed)
        do_python_for_ever()
    """
    with child(tmp_path, body) as job:
        job.read_line()
        job.send(signal.SIGTERM)
        assert job.ended() == 6


def test_a_job_that_ignores_sigterm_goes_on_ignoring_it(tmp_path: Path) -> None:
    with child(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN); begin(); do_python_for_ever()") as job:
        job.read_line()
        job.send(signal.SIGTERM)
        job.send(signal.SIGUSR2)
        wait_until(lambda: job.has_told("SIGUSR2"))
        assert job.process.poll() is None


def test_a_signal_that_faulthandler_prints_on_for_the_job_stays_its_own(tmp_path: Path) -> None:
    body = """
        import faulthandler
        faulthandler.register(signal.SIGUSR2, file=sys.stdout)
        run = begin()
        ready()
        os.kill(os.getpid(), signal.SIGUSR2)
        run.finish()
        os.kill(os.getpid(), signal.SIGUSR2)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "ready"
        assert job.process.stdout
        assert job.process.stdout.read().count("(most recent call first)") >= 2
        assert job.ended() == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert "SIGUSR2" in manifest["ranks"][0]["problems"][0]["problem"]


def test_faulthandler_set_on_the_signal_later_stays_after_the_end(tmp_path: Path) -> None:
    body = """
        import faulthandler
        run = begin()
        faulthandler.register(signal.SIGUSR2, file=sys.stdout)
        run.finish()
        os.kill(os.getpid(), signal.SIGUSR2)
    """
    with child(tmp_path, body) as job:
        assert "(most recent call first)" in job.read_line()
        assert job.ended() == 0


def test_the_wake_up_pipe_of_asyncio_is_left_to_it(tmp_path: Path) -> None:
    body = """
        import asyncio
        run = begin()
        async def serve():
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stopped.set)
            ready()
            await stopped.wait()
            print("stopped", flush=True)
            await asyncio.sleep(1000)
        asyncio.run(serve())
    """
    with child(tmp_path, body) as job:
        job.read_line()
        job.send(signal.SIGUSR2)
        wait_until(lambda: job.has_told("SIGUSR2"))
        job.send(signal.SIGUSR1)
        assert job.read_line() == "stopped"
        job.send(signal.SIGTERM)
        assert job.ended() == -signal.SIGTERM
    assert reasons(job) == ["SIGUSR2", "SIGTERM"]


def test_a_forked_child_has_the_handlers_of_the_job_and_does_not_speak_for_its_parent(tmp_path: Path) -> None:
    body = """
        begin()
        worker = os.fork()
        if not worker:
            signal.alarm(120)
            while True:
                time.sleep(1)
        os.kill(worker, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), flush=True)
        do_python_for_ever()
    """
    with child(tmp_path, body) as parent:
        assert parent.read_line() == str(-signal.SIGTERM)
        parent.read_line()
        parent.send(signal.SIGUSR2)
        wait_until(lambda: parent.has_told("SIGUSR2"))
        assert parent.process.poll() is None
        assert reasons(parent) == ["SIGUSR2"]


def test_an_exception_is_dumped_and_told_as_usual(tmp_path: Path) -> None:
    body = """
        def of_the_job(kind, error, where):
            print("hook", error, flush=True)
        sys.excepthook = of_the_job
        begin()
        def diverge():
            raise ValueError("loss is nan\\nmore")
        diverge()
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "hook loss is nan"
        assert job.ended() == 1
    assert reasons(job) == ["ValueError: loss is nan"]
    assert ending(tmp_path) == "exception"
    assert "in diverge\n" in job.stacks()


def test_an_exception_of_a_thread_is_dumped_once(tmp_path: Path) -> None:
    body = """
        begin()
        def load():
            raise KeyError("batch")
        for _ in range(2):
            thread = threading.Thread(target=load, name="loader")
            thread.start()
            thread.join()
    """
    with child(tmp_path, body) as job:
        assert job.ended() == 0
        assert job.process.stderr
        assert job.process.stderr.read().count("Exception in thread loader") == 2
    assert reasons(job) == ["KeyError: 'batch' (in thread loader)"]
    assert ending(tmp_path) == "exit"  # the job went on without it
    assert "[loader] (most recent call first):\n  File" in job.stacks()


@pytest.mark.parametrize("leaves", ["raise", "sys.exit(1)"])  # as multiprocessing's own workers end, and torch's
def test_an_exception_of_a_multiprocessing_worker_is_dumped(tmp_path: Path, leaves: str) -> None:
    body = f"""
        import multiprocessing
        def work():
            begin()
            try:
                raise ValueError("in a worker")
            except ValueError:
                {leaves}
        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
        print(worker.exitcode, flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "1"
    assert reasons(job) == ["ValueError: in a worker"]
    assert ending(tmp_path) == "exception"
    assert "in work\n" in job.stacks()


def test_a_multiprocessing_worker_that_leaves_by_itself_is_not_told(tmp_path: Path) -> None:
    body = """
        import multiprocessing
        def work():
            begin()
            sys.exit(4)
        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
        print(worker.exitcode, flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "4"
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.d", "manifest.json"}


def test_an_interrupt_ends_the_job_as_usual(tmp_path: Path) -> None:
    with child(tmp_path, "begin(); do_python_for_ever()") as job:
        job.read_line()
        job.send(signal.SIGINT)
        assert job.ended() == -signal.SIGINT
        assert job.process.stderr
        assert job.process.stderr.read().rstrip().endswith("KeyboardInterrupt")
    assert sorted(reasons(job)) == ["KeyboardInterrupt", "SIGINT"]  # at once, and when Python code ran again


def test_a_dump_that_hangs_does_not_keep_the_job_alive(tmp_path: Path) -> None:
    body = """
        from rankscope.collect.dumps import endings
        endings.DUMP_SECONDS = 0.3
        run = begin()
        run.part("stacks").dump = lambda reason: time.sleep(1000)
        do_python_for_ever()
    """
    with child(tmp_path, body) as job:
        job.read_line()
        job.send(signal.SIGTERM)
        assert job.ended() == -signal.SIGTERM


def test_everything_is_as_before_at_the_end(tmp_path: Path) -> None:
    body = """
        def state():
            handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)]
            return *handlers, sys.excepthook, threading.excepthook, threading.active_count()
        before = state()
        run = begin()
        changed = [one != other for one, other in zip(before, state())]
        run.finish()
        while threading.active_count() > 1:
            time.sleep(0.01)
        print(all(changed), state() == before, signal.set_wakeup_fd(-1), flush=True)
        ready()
        time.sleep(1000)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "True True -1"
        job.read_line()
        job.send(signal.SIGUSR2)
        assert job.ended() == -signal.SIGUSR2
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.d", "manifest.json"}


def test_ending_in_another_thread_leaves_nothing_that_could_write_into_files_of_the_job(tmp_path: Path) -> None:
    body = """
        run = begin()
        thread = threading.Thread(target=run.finish)
        thread.start()
        thread.join()
        files = [os.open(sys.argv[1] + f"/of_the_job_{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
        print(sum(os.fstat(file).st_size for file in files), flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "0"
        assert job.ended() == 0


def test_a_job_that_closes_all_files_keeps_those_it_opens_then(tmp_path: Path) -> None:
    body = """
        run = begin()
        os.closerange(3, 100)
        files = [os.open(sys.argv[1] + f"/of_the_job_{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
        run.part("stacks").tick()
        run.finish()
        print(sum(os.fstat(file).st_size for file in files), flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "0"
        assert job.ended() == 0
        assert job.process.stderr
        assert job.process.stderr.read() == ""


def test_beginning_in_another_thread_leaves_the_signals_alone(tmp_path: Path) -> None:
    body = """
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
    """
    with child(tmp_path, body) as job:
        assert job.read_line() == "True"
        assert job.ended() == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert "main thread" in manifest["ranks"][0]["problems"][0]["problem"]
