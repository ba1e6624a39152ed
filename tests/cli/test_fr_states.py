"""What `rankscope fr` says about calls whose end was not recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from read.dumps import make_dump, make_entry, write_dump


def test_an_end_that_was_inferred_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        ended = {"state": "completed", "retired": True, "time_discovered_completed_ns": 3 * 10**9} if rank else {}
        write_dump(tmp_path / f"nccl_trace_rank_{rank}", make_dump([make_entry(1, **ended)], pg_status={}))
    assert main(["fr", str(tmp_path), "-j"]) == 0
    printed = capsys.readouterr().out
    assert "all_reduce [4,8] f32 done (inferred)" in printed
    assert "\ndone (inferred): the rank did not record the end" in printed
    assert main(["fr", str(tmp_path)]) == 0
    assert "1 (1 inferred)" in capsys.readouterr().out
    assert main(["fr", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["groups"][0]["n_done"], answer["groups"][0]["n_inferred"]) == (1, 1)
    assert answer["notes"][0].startswith("done (inferred)")


def test_done_on_a_backend_without_states_says_what_it_rests_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        call = make_entry(1, profiling_name="gloo:all_reduce", retired=True)
        write_dump(tmp_path / f"nccl_trace_rank_{rank}", make_dump([call], pg_status={}))
    assert main(["fr", str(tmp_path), "-j"]) == 0
    assert "gloo leaves calls in the state `scheduled`: done means retired" in capsys.readouterr().out


def test_torchs_own_names_and_states_are_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended: dict[str, Any] = {"state": "completed", "retired": True, "time_discovered_completed_ns": 3 * 10**9}
    for rank, told in enumerate(({"state": "started"}, ended)):
        calls = [make_entry(1, **told), make_entry(2, profiling_name="nccl:all_gather")]
        write_dump(tmp_path / f"nccl_trace_rank_{rank}", make_dump(calls, pg_status={}))
    assert main(["fr", str(tmp_path), "-j", "--raw", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["cells"] for row in answer["rows"]] == [
        ["nccl:all_reduce [4,8] f32 started", "nccl:all_reduce [4,8] f32 completed"],
        ["nccl:all_gather [4,8] f32 scheduled"] * 2,
    ]
    assert answer["notes"] == []
    assert main(["fr", str(tmp_path), "-j", "--raw"]) == 0
    printed = capsys.readouterr().out
    assert "nccl:all_reduce [4,8] f32 started" in printed
    assert "inferred" not in printed
    assert main(["fr", str(tmp_path), "-j"]) == 0
    assert "nccl:" not in capsys.readouterr().out


def test_raw_without_the_calls_says_what_it_belongs_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fr", str(tmp_path), "--raw"]) == 2
    assert f"rankscope fr {tmp_path} -j --raw" in capsys.readouterr().err
