"""Which rank a process of an export is."""

from __future__ import annotations

from pathlib import Path

import pytest

from read.nsys_exports import COMMUNICATOR, JOIN, NsysExport, load_export

pytestmark = pytest.mark.slow


def ranks_of(export: NsysExport, folder: Path, name: str) -> list[int]:
    return list(load_export(export, folder, name).table("profiles").array("rank").tolist())


@pytest.fixture
def single() -> NsysExport:
    export = NsysExport()
    export.launch("kernel", 1_000, 1)
    return export


@pytest.fixture
def several() -> NsysExport:
    """Two processes; the one on the first device has the higher number."""
    export = NsysExport(pid=52, device=0)
    export.launch("kernel", 1_000, 1)
    export.process(pid=51, device=1)
    export.launch("kernel", 1_500, 1)
    return export


@pytest.mark.parametrize("variable", ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"])
def test_the_launcher_tells_it(single: NsysExport, variable: str, tmp_path: Path) -> None:
    single.environment(HOME="/root", **{variable: 5})
    assert ranks_of(single, tmp_path, "rank_9.sqlite") == [5]


def test_the_launcher_may_be_told_of_in_one_line(single: NsysExport, tmp_path: Path) -> None:
    single.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="HOME=/root;RANK=6;WORLD_SIZE=8")
    trace = load_export(single, tmp_path, "report1.sqlite")
    assert trace.table("profiles").array("rank").tolist() == [6]
    assert trace.table("profiles").array("world_size").tolist() == [8]


def test_an_argument_tells_it(single: NsysExport, tmp_path: Path) -> None:
    single.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_3", value="--local_rank=2")
    assert ranks_of(single, tmp_path, "report1.sqlite") == [2]


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nsys_3.sqlite", 3), ("job-4711_rank2.sqlite", 2), ("gpu.7.2025.sqlite", 7), ("report.sqlite", 0)],
)
def test_the_name_tells_it(single: NsysExport, name: str, rank: int, tmp_path: Path) -> None:
    assert ranks_of(single, tmp_path, name) == [rank]


@pytest.mark.parametrize("name", ["report_host1_18231.sqlite", "report.sqlite"])
def test_the_communicator_tells_it_better_than_any_number(single: NsysExport, name: str, tmp_path: Path) -> None:
    single.nccl("ncclCommInitRank", 10, 20, JOIN, (COMMUNICATOR, 8, 4, 0))
    single.nccl("ncclCommInitRank", 30, 40, JOIN, (0xABC, 2, 1, 0))
    assert ranks_of(single, tmp_path, name) == [4]


def test_several_processes_are_taken_in_the_order_of_their_devices(several: NsysExport, tmp_path: Path) -> None:
    trace = load_export(several, tmp_path, "nsys_7.sqlite")
    assert trace.table("files").text("problem").tolist() == [
        "its rank was inferred from the order of the processes' devices"
    ]
    assert trace.table("profiles").array("rank").tolist() == [0, 1]
    assert {part.rank: "process-16777268" in part.path for part in trace.parts["kernels"]} == {0: True, 1: False}


@pytest.mark.parametrize("name", ["node1.sqlite", "report.sqlite"])
def test_several_processes_of_a_later_node_come_after_the_others(
    several: NsysExport, name: str, tmp_path: Path
) -> None:
    """RANK would be that of the launcher, not of any of them."""
    several.environment(RANK=1, **({} if "node" in name else {"SLURM_NODEID": 1}))
    assert ranks_of(several, tmp_path, name) == [2, 3]


def test_several_processes_know_their_ranks_from_their_communicator(several: NsysExport, tmp_path: Path) -> None:
    several.process(pid=52, device=0)
    several.nccl("ncclCommInitRank", 10, 20, JOIN, (COMMUNICATOR, 16, 9, 0))
    several.process(pid=51, device=1)
    several.nccl("ncclCommInitRank", 10, 20, JOIN, (COMMUNICATOR, 16, 8, 1))
    trace = load_export(several, tmp_path, "report.sqlite")
    assert trace.table("profiles").array("rank").tolist() == [9, 8]
    assert trace.table("profiles").array("world_size").tolist() == [16, 16]


def test_ranks_of_a_smaller_group_are_not_taken_for_those_of_the_job(several: NsysExport, tmp_path: Path) -> None:
    several.environment(WORLD_SIZE=16)
    for pid, device in ((52, 0), (51, 1)):
        several.process(pid, device)
        several.nccl("ncclCommInitRank", 10, 20, JOIN, (COMMUNICATOR, 4, 3 - device, device))
    assert ranks_of(several, tmp_path, "report.sqlite") == [0, 1]
