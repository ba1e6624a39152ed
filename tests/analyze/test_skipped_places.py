"""H106 in JSON: the line that was skipped, the line with which the culprit continued, and how many calls it were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyze.verdicts import diagnose
from rankscope.render import Options, load_renderer
from rankscope.simulate import Fault, JobSpec, Mesh, Simulation, simulate

TENSORS = Mesh(dp=4, tp=2, pp=1)  # its layers call from several lines
GRADIENTS = Mesh(dp=8, tp=1, pp=1)  # its buckets are all reduced by one line


def first_finding(simulation: Simulation, folder: Path) -> dict[str, Any]:
    report = diagnose(simulation, folder)
    found: dict[str, Any] = json.loads("\n".join(load_renderer("json")(report, Options())))["findings"][0]
    assert (found["code"], tuple(found["ranks"])) == ("H106", simulation.truth.ranks)
    return found


def place(location: dict[str, Any]) -> tuple[str, int, str]:
    return location["file"], location["line"], location["function"]


@pytest.mark.parametrize(("n_calls", "more"), [(1, ""), (3, " and 2 more")])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_skip_shows_the_skipped_line_and_the_culprits_next_call(
    seed: int, n_calls: int, more: str, tmp_path: Path
) -> None:
    simulation = simulate(JobSpec(TENSORS, steps=6, seed=seed), Fault("skip", n_calls=n_calls))
    truth, found = simulation.truth, first_finding(simulation, tmp_path)
    assert truth.location is not None
    assert truth.peer_location is not None
    assert truth.location != truth.peer_location
    assert place(found["location"]) == truth.location
    assert place(found["peer_location"]) == truth.peer_location
    file, line, function = truth.peer_location
    rank = truth.ranks[0]
    call = f"all_reduce [4,1024,2048] bf16{more} in {function} ({Path(file).name}:{line})"
    assert found["title"] == f"rank {rank} skipped {call}"
    facts = found["evidence"]["facts"]
    assert (facts["what"], facts["n_calls"]) == ("skipped", n_calls)
    assert facts["call"] == {"op": "all_reduce", "file": file, "line": line}


def test_a_repeat_shows_the_repeated_line_and_where_the_peers_are(tmp_path: Path) -> None:
    simulation = simulate(JobSpec(TENSORS, steps=6, seed=1), Fault("repeat"))
    truth, found = simulation.truth, first_finding(simulation, tmp_path)
    assert truth.location is not None
    assert truth.location != truth.peer_location
    assert (place(found["location"]), place(found["peer_location"])) == (truth.location, truth.peer_location)
    file, line, function = truth.location
    where = f"{function} ({Path(file).name}:{line})"
    assert found["title"] == f"rank {truth.ranks[0]} made an extra call: all_reduce [4,1024,2048] bf16 in {where}"
    facts = found["evidence"]["facts"]
    assert (facts["what"], facts["n_calls"]) == ("repeated", 1)
    assert facts["call"] == {"op": "all_reduce", "file": file, "line": line}
    assert any("came from a different line" in sentence for sentence in found["evidence"]["certain"])


@pytest.mark.parametrize("kind", ["repeat", "skip"])
def test_no_other_line_is_claimed_where_the_line_is_the_same(kind: str, tmp_path: Path) -> None:
    simulation = simulate(JobSpec(GRADIENTS, steps=6, seed=0), Fault(kind))
    truth, found = simulation.truth, first_finding(simulation, tmp_path)
    assert place(found["location"]) == place(found["peer_location"]) == truth.location == truth.peer_location
    sentences = [found["title"], *found["evidence"]["certain"], *found["evidence"]["likely"]]
    assert not any("different line" in sentence for sentence in sentences)
    assert found["evidence"]["facts"]["n_calls"] == 1
