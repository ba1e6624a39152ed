"""Where every Python thread is, in stacks_<rank>.txt: with each dump, and when no Python code can run anymore."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import re
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rankscope.collect.dumps import worker_stacks
from rankscope.collect.dumps.c_printer import CPrinter
from rankscope.collect.part import Part
from rankscope.collect.run import EXIT, Run

ON_REQUEST = "SIGUSR2"  # the reason of a dump requested with this signal
HELD = "no Python code could run"  # the reason of what was printed when the collector's thread stood still
COLLECTOR = "rankscope"  # begins the names of the collector's threads
_LEFT_BEHIND = ".held.txt"
_MARGIN_SECONDS = 2.0  # for the collector's own thread, which may be late on a busy machine
_MAX_SECTIONS = 100  # a job that is asked every minute must not fill its memory
_STACKS = re.compile(r"\n(?=Current thread 0x|Thread 0x)")
_THREAD = re.compile(r"((?:Current thread|Thread) 0x(?P<number>[0-9a-f]+))(?: \[(?P<name>.*)\])? \(most recent")
# Threads that the collector started, by their outermost frames: those that have ended by now have no name any more.
_OWN_THREAD = re.compile(
    r'rankscope.collect.[^"]*\.py", line \d+ in \w+\n'
    r'(?:  File ".*threading\.py", line \d+ in run\n)?  File ".*threading\.py", line \d+ in _bootstrap_inner\n'
)
# In a thread of the job: the collector's signal handler, or rankscope.dump(), and what these wait in.
_OWN_HANDLER = re.compile(
    r'\A(?:.*\n)*  File ".*rankscope.collect.(?:dumps.endings\.py", line \d+ in _handle|api\.py", line \d+ in dump)\n'
)
# What C code prints before the stacks, where no signal asked for them.
_EXTENSIONS = re.compile(r"^Extension modules: [^\n]*\n?", re.MULTILINE)  # which a crash ends with
_BY_ITSELF = re.compile(r"^(?:Timeout \([0-9:.]+\)!|(Fatal Python error: [^\n]*))\n", re.MULTILINE)


class Stacks(Part):
    NAME = "stacks"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._name = f"stacks_{run.rank}.txt"
        self._seconds = 1.1 * run.settings.stall_seconds + _MARGIN_SECONDS
        self._sections: deque[str] = deque(maxlen=_MAX_SECTIONS)
        self._printer: CPrinter | None = None
        self._raised: tuple[int, str] | None = None  # thread, and where it was when it raised

    def start(self) -> None:
        self._printer = CPrinter(self.run.aside(self._name.replace(".txt", _LEFT_BEHIND)), self._seconds)
        with contextlib.suppress(ImportError, AttributeError):  # another torch than we know
            worker_stacks.install(self.run.folder)

    def tick(self) -> None:
        if self._printer is not None and self.run.settings.stall_seconds > 0:
            self._printer.put_off()

    def print_on(self, number: signal.Signals) -> None:
        if self._printer is not None:
            self._printer.print_on(number)

    def stop_printing_on(self, number: signal.Signals) -> bool:
        """False if the signal is not ours any more."""
        return self._printer is None or self._printer.stop_printing_on(number)

    def raised(self, thread: int, where: TracebackType | None, in_worker: Sequence[tuple[str, int, str]] = ()) -> None:
        """An exception ends this thread. Its frames are gone when the dump is made, which then uses these instead.

        Those of a worker process that raised it first come before them.
        """
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(where)]
        outer = [(code.co_filename, line, code.co_name) for code, line in reversed(frames)]
        lines = [f'  File "{file}", line {line} in {name}\n' for file, line, name in (*in_worker, *outer)]
        self._raised = (thread, f"Current thread 0x{thread:016x} (most recent call first):\n{''.join(lines)}")

    def dump(self, reason: str) -> None:
        printed = self._printer.take() if self._printer is not None else ""
        sections = list(_by_reason(printed))
        if reason != EXIT and (reason != ON_REQUEST or not sections):
            sections.append((reason, self._now()))
        if not sections:
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        workers = "\n".join(worker_stacks.read(self.run.folder))
        for why, stacks in sections:
            header = section_header(self.run.rank, os.getpid(), time.time(), why)
            threads = [workers, _tidied(stacks, names)] if why == reason and workers else [_tidied(stacks, names)]
            self._sections.append("\n".join([header, *threads]) + "\n")
        self._publish()

    def deepen(self, change: Callable[[str, Callable[[], str]], str]) -> None:
        """Has `change` add to the newest section. It gets the section's stacks, and a way to print them again."""
        if self._sections:
            header, _, stacks = self._sections[-1].partition("\n")
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self._sections[-1] = f"{header}\n{change(stacks, lambda: _tidied(self._now(), names))}\n"
            self._publish()

    def close(self) -> None:
        if self._printer is not None:
            self._printer.close()
            self._printer = None
            worker_stacks.remove()
            worker_stacks.clean(self.run.folder, os.getpid())

    def _publish(self) -> None:
        text = "".join(self._sections)
        self.run.publish(self.NAME, self._name, lambda path: _write(path, text), replace=True)

    def _now(self) -> str:
        aside = self.run.aside(f"{self._name}.now")
        try:
            with aside.open("w+b") as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                printed = file.read().decode("utf-8", "replace")
        finally:
            aside.unlink(missing_ok=True)
        raised, self._raised = self._raised, None
        return f"{raised[1]}\n{_without(printed, raised[0])}" if raised else printed


