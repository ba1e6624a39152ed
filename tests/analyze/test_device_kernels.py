"""Time per kernel, utilisation, and kernels that leave the device empty."""

from __future__ import annotations

import math

import pytest

from analyze.device_tables import collective, findings, kernel, on_ranks, only_row, rows_of, step, trace_of
from rankscope.analyze.metric import Selection

US = 1000


def test_each_kernel_has_its_own_minimum_maximum_mean_and_deviation() -> None:
    """Also where there are many kernels: another tool then reports sums as means."""
    kernels = [kernel(100 * place, 100 * place + length) for place, length in enumerate([2, 4, 6])]
    kernels += [kernel(1000 + place, 1000.5 + place, name=f"small_{place}") for place in range(20)]
    first = rows_of(trace_of(kernels=kernels), "kernels")[0]
    assert (first["name"], first["n_kernels"], first["total_ns"]) == ("gemm", 3, 12 * US)
    assert (first["min_ns"], first["max_ns"], first["mean_ns"], first["std_ns"]) == (2 * US, 6 * US, 4 * US, 2 * US)
    assert first["share_pct"] == pytest.approx(100 * 12 / 22)


def test_a_single_run_has_no_deviation() -> None:
    assert only_row(trace_of(kernels=[kernel(0, 3)]), "kernels")["std_ns"] == -1


def test_kernels_of_chosen_steps() -> None:
    trace = trace_of(kernels=[kernel(0, 3, step=1), kernel(5, 6, step=2)])
    assert only_row(trace, "kernels", Selection(steps=[2]))["total_ns"] == US


def test_utilisation_by_hand() -> None:
    kernels = [
        kernel(0, 20, step=1, blocks_per_sm=4.0, occupancy_pct=50.0, name="ampere_fp16_s16816gemm_fp16_128x64"),
        kernel(20, 50, step=1, blocks_per_sm=0.5, occupancy_pct=10.0, name="volta_sgemm_64x64_tn"),
        kernel(-20, -10, blocks_per_sm=1.0, occupancy_pct=100.0),  # before the first step
    ]
    row = only_row(trace_of(kernels=kernels, steps=[step(1, 0, 100)]), "utilisation")
    assert (row["window_ns"], row["busy_ns"], row["n_kernels"]) == (100 * US, 50 * US, 2)
    assert row["busy_pct"] == pytest.approx(50)
    assert row["sm_efficiency_pct"] == pytest.approx(20 + 30 * 0.5)
    assert row["occupancy_pct"] == pytest.approx((20 * 50 + 30 * 10) / 50)
    assert row["tensor_core_pct"] == pytest.approx(40)


def test_what_a_trace_does_not_tell_is_missing() -> None:
    """ROCm traces have neither blocks per multiprocessor nor occupancy."""
    row = only_row(trace_of(kernels=[kernel(0, 10)]), "utilisation")
    assert math.isnan(row["sm_efficiency_pct"])
    assert math.isnan(row["occupancy_pct"])
    assert row["busy_pct"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", True),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", True),
        ("volta_sgemm_64x64_tn", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", False),
        ("triton_poi_fused_add_relu_0", False),
    ],
)
def test_tensor_cores_are_known_by_name(name: str, uses: bool) -> None:
    row = only_row(trace_of(kernels=[kernel(0, 10, name=name)]), "utilisation")
    assert row["tensor_core_pct"] == (100 if uses else 0)


def test_kernels_that_leave_the_device_empty_are_named() -> None:
    kernels = [kernel(0, 60, step=1, blocks_per_sm=0.25, name="scan"), kernel(60, 90, step=1, blocks_per_sm=8.0)]
    trace = trace_of(kernels=on_ranks((0, 1), kernels), steps=on_ranks((0, 1), [step(1, 0, 100)]))
    [finding] = findings(trace, "P306")
    assert finding.severity == "warning"
    assert finding.ranks == (0, 1)
    assert "45% of the step" in finding.title
    assert finding.evidence.facts["kernels"] == ["scan"]


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(kernel(0, 60, step=1, blocks_per_sm=1.0), id="one block each is full"),
        pytest.param(collective(0, 60, step=1, blocks_per_sm=0.1), id="communication is meant to be small"),
        pytest.param(kernel(0, 2, step=1, blocks_per_sm=0.1), id="two percent of the step"),
        pytest.param(kernel(0, 60, step=1), id="unknown"),
    ],
)
def test_nothing_is_said_about(small: dict[str, object]) -> None:
    assert findings(trace_of(kernels=[small], steps=[step(1, 0, 100)]), "P306") == []


def test_small_kernels_beside_a_full_one_cost_nothing() -> None:
    kernels = [kernel(0, 60, step=1, blocks_per_sm=0.1), kernel(0, 60, step=1, blocks_per_sm=8.0, stream=8)]
    assert findings(trace_of(kernels=kernels, steps=[step(1, 0, 100)]), "P306") == []
