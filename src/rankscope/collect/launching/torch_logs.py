"""What torch's compiler logs: TORCH_LOGS as a file per rank, and the compile log of TORCH_TRACE.

torch's own TORCH_LOGS_OUT does not help: it writes all ranks into one file, and to stderr as well. So the requested
names are switched on in the rank, and what the job itself turns on (torch._logging.set_logs) goes into the same file
(log_choice.py). Each of the job's handlers keeps showing what the job's own settings ask for.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rankscope.collect.files import PARTIAL
from rankscope.collect.launching.log_choice import LogChoice, write_choices
from rankscope.collect.launching.log_names import as_torch_has_them
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

COMPILE_LOG_FOLDER = "torch_trace"


class TorchLogs(Part):
    NAME: ClassVar[str] = "torch_logs"
    COMPILE_LOG: ClassVar[str] = "compile_log"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.file_name = f"torch_logs_{run.rank}.txt"
        self._file: LogFile | None = None

    def start(self) -> None:
        from torch._logging import _internal

        if self.run.settings.compile_log:
            self._place_compile_log(_internal.LOG_TRACE_HANDLER)
        self._file = _logs_of_this_process(self.run.settings)
        if self._file is None:
            problem = f"torch does not know all of these logs: {self.run.settings.logs}"
            self.run.problem(self.NAME, problem, "to list them, run rankscope logs")
        else:
            self._file.move(self.run.aside(self.file_name))

    def dump(self, reason: str) -> None:
        self._note_compile_log()

    def close(self) -> None:
        self._note_compile_log()
        if self._file is not None:
            self._file.end()
            self._publish_logs(self._file)

    def _publish_logs(self, file: LogFile) -> None:
        if not file.path.exists():
            return  # torch had nothing to say under these names
        if file.is_full:
            size = f"{self.file_name} ends at {file.path.stat().st_size:,} bytes"
            if file.why:
                self.run.problem(self.NAME, f"{size}: {file.why}", "collect to a folder that stays and has room")
            else:
                self.run.problem(self.NAME, f"{size}: the limit is reached", "request fewer logs, or raise --max-size")
        self.run.publish_written(self.NAME, self.file_name, file.path)

    def _place_compile_log(self, handler: Any) -> None:
        """torch opens the file when it first has something to write: until then the folder can be chosen."""
        folder = self.run.folder / COMPILE_LOG_FOLDER
        chosen = os.environ.get("TORCH_TRACE")
        if chosen and Path(chosen) != folder:
            self.run.problem(self.COMPILE_LOG, f"TORCH_TRACE is set to {chosen}: the compile log goes there")
        elif handler not in logging.getLogger("torch.__trace").handlers:
            problem = "torch compiled something before collection started, so it writes no log"
            self.run.problem(self.COMPILE_LOG, problem, "start collecting before the first torch.compile runs")
        elif getattr(handler, "stream", None) is None:
            handler.root_dir = str(folder)

    def _note_compile_log(self) -> None:
        from torch._logging import _internal

        written = getattr(_internal.LOG_TRACE_HANDLER, "_stream_path", None)
        if self.run.settings.compile_log and written and Path(written).is_relative_to(self.run.folder):
            self.run.got(self.COMPILE_LOG, str(Path(written).relative_to(self.run.folder)))


_early: LogFile | None = None


def begin_early(settings: Settings) -> None:
    """A script that trains alone is known to be a rank after its first step: by then its model has been compiled."""
    global _early
    if settings.logs or settings.compile_log:
        with contextlib.suppress(ImportError, AttributeError):  # a torch that logs in another way: the part tells it
            _early = _write_logs(settings)
            atexit.register(_drop, _early)


def _logs_of_this_process(settings: Settings) -> LogFile | None:
    if _early is not None and _early.is_ours():
        return _early
    if _early is not None and not _early.has_ended:
        _early.on_end()  # of the process that this one was forked from: its choice must not pass for the job's own
    return _write_logs(settings)


def _write_logs(settings: Settings) -> LogFile | None:
    """None where torch does not know the names."""
    from torch._logging import _internal

    try:
        names = as_torch_has_them(settings.logs)
        state = _internal._parse_log_settings(names) if names else _internal.LogState()
        wanted = LogChoice(state, _internal.log_registry)
    except ValueError:
        return None
    file = LogFile(Path(settings.folder) / f"torch_logs.{os.getpid()}{PARTIAL}", settings.max_bytes)
    file.setFormatter(_internal.DEFAULT_FORMATTER)
    file.on_end = write_choices(_internal, wanted, file)
    return file


def _drop(file: LogFile | None) -> None:
    """Removes the file of a process that never became a rank."""
    if file is not None and file.is_ours():
        file.end()
        file.path.unlink(missing_ok=True)


class LogFile(logging.FileHandler):
    """Takes the records of its own process until its size reaches the limit."""

    why = ""  # what else than the limit ended it

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.path = path
        self.is_full = self.has_ended = False
        self.on_end: Callable[[], None] = lambda: None
        self._max_bytes = max_bytes
        self._pid = os.getpid()

    def is_ours(self) -> bool:
        """Neither that of the process that this one was forked from, nor one that another run had."""
        return os.getpid() == self._pid and not self.has_ended

    def move(self, path: Path) -> None:
        """Also while it is being written."""
        if self.path.exists():
            self.path.rename(path)
        self.path, self.baseFilename = path, str(path)

    def end(self) -> None:
        self.has_ended = True
        self.on_end()
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_full or not self.is_ours():
            return
        try:
            super().emit(record)
        except OSError as error:  # the file cannot be made; handleError is not asked then
            self.is_full, self.why = True, error.strerror or ""
            return
        self.is_full = self.stream is not None and self.stream.tell() >= self._max_bytes

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """The disk is full or the folder gone: nothing of that goes to the job's stderr."""
        self.is_full, self.why = True, str(getattr(sys.exc_info()[1], "strerror", None) or "")
