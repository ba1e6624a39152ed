"""One job, recorded as TORCH_TRACE and as TORCH_LOGS at once: both tell the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, JOB_LIMIT_S, JOBS

from rankscope.model.tables import Trace
from rankscope.pipeline import diagnose, load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

# Both logs are Dynamo's; the C++ compiler, which would take most of the time, has no part in them.
PROGRAM = """
import functools, runpy, sys, torch
torch.compile = functools.partial(torch.compile, backend="eager")
cases = runpy.run_path(sys.argv[1])["CASES"]
for case in ("graph_breaks", "recompiles", "respecialised"):
    cases[case]()
"""
CHANNELS = "recompiles,graph_breaks,guards,dynamic,perf_hints"
# Which file, record and moment it is differs by nature.
_OWN = ("file_id", "record", "time_ns")


class Recorded(NamedTuple):
    trace: Trace
    text: Trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("logs")
    logging = {"TORCH_TRACE": str(folder / "trace"), "TORCH_LOGS": CHANNELS}
    job = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(JOBS / "compiled.py")],
        env={**os.environ, **JOB_ENVIRONMENT, **logging},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert job.returncode == 0, job.stdout.decode()
    (folder / "job.txt").write_bytes(job.stdout)
    return Recorded(load([folder / "trace"]), load([folder / "job.txt"]))


def told(trace: Trace, table: str) -> list[dict[str, Any]]:
    rows = trace.table(table).rows() if trace.has(table) else ()
    return [{name: value for name, value in row.items() if name not in _OWN} for row in rows]


@pytest.mark.parametrize(("table", "n_least"), [("graph_breaks", 3), ("recompiles", 30), ("guards", 7)])
def test_both_give_the_same_rows(recorded: Recorded, table: str, n_least: int) -> None:
    rows = told(recorded.text, table)
    assert rows == told(recorded.trace, table)
    assert len(rows) >= n_least


def test_symbols_guards_and_constants_were_compared(recorded: Recorded) -> None:
    assert {row["kind"] for row in told(recorded.text, "guards")} == {"symbol", "guard", "specialization"}


def test_both_know_the_same_compilations(recorded: Recorded) -> None:
    def known(trace: Trace) -> list[tuple[Any, ...]]:
        rows = [row for row in told(trace, "compilations") if row["phase"] == "forward"]
        return [(row["compile_id"], row["attempt"], row["status"] == "failed", row["recompile_reason"]) for row in rows]

    assert known(recorded.text) == known(recorded.trace)


def test_the_function_is_known_where_it_was_compiled_again(recorded: Recorded) -> None:
    def sites(trace: Trace) -> dict[str, tuple[Any, ...]]:
        rows = [row for row in told(trace, "compilations") if row["recompile_reason"]]
        return {row["compile_id"]: (row["function"], row["file"], row["line"]) for row in rows}

    assert sites(recorded.text) == sites(recorded.trace)


def test_both_lead_to_the_same_findings(recorded: Recorded) -> None:
    def verdicts(trace: Trace) -> list[tuple[Any, ...]]:
        codes = ("C401", "C402", "C403", "C404")
        found = [finding for finding in diagnose(trace).findings if finding.code in codes]
        return sorted(((finding.code, finding.location, finding.ranks) for finding in found), key=str)

    verdict = verdicts(recorded.text)
    assert verdict == verdicts(recorded.trace)
    assert {code for code, *_ in verdict} >= {"C401", "C403", "C404"}