def publish_left_behind(folder: Path, rank: int) -> bool:
    """Adds to stacks_<rank>.txt what a rank printed before it was killed: it could not, as no Python code could run.

    Only for a rank that has ended. False if there is nothing.
    """
    name = f"stacks_{rank}.txt"
    sections = []
    for path in sorted(folder.glob(f"stacks_{rank}{_LEFT_BEHIND}.*.partial")):
        pid, when = int(path.name.split(".")[-2]), path.stat().st_mtime
        for reason, stacks in _by_reason(path.read_text(encoding="utf-8", errors="replace")):
            sections.append(f"{section_header(rank, pid, when, reason)}\n{_tidied(stacks, {})}\n")
        path.unlink()
    if sections:
        earlier = (folder / name).read_text(encoding="utf-8") if (folder / name).exists() else ""
        whole = folder / f"{name}.left.partial"
        whole.write_text(earlier + "".join(sections), encoding="utf-8")
        os.replace(whole, folder / name)
    return bool(sections)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def section_header(rank: int, pid: int, when: float, reason: str) -> str:
    moment = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).isoformat(timespec="microseconds")
    why = " ".join(reason.split())[:500].replace("===", "==")
    return f"=== rankscope stacks: rank {rank}, pid {pid}, {moment.replace('+00:00', 'Z')}, reason: {why} ==="


def _by_reason(printed: str) -> Iterator[tuple[str, str]]:
    """What C code has printed, with the reason: it says when its timer ran out or it crashed, else a signal asked."""
    on_request, *others = _BY_ITSELF.split(printed)
    if on_request:
        yield ON_REQUEST, on_request
    for crash, stacks in zip(others[::2], others[1::2], strict=True):
        yield crash or HELD, stacks


def _tidied(printed: str, names: Mapping[int | None, str]) -> str:
    """With the names of the threads, as Python prints them from 3.14 on, and without what the collector itself does."""
    kept = []
    for stack in _STACKS.split(_EXTENSIONS.sub("", printed).strip()):
        header, _, frames = stack.partition("\n")
        thread = _THREAD.match(header)
        name = (thread["name"] or names.get(int(thread["number"], 16), "")) if thread else ""
        if thread and name:
            header = f"{thread[1]} [{name}] (most recent call first):"
        if not name.startswith(COLLECTOR) and not _OWN_THREAD.search(frames):
            shown = _OWN_HANDLER.sub("", frames.rstrip() + "\n").rstrip()
            kept.append(f"{header}\n{shown}\n")
    return "\n".join(kept)


def _without(printed: str, thread: int) -> str:
    stacks = _STACKS.split(printed)
    return "\n".join(stack for stack in stacks if f"0x{thread:016x} " not in stack.partition("\n")[0])
