"""What NCCL's ranges tell of its kernels: operation, communicator, size, type, peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from read.nsys_exports import (
    COMMUNICATOR,
    GATHER,
    JOIN,
    MARKER,
    REDUCE,
    TRANSFER,
    NsysExport,
    Row,
    load_export,
    rows_of,
)

pytestmark = pytest.mark.slow

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"


@pytest.fixture
def export() -> NsysExport:
    """Rank 1 of 4, which has joined the communicator of the whole job."""
    export = NsysExport()
    export.environment(RANK=1, WORLD_SIZE=4)
    export.nccl("ncclCommInitRankConfig", 10, 90, JOIN, (COMMUNICATOR, 4, 1, 1))
    return export


def described(export: NsysExport, folder: Path) -> list[Row]:
    return rows_of(load_export(export, folder, "nsys_1.sqlite"), "comms")


def test_a_collective_has_its_group_size_and_type(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclAllReduce", 1_000, 1_300, REDUCE, (COMMUNICATOR, 4096, 0))
    export.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)", 1_100, 1)
    [comm] = described(export, tmp_path)
    assert (comm["op"], comm["group_name"], comm["group_size"]) == ("all_reduce", f"0x{COMMUNICATOR:016x}", 4)
    assert (comm["dtype"], comm["n_in"], comm["n_out"], comm["n_bytes"]) == ("BFloat16", 2048, 2048, 4096)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096>)", "Float"),
        ("ncclDevKernel_AllReduce_SumPostDiv_u64_RING_LL(ncclDevKernelArgsStorage<4096>)", "Long"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "Half"),
        ("ncclKernel_AllReduce_RING_LL_Max___nv_bfloat16(ncclDevComm*)", "BFloat16"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096>)", ""),
    ],
)
def test_the_type_is_read_from_the_kernel(export: NsysExport, kernel: str, dtype: str, tmp_path: Path) -> None:
    export.nccl("ncclAllReduce", 1_000, 1_300, REDUCE, (COMMUNICATOR, 4096, 0))
    export.launch(kernel, 1_100, 1)
    [comm] = described(export, tmp_path)
    assert comm["dtype"] == dtype
    assert comm["op"] == "all_reduce"


def test_the_message_of_a_gather_is_all_shares(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclAllGather", 1_000, 1_300, GATHER, (COMMUNICATOR, 512))
    export.launch("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)", 1_100, 1)
    export.nccl("ncclReduceScatter", 2_000, 2_300, REDUCE, (COMMUNICATOR, 512, 0))
    export.launch("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", 2_100, 2)
    gather, scatter = described(export, tmp_path)
    assert (gather["op"], gather["n_bytes"]) == ("all_gather", 2048)
    assert (scatter["op"], scatter["n_in"], scatter["n_out"], scatter["n_bytes"]) == ("reduce_scatter", 512, 128, 2048)


@pytest.mark.parametrize(("name", "ends"), [("ncclSend", (1, 3)), ("ncclRecv", (3, 1))])
def test_a_transfer_has_both_ends(export: NsysExport, name: str, ends: tuple[int, int], tmp_path: Path) -> None:
    export.nccl(name, 1_000, 1_300, TRANSFER, (COMMUNICATOR, 800, 3))
    export.launch(SEND_RECV, 1_100, 1)
    [comm] = described(export, tmp_path)
    assert (comm["op"], comm["is_p2p"], comm["n_bytes"]) == (name[4:].lower(), True, 800)
    assert (comm["src"], comm["dst"]) == ends


def test_the_peer_in_a_smaller_group_is_not_taken_for_a_rank_of_the_job(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclCommSplit", 100, 190, JOIN, (0xABC, 2, 1, 1))
    export.nccl("ncclSend", 1_000, 1_300, TRANSFER, (0xABC, 800, 0))
    export.launch(SEND_RECV, 1_100, 1)
    [comm] = described(export, tmp_path)
    assert (comm["group_name"], comm["group_size"]) == ("0x0000000000000abc", 2)
    assert (comm["op"], comm["src"], comm["dst"]) == ("send", -1, -1)


def test_the_kernel_of_a_group_is_launched_at_its_end(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclGroupStart", 1_000, 1_010)
    export.nccl("ncclSend", 1_020, 1_030, TRANSFER, (COMMUNICATOR, 800, 2))
    export.nccl("ncclRecv", 1_040, 1_050, TRANSFER, (COMMUNICATOR, 600, 0))
    export.nccl("ncclGroupEnd", 1_060, 1_400, MARKER, (COMMUNICATOR,))
    export.launch(SEND_RECV, 1_100, 1)
    export.nccl("ncclSend", 2_000, 2_300, TRANSFER, (COMMUNICATOR, 77, 2))
    export.launch(SEND_RECV, 2_100, 2)
    both, alone = described(export, tmp_path)
    assert (both["op"], both["n_bytes"], both["src"], both["dst"]) == ("send_recv", 800, -1, -1)
    assert (alone["op"], alone["n_bytes"], alone["dst"]) == ("send", 77, 2)


def test_sends_to_all_and_receives_from_all_are_an_all_to_all(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclGroupStart", 1_000, 1_010)
    export.nccl("ncclGroupStart", 1_011, 1_012)  # groups nest: only the outermost end launches
    for peer in range(4):
        export.nccl("ncclSend", 1_020 + 20 * peer, 1_025 + 20 * peer, TRANSFER, (COMMUNICATOR, 100, peer))
        export.nccl("ncclRecv", 1_030 + 20 * peer, 1_035 + 20 * peer, TRANSFER, (COMMUNICATOR, 90, peer))
    export.nccl("ncclGroupEnd", 1_200, 1_210)
    export.nccl("ncclGroupEnd", 1_220, 1_400)
    export.launch(SEND_RECV, 1_300, 1)
    [comm] = described(export, tmp_path)
    assert (comm["op"], comm["n_bytes"], comm["group_size"]) == ("all_to_all", 400, 4)


def test_several_kernels_of_a_group_come_in_the_order_of_its_calls(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclGroupStart", 1_000, 1_010)
    export.nccl("ncclAllReduce", 1_020, 1_030, REDUCE, (COMMUNICATOR, 100, 0))
    export.nccl("ncclAllGather", 1_040, 1_050, GATHER, (COMMUNICATOR, 10))
    export.nccl("ncclGroupEnd", 1_060, 1_400)
    export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 1_100, 1)
    export.launch("ncclDevKernel_AllGather_RING_LL()", 1_200, 2)
    assert [(comm["op"], comm["n_bytes"]) for comm in described(export, tmp_path)] == [
        ("all_reduce", 100),
        ("all_gather", 40),
    ]


def test_sizes_stay_unknown_where_calls_were_spread_over_other_kernels(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclGroupStart", 1_000, 1_010)
    for place in range(3):
        export.nccl("ncclAllReduce", 1_020 + 10 * place, 1_025 + 10 * place, REDUCE, (COMMUNICATOR, 100, 0))
    export.nccl("ncclGroupEnd", 1_060, 1_400)
    for correlation in (1, 2):
        export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 1_000 + 100 * correlation, correlation)
    comms = described(export, tmp_path)
    assert [(comm["op"], comm["n_bytes"], comm["group_size"]) for comm in comms] == [("all_reduce", -1, 4)] * 2


def test_a_capture_may_begin_within_a_group(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclGroupEnd", 500, 600)
    export.nccl("ncclAllReduce", 1_000, 1_300, REDUCE, (COMMUNICATOR, 4096, 0))
    export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 1_100, 1)
    assert [comm["n_bytes"] for comm in described(export, tmp_path)] == [4096]


def test_without_payloads_the_operation_is_still_known(tmp_path: Path) -> None:
    export = NsysExport()
    export.nccl("ncclRecv", 1_000, 1_300)
    export.launch(SEND_RECV, 1_100, 1)
    [comm] = described(export, tmp_path)
    assert (comm["op"], comm["n_bytes"], comm["group_name"], comm["group_size"]) == ("recv", -1, "", -1)


def test_without_ranges_the_kernel_tells_what_it_can(tmp_path: Path) -> None:
    export = NsysExport()
    export.launch("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL()", 1_100, 1)
    [comm] = described(export, tmp_path)
    assert (comm["op"], comm["dtype"], comm["n_bytes"]) == ("reduce_scatter", "Half", -1)


def test_a_launch_outside_every_range_gets_nothing(export: NsysExport, tmp_path: Path) -> None:
    export.nccl("ncclAllReduce", 1_000, 1_300, REDUCE, (COMMUNICATOR, 4096, 0))
    export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 1_350, 1)
    export.launch("gemm", 1_200, 2)
    [comm] = described(export, tmp_path)
    assert (comm["n_bytes"], comm["group_name"]) == (-1, "")
