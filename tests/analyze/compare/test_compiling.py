"""Two runs compared: what came, what went, and that code which merely moved is found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope import pipeline
from rankscope.analyze.compare.compiling import compare_runs
from rankscope.model.compile_changes import CompileChanges
from rankscope.render.compile_changes import change_lines
from rankscope.simulate.compile_log import LogBuilder, Site

FILE = "/old/model.py"
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12"
Fill = Callable[[LogBuilder], object]


def compiled(log: LogBuilder, compile_id: str = "0/0", *, seconds: float = 1, line: int = 30, **fields: Any) -> None:
    """One compilation of `forward`; `fields` go into its metrics."""
    code = {"co_name": "forward", "co_filename": FILE, **fields}
    log.start(
        compile_id, (Site("/old/train.py", 5, "main", "train()"), Site(code["co_filename"], line, code["co_name"]))
    )
    log.wait(seconds).metrics(compile_id, seconds, **code, co_firstlineno=line)


def compared(folder: Path, old: Fill, new: Fill, n_ranks: int = 1) -> CompileChanges:
    traces = []
    for name, fill in (("before", old), ("after", new)):
        for rank in range(n_ranks):
            log = LogBuilder(rank)
            fill(log)
            log.write(folder / name)
        traces.append(pipeline.load(folder / name))
    return compare_runs(*traces)


def broken_at(line: int, *, reason: str = "Tensor.item()", file: str = FILE) -> Fill:
    def fill(log: LogBuilder) -> None:
        log.graph_break("0/0", file, line, reason)
        compiled(log, co_filename=file)

    return fill


def test_a_run_compared_with_itself_has_changed_in_nothing(tmp_path: Path) -> None:
    changes = compared(tmp_path, broken_at(33), broken_at(33))
    assert (changes.graph_breaks, changes.recompiles, changes.failures) == ((), (), ())
    assert not changes.is_worse
    assert [line.change_ns for line in changes.lines] == [0]


def test_new_and_gone_graph_breaks_are_told_apart_by_place_and_reason(tmp_path: Path) -> None:
    changes = compared(tmp_path, broken_at(33), broken_at(33, reason="print()"))
    assert [(change.kind, change.line, change.what) for change in changes.graph_breaks] == [
        ("new", 33, "print()"),
        ("gone", 33, "Tensor.item()"),
    ]
    assert changes.is_worse


@pytest.mark.parametrize("new", [broken_at(41), broken_at(33, file="/new/model.py")], ids=["line", "folder"])
def test_a_break_in_code_that_moved_is_not_new(tmp_path: Path, new: Fill) -> None:
    assert compared(tmp_path, broken_at(33), new).graph_breaks == ()


def test_of_several_lines_alike_the_nearest_is_the_same(tmp_path: Path) -> None:
    def two(first: int, second: int) -> Fill:
        def fill(log: LogBuilder) -> None:
            for line in (first, second):
                log.graph_break("0/0", FILE, line, "Tensor.item()")
            compiled(log)

        return fill

    changes = compared(tmp_path, two(33, 60), broken_at(62))
    assert [(change.kind, change.line) for change in changes.graph_breaks] == [("gone", 33)]
    assert not changes.is_worse


def recompiled(*reasons: str) -> Fill:
    def fill(log: LogBuilder) -> None:
        compiled(log)
        for number, reason in enumerate(reasons, 1):
            log.recompile(f"0/{number}", reason)
            compiled(log, f"0/{number}")

    return fill


def test_recompilations_are_compared_by_function_and_by_what_changed_not_by_its_values(tmp_path: Path) -> None:
    other_size = SIZE.replace("12", "16")
    assert compared(tmp_path / "a", recompiled(SIZE), recompiled(other_size)).recompiles == ()
    (change,) = compared(tmp_path / "b", recompiled(), recompiled(SIZE)).recompiles
    assert (change.kind, change.function, change.n_old, change.n_new) == ("new", "forward", 0, 1)
    assert "the size of x (dimension 0) changed" in change.what
    (change,) = compared(tmp_path / "c", recompiled(SIZE), recompiled(SIZE, other_size)).recompiles
    assert (change.kind, change.n_old, change.n_new) == ("more", 1, 2)


def test_ranks_that_do_the_same_count_once(tmp_path: Path) -> None:
    changes = compared(tmp_path, recompiled(), recompiled(SIZE), n_ranks=4)
    assert [change.n_new for change in changes.recompiles] == [1]
    assert (changes.new.ranks, changes.new.total_ns) == ((0, 1, 2, 3), 2_000_000_000)


def test_failures_that_came_and_went(tmp_path: Path) -> None:
    def failed(log: LogBuilder) -> None:
        compiled(log, fail_type="RuntimeError", fail_reason="no kernel\nof this kind", has_guarded_code=False)

    (change,) = compared(tmp_path / "a", recompiled(), failed).failures
    assert (change.kind, change.what) == ("new", "RuntimeError: no kernel")
    better = compared(tmp_path / "b", failed, recompiled())
    assert [change.kind for change in better.failures] == ["gone"]
    assert not better.is_worse


def test_time_is_told_per_line_and_phase_though_the_line_moved(tmp_path: Path) -> None:
    def old(log: LogBuilder) -> None:
        compiled(log, seconds=3)
        compiled(log, "1/0", co_name="loss", line=90, seconds=2)

    def new(log: LogBuilder) -> None:
        compiled(log, line=35, seconds=5)
        compiled(log, "1/0", co_name="metric", line=90, seconds=1)

    changes = compared(tmp_path, old, new)
    told = [(line.name, line.old_line, line.line, line.change_ns / 1e9) for line in changes.lines]
    assert told == [("forward", 30, 35, 2.0), ("metric", -1, 90, 1.0), ("loss", 90, -1, -2.0)]
    assert sum(phase.new_ns for phase in changes.phases) == changes.new.total_ns == 6_000_000_000
    assert sum(part.old_ns for part in changes.passes) == changes.old.total_ns == 5_000_000_000


def test_hit_rates_of_the_caches_are_compared(tmp_path: Path) -> None:
    def cold(log: LogBuilder) -> None:
        log.cache_miss("0/0", "key", {"gm": "graph"})
        compiled(log)

    def warm(log: LogBuilder) -> None:
        log.cache_event("0/0", "fx_graph_cache_hit", key="key")
        compiled(log)

    (cache,) = compared(tmp_path, cold, warm).caches
    assert (cache.old_hits, cache.old_misses, cache.new_hits, cache.new_misses) == (0, 1, 1, 0)


def test_only_the_newest_run_of_a_folder_is_compared(tmp_path: Path) -> None:
    for at, fill in (("2026-11-16 06:00:00", broken_at(33)), ("2026-11-16 09:00:00", compiled)):
        log = LogBuilder(0, at=at)
        fill(log)
        log.write(tmp_path, f"dedicated_log_torch_trace_rank_0_{at[11:13]}aaaaaa.log")
    trace = pipeline.load(tmp_path)
    changes = compare_runs(trace, trace)
    assert (changes.new.n_earlier_runs, changes.new.n_graph_breaks) == (1, 0)
    assert "the newest of 2 runs" in next(change_lines(changes))


def test_the_text_begins_with_the_verdict(tmp_path: Path) -> None:
    worse = list(change_lines(compared(tmp_path / "a", compiled, broken_at(33))))
    assert worse[2] == "Worse: 1 new graph break. Compiling takes 1.0 s instead of 1.0 s."
    assert any(line.split()[:3] == ["new", "forward", "(model.py:33)"] for line in worse)
    better = list(change_lines(compared(tmp_path / "b", broken_at(33), compiled)))
    assert better[2].startswith("Better: 1 graph break gone.")
    same = list(change_lines(compared(tmp_path / "c", compiled, compiled, n_ranks=2)))
    assert same[2] == (
        "Same graph breaks, recompilations and failures. Compiling takes 1.0 s instead of 1.0 s per rank."
    )


def test_what_comes_from_a_log_cannot_steer_the_terminal(tmp_path: Path) -> None:
    lines = list(change_lines(compared(tmp_path, compiled, broken_at(33, reason="x\x1b[31my"))))
    assert not any("\x1b" in line for line in lines)
    assert any("x\\x1b[31my" in line for line in lines)


def test_long_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    def many(log: LogBuilder) -> None:
        for line in range(40):
            log.graph_break("0/0", FILE, line, "Tensor.item()")
        compiled(log)

    lines = list(change_lines(compared(tmp_path, compiled, many)))
    assert "... and 20 more: --json lists all" in lines
