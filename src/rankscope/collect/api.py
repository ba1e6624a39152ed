"""The collector as a few lines of the job's own code: collect, step, metric and dump."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rankscope.collect import run as runs
from rankscope.collect.profile import steps
from rankscope.collect.requests import ASKED
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings
from rankscope.collect.telling import tell_line

_STARTUP = "rankscope.collect.launching.startup"
_ENDS_IN_ORDER = (SystemExit, GeneratorExit)
_DUMPED = ("stacks", "desync", "recorder")
# torch reads these when the first process group is made; all else is set where it is collected.
_OF_RECORDER = ("TORCH_FR_", "TORCH_NCCL_")


def collect(folder: str | os.PathLike[str] = "traces", **settings: Any) -> Collection:
    """Collects from this process until the block that it begins is left, or stop() is called.

    `settings` are the fields of Settings: active=3, desync=True, ... If a collector is already running, started by the
    launcher or by an earlier call, this joins it. Without torch it does nothing.
    """
    wanted = _wanted(folder, settings)
    running = _running()
    if running is not None:
        return Collection(running, [])
    if importlib.util.find_spec("torch") is None:
        tell_line("nothing is collected: torch is not installed")
        return Collection(None, [])
    undo: list[Callable[[], object]] = []
    try:
        return Collection(_begin(wanted, undo), undo)
    except Exception as error:  # whatever it is, the job must go on
        _take_back(undo)
        tell_line(f"nothing is collected: {type(error).__name__}: {error}")
        return Collection(None, [])


def step(samples: float | None = None) -> None:
    """A training step has ended; `samples`: how many were trained on, for the throughput.

    From the first call on, steps are no longer detected automatically.
    """
    run = runs.current() or _asked_for_by_launcher()
    if run is not None and not steps.take_over():
        run.step(samples)


def metric(name: str, value: Any, step: int | None = None) -> None:
    """Records one of the job's own numbers, such as its loss; `step`: its step, if not the current one."""
    run = runs.current() or _asked_for_by_launcher()
    if run is None:
        return
    from rankscope.collect.metrics import Metrics

    part = run.part(Metrics.NAME)
    if isinstance(part, Metrics):
        with contextlib.suppress(Exception):
            part.tell(name, value, run.n_steps + steps.is_by_hand() if step is None else step)


def dump(seconds: float = 30.0) -> list[Path]:
    """Writes the current state of the recorders and stacks, and continues. Every file in the list is complete.

    The collector's own thread writes; the caller waits at most `seconds` for it. Empty when nothing is collected, or
    when it takes longer: then the files come later.
    """
    run = runs.current() or _asked_for_by_launcher()
    if run is None or run.has_ended:
        return []
    done = threading.Event()
    run.request_dump(f"{ASKED}rankscope.dump()", done.set)
    if not done.wait(seconds):
        return []
    written = [run.folder / got["file"] for got in run.describe()["got"] if got["what"] in _DUMPED]
    return [path for path in written if path.exists()]


class Collection:
    """A running collection. It ends with the block or with stop(), whichever comes first."""

    def __init__(self, run: Run | None, undo: list[Callable[[], object]]) -> None:
        self._run = run
        self._undo = undo  # empty if the launcher or an earlier call began
        self._pid = os.getpid()

    @property
    def folder(self) -> Path | None:
        """The output folder; None when nothing is collected."""
        return self._run.folder if self._run is not None else None

    def step(self, samples: float | None = None) -> None:
        """As rankscope.step()."""
        step(samples)

    def metric(self, name: str, value: Any, step: int | None = None) -> None:
        """As rankscope.metric()."""
        metric(name, value, step)

    def dump(self, seconds: float = 30.0) -> list[Path]:
        """As rankscope.dump()."""
        return dump(seconds)

    def stop(self) -> None:
        """Publishes the files and takes the collector's hooks out of torch. A second call changes nothing."""
        undo, self._undo = self._undo, []
        if os.getpid() == self._pid:  # a forked child may leave the block, too
            _take_back(undo)

    def __enter__(self) -> Collection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._undo and self._run is not None and not issubclass(kind, _ENDS_IN_ORDER):
            self._run.dump(f"{kind.__name__}: {error}")
        self.stop()


def _begin(wanted: Settings, undo: list[Callable[[], object]]) -> Run:
    """The steps are noted in `undo` as they are made: they are taken back from the last to the first."""
    from rankscope.collect import manifest
    from rankscope.collect.launching import folders, startup

    run_id = wanted.run_id or folders.job_run_id()
    base = folders.claim(wanted.folder, run_id)
    wanted = dataclasses.replace(wanted, folder=str(base), run_id=run_id)
    undo.append(_set_environment(wanted))
    importlib.import_module("torch")
    who = startup.identity()
    folder = folders.claim_rank(base, who.rank, folders.restart_count())
    run = Run(dataclasses.replace(wanted, folder=str(folder)))
    about = {
        "id": run_id,
        "command": manifest.telling_command(sys.orig_argv),
        "started_ns": time.time_ns(),
        "ended_ns": None,
        "exit_code": None,
    }
    undo.append(lambda: _write_about(run, {**about, "ended_ns": time.time_ns()}))
    undo.append(lambda: runs.set_current(None))
    undo.append(run.finish)
    undo.append(steps.install(run.step_found))
    undo.append(startup.watch_init_process_group(run.joined))
    runs.set_current(run)
    run.begin(*who)
    _write_about(run, about)
    return run


def _write_about(run: Run, about: dict[str, Any]) -> None:
    """Only a single process knows when the run ends."""
    from rankscope.collect import manifest

    if run.world_size == 1:
        manifest.write_whole(run.folder, about)


def _set_environment(wanted: Settings) -> Callable[[], object]:
    from rankscope.collect.launching.environment import job_environment

    wishes = job_environment(wanted).variables.items()
    added = {name: value for name, value in wishes if name.startswith(_OF_RECORDER) and name not in os.environ}
    os.environ.update(added)
    return lambda: [os.environ.pop(name, None) for name in added]


def _wanted(folder: str | os.PathLike[str], settings: dict[str, Any]) -> Settings:
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in settings:
        if name not in known:
            from difflib import get_close_matches

            nearest = get_close_matches(name, known, 1)
            meant = f": did you mean {nearest[0]}?" if nearest else f"; known settings: {', '.join(known)}"
            raise TypeError(f"collect() has no setting {name!r}{meant}")
    wanted = Settings(folder=os.fspath(folder), **settings)
    wrong = wanted.wrong_schedule()
    if wrong:
        raise ValueError(f"collect(): {wrong}")
    return wanted


def _running() -> Run | None:
    run = runs.current() or _asked_for_by_launcher()
    return run if run is not None and not run.has_ended else None


def _asked_for_by_launcher() -> Run | None:
    startup = sys.modules.get(_STARTUP)
    return startup.run_of_training() if startup is not None else None


def _take_back(undo: list[Callable[[], object]]) -> None:
    for one in reversed(undo):
        with contextlib.suppress(Exception):
            one()
