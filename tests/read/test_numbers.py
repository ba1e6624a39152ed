"""Numbers from files are ids: bounded, in plain digits, and nothing is as long as they say."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from rankscope import diagnose, load
from rankscope.model.finding import Report
from rankscope.model.numbers import MAX_LONG, MAX_RANKS, integer, is_number, rank_number
from rankscope.read.file_names import rank_and_host
from rankscope.read.given_paths import natural_key
from read.dumps import hung_job, make_dump, make_entry

MEGABYTE = 1 << 20


@pytest.fixture
def job(tmp_path: Path) -> Path:
    hung_job().write(tmp_path / "job")
    return tmp_path / "job"


def damaged(report: Report) -> str:
    return " ".join(
        f"{finding.title} {finding.evidence.certain}" for finding in report.findings if finding.code == "D902"
    )


@pytest.mark.parametrize("text", ["²", "٣", "1_0", "", "-", " 1", "1e3", "0x1", "9" * 5000, "2147483648", None])
def test_what_is_no_plain_number_is_unknown(text: str | bytes | None) -> None:
    assert integer(text) == -1
    assert text is None or not is_number(text)


def test_numbers_have_bounds() -> None:
    assert integer("2147483647") == 2147483647
    assert integer("4000000000000000000", MAX_LONG) == 4 * 10**18
    assert rank_number(str(MAX_RANKS)) == -1
    assert rank_number(str(MAX_RANKS - 1)) == MAX_RANKS - 1
    assert integer("x", default=7) == 7


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_0_1700000000", 0),
        ("nccl_trace_rank_3_20261116_120000.json", 3),
        ("rank_3_of_8", 3),
        ("nccl_trace_rank_999999999", -1),
        ("notes1²", 1),
        ("9" * 5000, -1),
    ],
)
def test_a_time_in_a_name_is_no_rank(name: str, rank: int) -> None:
    assert rank_and_host(name) == (rank, rank_and_host(name)[1])  # type: ignore[index]
    assert rank_and_host("nccl_trace_rank_0_1700000000") == (0, "")


def test_names_sort_by_their_numbers_of_any_length() -> None:
    names = ["rank_10", "rank_2", "rank_" + "9" * 5000, "rank_²", "rank_02"]
    assert sorted(names, key=natural_key)[:2] == ["rank_2", "rank_02"]


def test_names_without_end_take_no_time() -> None:
    """One that is not linear would take hours."""
    for name in ("1" * 10**6, "1a" * 10**6, "x" + ".gz" * 10**6, "trace_rank" * 10**5):
        assert rank_and_host(name) is not None


@pytest.mark.parametrize("number", [2**31 - 1, MAX_RANKS + 1])
def test_a_rank_of_two_billion_costs_no_memory(number: int, job: Path) -> None:
    manifest = {"schema": "rankscope.manifest/1", "ranks": [{"rank": number, "world_size": number}]}
    (job / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (job / f"nccl_trace_rank_{number}").write_bytes(pickle.dumps(make_dump([make_entry(1)]), protocol=2))
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": f"[0, {number}]"}}
    (job / "nccl_trace_rank_5").write_bytes(pickle.dumps(make_dump([make_entry(1)], pg_config=config), protocol=2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = diagnose(load(job))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    assert f"says rank {number}" in damaged(report) or f"says world size {number}" in damaged(report)
    assert "has no rank in its name" in damaged(report)


def test_ranges_of_a_desync_report_cannot_unfold(job: Path) -> None:
    line = "    [0-262143] started ALLREDUCE\n"
    head = "rankscope desync report, 2026-11-16 12:00:00 UTC, rank 0 of 4 on host a\n"
    group = 'group 0 "default_pg" (262144 ranks: 0-262143), collective state\n    #1 started ranks:\n'
    (job / "desync_0.txt").write_text(head + group + line * 1000 + "end of desync report\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "lists more ranks than any report" in damaged(diagnose(load(job)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900 * 1024


# --- what is in a folder ----------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_listed_as_left_out(job: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (job / "link").symlink_to(outside)
    (job / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(job / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(job)  # the path of a socket must be short
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        rows = {Path(row["path"]).name: row for row in load(job).table("files").rows()}
    assert {rows[name]["status"] for name in ("link", "folder", "pipe", "socket")} == {"ignored"}
    assert "not in this folder" in rows["link"]["problem"]
    assert rows["pipe"]["problem"] == "is a pipe"
    assert rows["socket"]["problem"] == "is a socket"


def test_links_that_lead_nowhere_are_listed(job: Path) -> None:
    (job / "to_itself").symlink_to("to_itself")
    (job / "to_nothing").symlink_to("nothing")
    (job / "through_a_file").symlink_to("nccl_trace_rank_0/x")
    (job / "to_all").symlink_to(".", target_is_directory=True)
    rows = {Path(row["path"]).name: row for row in load(job).table("files").rows()}
    for name in ("to_itself", "to_nothing", "through_a_file"):
        assert (rows[name]["status"], rows[name]["problem"]) == ("damaged", "is a broken link")
    assert rows["to_all"]["status"] == "ignored"


def test_thousands_of_foreign_files_cost_little_each(job: Path) -> None:
    for number in range(1000):
        (job / f"foreign_{number}.txt").write_text("x\n")
    began = time.process_time()
    trace = load(job)
    assert time.process_time() - began < 10  # a search for entry points or patterns per file took minutes
    assert trace.n_rows("files") == 1004


def test_folders_of_any_depth_are_looked_into(job: Path) -> None:
    here = os.getcwd()
    os.chdir(job)
    try:
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        Path("nccl_trace_rank_4").write_bytes(b"")
    finally:
        os.chdir(here)
    try:
        assert "nccl_trace_rank_4 is empty" in damaged(diagnose(load(job)))
    finally:
        subprocess.run(["rm", "-rf", str(job / "d")], check=True)  # Python's own removal is as deep as the folders


@pytest.mark.parametrize(
    "name",
    ["desync_0.txt", "stacks_0.txt", "kineto_trace_0.json", "torch_et_0.json", "manifest.json", "metrics_0.jsonl"],
)
def test_an_empty_file_of_ours_is_damaged(name: str, job: Path) -> None:
    (job / name).write_bytes(b"")
    assert f"{name} is empty" in damaged(diagnose(load(job)))


@pytest.mark.parametrize("name", ["desync_0.txt", "stacks_0.txt", "kineto_trace_0.json", "torch_et_0.json"])
def test_a_file_that_is_not_what_its_name_says_is_damaged(name: str, job: Path) -> None:
    (job / name).write_text("something else\n" * 10)
    assert name in damaged(diagnose(load(job)))


def test_a_json_dump_is_known_by_its_name_however_late_its_keys_come(job: Path) -> None:
    dump = {"padding": "x" * 5000, **make_dump([make_entry(1)])}
    (job / "nccl_trace_rank_4.json").write_bytes(msgspec.json.encode(dump))
    sources = {Path(row["path"]).name: row["source"] for row in load(job).table("files").rows()}
    assert sources["nccl_trace_rank_4.json"] == "flight_recorder"


# --- pickles that hang or fill the memory -----------------------------------------------------------------------------

_HEAD = b"\x80\x02}(X\x07\x00\x00\x00entries]X\x01\x00\x00\x00a"
FLOODS = {
    "nested tuples as a key": b"\x80\x02}()" + b"2\x86" * 60 + b"K\x01u.",
    "nested tuples through the memo": b"\x80\x02}()q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01u.",
    "with scalars between": b"\x80\x02}()q\x00" + b"h\x00X\x01\x00\x00\x00a\x87q\x00" * 60 + b"K\x01u.",
    "of protocol 4": b"\x80\x04}()\x94" + b"".join(b"h%c\x86\x94" % number for number in range(60)) + b"K\x01u.",
    "in marks": b"\x80\x02}()q\x00" + b"(h\x00h\x00tq\x00" * 60 + b"K\x01u.",
    "copies without end": _HEAD[:-6] + b"(}" + b"2" * 4_000_000 + b"eu.",
    "far memo": b"\x80\x02}r\xff\xff\xff\x7f(X\x07\x00\x00\x00entries]u.",
    "a set": b"\x80\x04}(X\x07\x00\x00\x00entries\x8f(K\x01\x90u.",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_pickle_that_would_hang_or_flood_is_refused(kind: str, job: Path) -> None:
    (job / "nccl_trace_rank_4").write_bytes(FLOODS[kind])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = diagnose(load(job))
    assert "nccl_trace_rank_4 is" in damaged(report)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
