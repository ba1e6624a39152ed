"""Comparisons made by hand: a slower job, two that do not differ, and one from hostile traces."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rankscope.model.changes import (
    SCHEMA_NAME,
    Changes,
    FindingChange,
    NumberChange,
    SetupChange,
    StepChange,
    TimeChange,
)
from rankscope.model.compile_changes import Change, CompileChanges, RunTotals
from rankscope.model.compile_changes import TimeChange as CompileTime
from rankscope.model.finding import Capture, Location
from render.sample import HOSTILE

MS = 1_000_000
OLD = Capture(("good",), tuple(range(8)), 8, {"kineto": 8}, n_steps=4, step_ns=380 * MS)
NEW = Capture(("bad",), tuple(range(8)), 8, {"kineto": 8}, n_steps=4, step_ns=426 * MS)
HERE, BEFORE = Location("/job/train.py", 212, "reduce"), Location("/job/train.py", 208, "reduce")


def finding(kind: Any = "new", **fields: Any) -> FindingChange:
    known: dict[str, Any] = {
        "kind": kind,
        "is_in_new": kind != "gone",
        "code": "S202",
        "rule": "late-rank",
        "severity": "warning",
        "old_severity": None,
        "title": "rank 7 keeps its 7 peers waiting 31 ms per step",
        "old_title": "",
        "group": "dp",
        "location": HERE,
        "old_location": None,
        "old_ranks": (),
        "new_ranks": (7,),
        "old_cost_ns": None,
        "new_cost_ns": 31 * MS,
        "old_cost_pct": None,
        "new_cost_pct": 7.3,
    }
    return FindingChange(**{**known, **fields})


def slower() -> Changes:
    changed = {"old_location": BEFORE, "old_ranks": (3,), "old_cost_ns": 12 * MS}
    call = TimeChange(
        *("slower", "all_reduce", "profiler", "step", 12 * MS, 43 * MS, MS),
        ranks=(0, 1, 2),
        part="waiting",
        group="dp",
        location=HERE,
        old_location=BEFORE,
        waits_for=(7,),
    )
    arrival = TimeChange(
        *("slower", "all_gather", "flight_recorder", "call", 2 * MS, 80 * MS, 5 * MS),
        part="arrival",
        location=HERE,
        waits_for=(7,),
    )
    return Changes(
        schema=SCHEMA_NAME,
        old=OLD,
        new=NEW,
        verdict="B is 12% slower than A: 380 ms -> 426 ms per step; most of it (31 ms) is computing on rank 7",
        worst="warning",
        findings=(
            finding(),
            finding("changed", **changed),
            finding("unchecked", why="no profiler traces in this capture", location=None),
            finding("gone", location=None, old_location=BEFORE, severity="error", code="H102", title="a hang"),
        ),
        step=StepChange("slower", "profiler", 380 * MS, 426 * MS, 12 * MS, 381 * MS, 430 * MS, 4, 4),
        parts=(TimeChange("slower", "computing", "profiler", "step", 300 * MS, 331 * MS, 9 * MS, ranks=(7,)),),
        collectives=(call, arrival),
        kernels=tuple(kernel(number) for number in range(12)),
        compile=None,
        numbers=(NumberChange("worse", "samples_per_s", 100.0, 89.0, 5.0), NumberChange("same", "loss", 2.0, 2.0, 0.1)),
        setup=(SetupChange("torch", "2.8.0", "2.9.0"),),
        not_compared=("A has no metrics: the job's own numbers are not compared",),
        notes=("rings keep the newest calls only",),
    )


def kernel(number: int) -> TimeChange:
    kind: Any = "same" if number == 11 else "slower"
    name = f"gemm_{number}" if number else "void elementwise<" + "x" * 90 + ">"
    return TimeChange(kind, name, "profiler", "step", MS, (20 - number) * MS, MS, old_count=2.0, new_count=4.0)


def compiled() -> Changes:
    totals = [RunTotals((path,), (0,), 0, 3, n, 1, 0, total) for path, n, total in (("a", 0, MS), ("b", 7, 9 * MS))]
    found = CompileChanges(
        schema="rankscope.compile-changes/1",
        old=totals[0],
        new=totals[1],
        graph_breaks=(),
        recompiles=(Change("new", "/job/model.py", 19, "forward", "the value of t changed", 0, 7),),
        failures=(),
        caches=(),
        lines=(CompileTime("forward", "/job/model.py", 19, 19, MS, 9 * MS),),
        phases=(),
        passes=(),
        is_worse=True,
    )
    return replace(same(), compile=found, worst="warning", verdict="B has 1 more reason to recompile than A")


def same() -> Changes:
    nothing: dict[str, Any] = dict.fromkeys(
        ("findings", "parts", "collectives", "kernels", "numbers", "setup", "not_compared", "notes"), ()
    )
    step = StepChange("same", "profiler", 380 * MS, 381 * MS, 12 * MS, 381 * MS, 381 * MS, 4, 4)
    return replace(slower(), verdict="no difference beyond noise", worst=None, step=step, **nothing)


def hostile() -> Changes:
    evil = HOSTILE + "<script>alert(1)</script>"
    place = Location(evil, 1, evil)
    made = slower()
    return replace(
        made,
        verdict=evil,
        old=replace(OLD, paths=(evil,)),
        findings=(finding(title=evil, location=place, why=evil),),
        kernels=(replace(made.kernels[0], name=evil),),
        collectives=(replace(made.collectives[0], name=evil, group=evil, location=place),),
        setup=(SetupChange(evil, evil, evil),),
        notes=(evil,),
    )
