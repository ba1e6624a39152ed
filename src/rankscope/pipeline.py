"""The order of the stages: load(paths) -> Trace, diagnose(trace) -> Report. Known only here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope import analyze
from rankscope.analyze.attempts import Judged, join_attempts, later_attempts
from rankscope.model.finding import Report
from rankscope.model.tables import Trace
from rankscope.read.capture import Options, Progress, ReadSettings, read_capture

if TYPE_CHECKING:
    from typing import Unpack


def load(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    transform: Callable[[Trace], None] | None = None,
    **settings: Unpack[ReadSettings],
) -> Trace:
    """Reads every trace at the given paths and matches what belongs together.

    `transform` may change the tables as they were read, before groups are resolved. While it reads, a file may take
    only as much memory, CPU time, rows and names as honest files of its size need; `limits=False` lifts that.
    `cache` is the folder that keeps the tables of large traces for the next run; without it they live as long as this
    process. `with_stacks` also reads the Python functions of profiler traces.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    options = Options(**settings)
    trace = read_capture([os.fspath(path) for path in given], options)
    for world in (trace, *trace.beside):
        if transform is not None:
            transform(world)
        analyze.prepare(world, options.progress)
    return trace


def diagnose(trace: Trace, progress: Progress | None = None) -> Report:
    """Runs all rules; the first finding is the root cause. Worlds that were alive side by side are all judged, and so
    are the later attempts of a job that was restarted.
    """
    report = analyze.judge(trace, progress)
    attempts = later_attempts(trace)
    if not attempts:
        return report
    later = [Judged(number, path, other := load(path), analyze.judge(other, progress)) for number, path in attempts]
    return join_attempts(trace, report, later)


def shown_world(trace: Trace, report: Report) -> Trace:
    """The world that the report describes: that of the root cause."""
    worlds = (trace, *trace.beside)
    return next((each for each in worlds if each.world and each.world.number == report.capture.world), trace)
