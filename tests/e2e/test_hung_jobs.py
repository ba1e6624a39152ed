"""Jobs on gloo that fail for real, dumped by torch's own Flight Recorder: the verdict names rank, call and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from launching import N_RANKS, Diagnosis, code_site, diagnose, run_job, run_under_torchrun

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

SMALL_RING = {"TORCH_FR_BUFFER_SIZE": "40"}


@dataclass(frozen=True)
class Scenario:
    """A fault of one rank and the verdict it deserves. Sites are (function, call) pairs of the job's source."""

    job: str
    fault: str
    culprit: int
    rule: str
    seq: int
    group: tuple[int, ...] = tuple(range(N_RANKS))
    site: tuple[str, str] | None = None
    peer_site: tuple[str, str] | None = None
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    leaves_dumps: int = N_RANKS
    n_groups: int = 1
    blocks: int | None = N_RANKS - 1

    @property
    def arguments(self) -> list[str]:
        return ["--fault", self.fault, "--culprit", str(self.culprit), *self.options]


def op_mismatch(culprit: int) -> Scenario:
    return Scenario(
        "data_parallel",
        "op-mismatch",
        culprit,
        rule="op-mismatch",
        seq=24,
        site=("clip_gradients", "dist.all_gather(norms, norm)"),
        peer_site=("clip_gradients", "dist.all_reduce(norm)"),
    )


def size_mismatch(culprit: int) -> Scenario:
    """The odd rank waits for fewer bytes, believes it is done and hangs in the next call."""
    return Scenario(
        "data_parallel",
        "size-mismatch",
        culprit,
        rule="size-mismatch",
        seq=23,
        site=("average_gradients", "dist.all_reduce(unpadded)"),
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
    )


def dtype_mismatch(culprit: int) -> Scenario:
    """The odd rank waits for more bytes; its peers believe they are done and hang in the next call."""
    return Scenario(
        "data_parallel",
        "dtype-mismatch",
        culprit,
        rule="dtype-mismatch",
        seq=23,
        site=("average_gradients", "dist.all_reduce(precise)"),
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
    )


def corrupting_dtype(culprit: int) -> Scenario:
    """Integers and floats of one width: gloo adds them up as they are, and the job goes on with garbage."""
    return Scenario(
        "data_parallel",
        "same-width-dtype",
        culprit,
        rule="dtype-mismatch",
        seq=23,
        site=("average_gradients", "dist.all_reduce(quantised)"),
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
        blocks=0,
    )


def skipped_call(culprit: int) -> Scenario:
    """The calls after the skipped one are alike in op and size, so the hang shows only four calls later."""
    return Scenario(
        "adversarial",
        "skipped-call",
        culprit,
        rule="call-skipped",
        seq=17,
        site=("average_generator", "dist.all_reduce(weights)"),
        peer_site=("average_critic", "dist.all_reduce(weights)"),
    )


def stuck(culprit: int, *options: str) -> Scenario:
    return Scenario(
        "data_parallel",
        "stuck",
        culprit,
        rule="rank-stuck",
        seq=23,
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
        options=options,
    )


def killed(culprit: int) -> Scenario:
    """Some survivors see the connection close and raise, and gloo calls their call done; the others wait."""
    return Scenario(
        "data_parallel",
        "killed",
        culprit,
        rule="rank-lost",
        seq=23,
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
        leaves_dumps=N_RANKS - 1,
        blocks=None,
    )


def stuck_in_mesh(culprit: int, tp_pair: tuple[int, int]) -> Scenario:
    """Only one peer waits for the culprit directly; the two others wait in their data-parallel groups."""
    return Scenario(
        "tensor_and_data_parallel",
        "stuck",
        culprit,
        rule="rank-stuck",
        seq=44,
        group=tp_pair,
        n_groups=5,
        peer_site=("attention", "dist.all_reduce(hidden, group=mesh.tp)"),
    )


def stuck_outside_chatty_pair(culprit: int) -> Scenario:
    """The rings of ranks 0 and 1 hold one call of the world's group, the others all of them."""
    return Scenario(
        "chatty_pair",
        "stuck-in-loader",
        culprit,
        rule="rank-stuck",
        seq=9,
        n_groups=2,
        peer_site=("average_gradients", "dist.all_reduce(gradients)"),
        environment=SMALL_RING,
    )


