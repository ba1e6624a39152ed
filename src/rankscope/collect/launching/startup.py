"""Finds out whether a process of the job is a rank, and which one. Only then is anything collected in it.

A rank is a process that torchrun started as one, that initializes torch.distributed, or that trains alone. Workers of a
DataLoader, compilers and other children of a rank have its environment, but are none; torchrun itself is none either.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from rankscope.collect.launching import child_exits, folders, torch_logs
from rankscope.collect.launching.nsys import main_module
from rankscope.collect.profile import steps
from rankscope.collect.profile.signs import BACKWARD, OPTIMIZER
from rankscope.collect.run import Run, set_current
from rankscope.collect.settings import Settings, from_environment

RANK_PID = "RANKSCOPE_RANK_PID"  # `pid:world size` of the rank that a process descends from
TORCH_PID = "RANKSCOPE_TORCH_PID"  # of the first process above that imported torch
FAILURE = "startup_failure_{pid}.txt"
# What the launcher has set -> what torch before 2.10 may call it.
OLDER_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
_FIRST_WITH_NEWER_NAMES = (2, 10)
# Set for the whole run; a later attempt has a folder of its own.
_PLACED = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_TRACE")


class Identity(NamedTuple):
    rank: int
    world_size: int
    local_rank: int


ALONE = Identity(0, 1, 0)


class Candidate:
    """A process that has imported torch and may turn out to be a rank."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run: Run | None = None
        self._pid, self._started_ns = os.getpid(), time.time_ns()
        self._lock = threading.RLock()
        self._is_first = _first_number(os.environ.get(TORCH_PID, "")) in (0, self._pid)
        self._excepthook = sys.excepthook
        self._is_helper = False  # it does something for the job, but is not known to train

    def watch(self) -> None:
        os.environ.setdefault(TORCH_PID, str(self._pid))
        _set_older_names()
        torch_logs.begin_early(self.settings)
        steps.install(self.step_ended)
        watch_init_process_group(
            lambda: _guarded(self.settings, self.joined), lambda *who: _guarded(self.settings, lambda: self.joins(*who))
        )
        watch_destroy_process_group(lambda: _guarded(self.settings, self.left))
        sys.excepthook = self._on_exception
        atexit.register(self.process_ends)
        os.register_at_fork(after_in_child=self._forked)
        child_exits.watch(Path(self.settings.folder), lambda: self.run is not None)
        if _is_worker_of_torchrun() and not _rank_above():
            self.begin()

    def begin(self, who: Identity | None = None) -> Run | None:
        """The process is a rank."""
        with self._lock:
            if self.run is None:
                who = who or identity()
                folder = self._place(who.rank)
                os.environ[RANK_PID] = f"{os.getpid()}:{who.world_size}"
                self.run = Run(dataclasses.replace(self.settings, folder=str(folder)), begins_with_step=False)
                set_current(self.run)
                self.run.begin(*who)
            return self.run

    def begin_alone(self) -> Run | None:
        """The process trains; it is a rank unless a process above it is one."""
        return self.run or (None if _rank_above() else self.begin())

    def step_ended(self, sign: str, n_ended: int) -> None:
        """A child that only calls modules or loads batches may prepare them for the rank."""
        if self.run is None and sign not in (OPTIMIZER, BACKWARD):
            self._is_helper = self._is_helper or not _guarded(self.settings, self._is_main_program)
            if self._is_helper:
                return
        run = self.run or _guarded(self.settings, self.begin_alone)
        if run is not None:
            run.step_found(sign, n_ended)

    def joins(self, rank: int | None, world_size: int | None) -> Callable[[], object] | None:
        """init_process_group is called, and may never return: a process that says which rank it is begins now."""
        who = identity()
        if rank is not None and world_size is not None and 0 <= rank < world_size:
            who = Identity(rank, world_size, rank if (local := _number("LOCAL_RANK")) is None else local)
        if self.run is None and who.world_size > 1 and not _rank_above():
            self.begin(who)
        return self.run.begin_joining() if self.run is not None else None

    def joined(self) -> None:
        """torch.distributed has been initialized here."""
        above = _rank_above()
        if self.run is not None:
            self.run.joined()
        elif not above or (above.world_size == 1 and identity().world_size > 1):
            self.begin()  # which finds out by itself that there are groups

    def left(self) -> None:
        """All process groups were destroyed."""
        if self.run is not None:
            self.run.left()

    def process_ends(self) -> None:
        run = _guarded(self.settings, self._begin_at_end)
        if run is not None:
            run.finish()

    def _begin_at_end(self) -> Run | None:
        """What imported torch and was no rank until now is one: a script without training, or that failed before."""
        return self.begin() if self.run is None and self._is_main_program() else None

    def _place(self, rank: int) -> Path:
        folder = Path(self.settings.folder)
        try:
            attempt = folders.claim_rank(folder, rank, folders.restart_count())
        except OSError:
            return folder  # the run tells what is wrong with it
        if attempt != folder:
            for name in _PLACED:
                if os.environ.get(name, "").startswith(f"{folder}{os.sep}"):
                    os.environ[name] = os.environ[name].replace(str(folder), str(attempt), 1)
        return attempt

    def _is_main_program(self) -> bool:
        """True for the job's main program: not a process that it started, none of torch's own, and no launcher."""
        return (
            os.getpid() == self._pid
            and self._is_first
            and not _rank_above()
            and not folders.is_spawned()
            and not _is_part_of_torch()
            and "torch.distributed.run" not in sys.modules
            and not folders.has_rank_since(Path(self.settings.folder), self._started_ns)
        )

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        has_begun = _guarded(self.settings, self._begin_at_end) is not None
        if has_begun and sys.excepthook != self._on_exception:
            sys.excepthook(kind, error, trace)  # a part's own, which ends with this one
        else:
            self._excepthook(kind, error, trace)

    def _forked(self) -> None:
        """A child of a rank is none, but has its objects; a child of a process that is none may become one."""
        self._lock = threading.RLock()  # another thread may have held it
        self.run = None
        set_current(None)


