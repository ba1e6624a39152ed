"""A trainer and a rollout on gloo, each with ranks from 0, recorded side by side: both are judged, one is the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from collected_jobs import Script, collected, environment, free_port, run_scripts
from launching import code_site, diagnose

from rankscope.collect.settings import Settings

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

ROLES = ("trainer", "rollout")


def run_worlds(scratch: Path, *arguments: str) -> Path:
    """The folder with one folder per world, as two `rankscope record` leave it."""
    traces = scratch / "traces"
    link_port, scripts = free_port(), []
    folders = [str(traces / role) for role in ROLES]
    for role in ROLES:
        master_port = free_port()
        settings = Settings(
            folder=str(traces / role),
            stall_seconds=2.0,
            kineto=False,
            execution_trace=False,
            metrics=False,
            compile_log=False,
        )
        for rank in ("0", "1"):
            given = environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_PORT=master_port)
            options = [role, "--link-port", link_port, *arguments, *folders]
            scripts.append(Script("two_worlds", options, collected(settings, given)))
    run_scripts(scratch, scripts)
    return traces


@pytest.mark.parametrize(
    ("hangs", "link", "stuck_in", "waits"),
    [
        ("trainer", (), ("load_batch", "queue.SimpleQueue"), "rank 0 is waiting in weights_store.get()"),
        ("rollout", (), ("decode", "threading.Event"), "rank 0 is waiting in samples_store.wait()"),
        ("trainer", ("--shared",), ("load_batch", "queue.SimpleQueue"), "ranks 0,1 are waiting in broadcast of group "),
    ],
)
def test_the_world_that_the_other_waits_for_is_the_cause(
    tmp_path: Path, hangs: str, link: tuple[str, ...], stuck_in: tuple[str, str], waits: str
) -> None:
    diagnosis = diagnose(run_worlds(tmp_path, "--hangs", hangs, *link))
    report = diagnosis.report
    assert [error["rule"] for error in diagnosis.errors] == ["rank-stuck"]
    (error,) = diagnosis.errors
    assert error["ranks"] == [1]
    assert error["location"] == code_site("two_worlds", *stuck_in)
    assert error["title"].startswith(f"{hangs}: rank 1 never reached")
    (other,) = set(ROLES) - {hangs}
    worlds = {world["name"]: world["number"] for world in report["capture"]["worlds"]}
    assert set(worlds) == set(ROLES)
    assert error["evidence"]["capture"] == report["capture"]["world"] == worlds[hangs]
    assert [world["name"] for world in error["evidence"]["facts"]["waiting_worlds"]] == [other]
    assert any(waits in said for said in error["evidence"]["likely"])
    effects = [each for each in report["effects"] if each["severity"] == "error"]
    assert [(each["evidence"]["capture"], each["help"]) for each in effects] == [
        (worlds[other], f"look at {hangs} first")
    ]
    assert all(each["code"] != "D910" for each in report["findings"])


def test_worlds_in_order_get_no_warning(tmp_path: Path) -> None:
    traces = run_worlds(tmp_path)
    diagnosis = diagnose(traces)
    assert (diagnosis.exit_code, diagnosis.report["findings"]) == (0, [])
    assert [world["ranks"] for world in diagnosis.report["capture"]["worlds"]] == [[0, 1], [0, 1]]
    assert diagnosis.report["capture"]["sources"]["flight_recorder"] == 4