def stuck_inside_chatty_pair(culprit: int) -> Scenario:
    """The rings of ranks 0 and 1 hold no call of the world's group at all, in which ranks 2 and 3 wait for them."""
    return Scenario(
        "chatty_pair",
        "stuck-in-layer",
        culprit,
        rule="rank-stuck",
        seq=476,
        group=(0, 1),
        n_groups=2,
        peer_site=("run_split_layer", "dist.all_reduce(torch.ones(32), group=pair)"),
        environment=SMALL_RING,
    )


def deadlock(culprit: int) -> Scenario:
    """Ranks 1 and 2 wait in each other's group; that rank 2 is to blame shows in the order of its earlier steps."""
    return Scenario(
        "overlapping_groups",
        "swapped-order",
        culprit,
        rule="order-deadlock",
        seq=8,
        group=(1, 2, 3),
        n_groups=3,
        site=("sync_decoder", "dist.all_reduce(torch.ones(512), group=group)"),
        peer_site=("sync_encoder", "dist.all_reduce(torch.ones(512), group=group)"),
    )


SCENARIOS = {
    "op-mismatch-by-rank-0": op_mismatch(0),
    "op-mismatch-by-rank-2": op_mismatch(2),
    "size-mismatch-by-rank-0": size_mismatch(0),
    "size-mismatch-by-rank-2": size_mismatch(2),
    "dtype-mismatch-by-rank-0": dtype_mismatch(0),
    "dtype-mismatch-by-rank-2": dtype_mismatch(2),
    "dtype-mismatch-without-hang": corrupting_dtype(2),
    "skipped-call": skipped_call(2),
    "stuck": stuck(1),
    # The peers' call times out and raises: by the time of the dump, gloo calls it done.
    "stuck-until-timeout": stuck(1, "--collective-timeout", "2"),
    "killed": killed(1),
    "two-group-deadlock": deadlock(2),
    "mesh-cascade": stuck_in_mesh(3, (2, 3)),
    "wrapped-rings": stuck_outside_chatty_pair(2),
    "wrapped-rings-without-the-waiting-group": stuck_inside_chatty_pair(1),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_the_culprit_its_call_and_its_line_are_named(scenario: Scenario, tmp_path: Path) -> None:
    if scenario.fault == "killed":  # torchrun has its own way with the survivors
        run_under_torchrun(scenario.job, tmp_path, scenario.arguments)
    else:
        run_job(scenario.job, tmp_path, scenario.arguments, scenario.environment)
    assert len(list(tmp_path.glob("nccl_trace_rank_*"))) == scenario.leaves_dumps

    diagnosis = diagnose(tmp_path)

    cause = sole_cause(diagnosis)
    assert (cause["rule"], cause["ranks"]) == (scenario.rule, [scenario.culprit])
    assert (cause["group"]["ranks"], cause["collective"]["seq"]) == ([*scenario.group], scenario.seq)
    assert diagnosis.report["capture"]["n_groups"] == scenario.n_groups
    if scenario.blocks is not None:
        assert cause["evidence"].get("n_blocked", 0) == scenario.blocks
    if scenario.site:
        assert cause["location"] == code_site(scenario.job, *scenario.site)
    if scenario.peer_site:
        assert cause["peer_location"] == code_site(scenario.job, *scenario.peer_site)


@pytest.mark.parametrize("fault", ["slow-host", "slow-loader"])
def test_the_rank_that_all_wait_for_in_every_step_is_a_straggler(fault: str, tmp_path: Path) -> None:
    """A slow host is late to every call, a slow loader only to the first call of each step."""
    assert run_job("adversarial", tmp_path, ["--fault", fault, "--culprit", "3"], {}) == 0

    diagnosis = diagnose(tmp_path)

    assert not diagnosis.errors
    findings = [(finding["rule"], finding["ranks"]) for finding in diagnosis.report["findings"]]
    assert findings[:1] == [("straggler", [3])]


@pytest.mark.parametrize("job", ["expert_parallel", "tensor_and_data_parallel"])
def test_a_healthy_job_raises_no_alarm(job: str, tmp_path: Path) -> None:
    assert run_job(job, tmp_path, [], {}) == 0

    diagnosis = diagnose(tmp_path)

    assert diagnosis.exit_code == 0
    assert not diagnosis.errors
    assert diagnosis.report["capture"]["ranks"] == list(range(N_RANKS))


def sole_cause(diagnosis: Diagnosis) -> dict[str, Any]:
    """What follows from the cause is counted in its evidence: a second error would be a false one."""
    assert diagnosis.exit_code == 1
    assert diagnosis.report["capture"]["world_size"] == N_RANKS
    assert [finding["rule"] for finding in diagnosis.errors] == [diagnosis.report["findings"][0]["rule"]]
    return diagnosis.errors[0]