_candidate: Candidate | None = None


def watch() -> None:
    """torch has just been imported."""
    global _candidate
    settings = from_environment()
    if settings is not None and _candidate is None:
        _candidate = Candidate(settings)
        _guarded(settings, _candidate.watch)


def run_of_training() -> Run | None:
    """The run of a process that says by itself that it trains; None when nothing is collected."""
    if _candidate is None:
        return None
    run: Run | None = _candidate.run or _guarded(_candidate.settings, _candidate.begin_alone)
    return run


def _guarded(settings: Settings, function: Callable[[], Any]) -> Any:
    """Nothing reaches the job. Failures are left in the folder, for the launcher to report."""
    try:
        return function()
    except Exception:
        problem = traceback.format_exc()
        with contextlib.suppress(OSError):  # the folder is gone or full: the launcher will see that nothing is there
            note = Path(settings.folder) / FAILURE.format(pid=os.getpid())
            note.write_text(problem, encoding="utf-8", errors="backslashreplace")
        return None


def _set_older_names() -> None:
    version = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")[:2]
    if all(map(str.isdecimal, version)) and tuple(map(int, version)) < _FIRST_WITH_NEWER_NAMES:
        for newer, older in OLDER_NAMES.items():
            if newer in os.environ:
                os.environ.setdefault(older, os.environ[newer])


def watch_init_process_group(
    joined: Callable[[], object], joins: Callable[[int | None, int | None], Callable[[], object] | None] | None = None
) -> Callable[[], None]:
    """Calls `joined` whenever torch.distributed has been initialized, until what is returned is called.

    `joins` is called before, with the rank and the world size where the job gives them; what it returns, afterwards.
    """
    import torch.distributed

    if not torch.distributed.is_available():
        return lambda: None
    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        ended = None
        if joins is not None:
            with contextlib.suppress(Exception):
                ended = joins(*_given_rank(args, kwargs))
        try:
            result = original(*args, **kwargs)
        finally:
            if ended is not None:
                ended()
        with contextlib.suppress(Exception):
            joined()
        return result

    _replace_in_torch("init_process_group", original, init_process_group)
    return lambda: _replace_in_torch("init_process_group", init_process_group, original)


def watch_destroy_process_group(left: Callable[[], object]) -> None:
    """Calls `left` when no process group is left."""
    import torch.distributed

    original = getattr(torch.distributed, "destroy_process_group", None)
    if original is None:  # this torch has no distributed
        return

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with contextlib.suppress(Exception):
            if not torch.distributed.is_initialized():
                left()
        return result

    _replace_in_torch("destroy_process_group", original, destroy_process_group)


def _given_rank(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int | None]:
    """The rank and the world size that init_process_group was called with, as it orders its arguments."""
    given = {**dict(zip(("backend", "init_method", "timeout", "world_size", "rank"), args, strict=False)), **kwargs}
    known = [
        value if isinstance(value, int) and value >= 0 else None for value in map(given.get, ("rank", "world_size"))
    ]
    return known[0], known[1]


def _replace_in_torch(function: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """In every module of torch that has imported the function by its name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(module).get(function) is old:
            setattr(module, function, new)


def identity() -> Identity:
    """By torch.distributed where it is initialized, else by the environment, else alone."""
    import torch.distributed as dist

    local_rank = _number("LOCAL_RANK")
    if dist.is_available() and dist.is_initialized():
        rank = dist.get_rank()
        return Identity(rank, dist.get_world_size(), rank if local_rank is None else local_rank)
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    if rank is None or world_size is None or rank >= world_size:
        return ALONE
    return Identity(rank, world_size, local_rank or 0)


def _is_worker_of_torchrun() -> bool:
    """Operators of clusters set RANK for torchrun itself, too, but not LOCAL_RANK."""
    numbers = (_number("RANK"), _number("WORLD_SIZE"), _number("LOCAL_RANK"))
    return None not in numbers and not _is_part_of_torch()


class RankAbove(NamedTuple):
    pid: int
    world_size: int


def _rank_above() -> RankAbove | None:
    """The rank that started this process, or the process that did."""
    pid, _, world_size = os.environ.get(RANK_PID, "").partition(":")
    if not pid.isdecimal() or int(pid) == os.getpid():
        return None
    return RankAbove(int(pid), _first_number(world_size))


def _is_part_of_torch() -> bool:
    """`python -m torch.distributed.run` and the like, and the processes that compile for torch."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    torch_folder = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "?")
    return main.startswith(torch_folder + os.sep) or main_module(sys.orig_argv).startswith("torch.")


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _first_number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
