"""Finding the files of a capture: any naming, folders, archives, and what may go wrong with each."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.errors import BadFileError, InputError, RankscopeError
from rankscope.model.finding import Report
from rankscope.pipeline import load
from rankscope.read import archives
from rankscope.read.files import Source, find_sources, name_source
from read.dumps import codes, hung_job, report_of, rows_of, verdict

PREFIX = "nccl_trace_rank_"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    hung_job().write(folder)
    return folder


def assert_culprit_found(report: Report) -> None:
    assert report.capture.ranks == (0, 1, 2, 3)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))


def named(name: str, prefix: str | None = None) -> tuple[int, str] | None:
    source = name_source(Source(Path(name), name, 1), prefix)
    return None if source is None else (source.rank, source.host)


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("nccl_trace_rank_3", 3, ""),
        ("comm_lib_trace_rank_3", 3, ""),
        ("_dump_3", 3, ""),
        ("rank_3.json", 3, ""),
        ("rank_3.json.gz", 3, ""),
        ("RANK_3.PKL", 3, ""),
        ("nccl_trace_rank_node02_5", 5, "node02"),
        ("nccl_trace_rank_gpu-0009.cluster_17", 17, "gpu-0009.cluster"),
        ("node7_rank_12", 12, "node7"),
        ("job_4411_nccl_trace_rank_0012", 12, "job_4411"),
        ("traces.tar!a/nccl_trace_rank_8", 8, ""),
        ("2", 2, ""),
        ("notes", -1, ""),
        ("stacks_3.txt", 3, ""),
        ("metrics_gpu-a_4.jsonl", 4, "gpu-a"),
        ("kineto_clean_5.json.gz", 5, ""),
        ("rankscope_trace_rank_6", 6, ""),
    ],
)
def test_the_rank_is_the_last_integer_and_the_rest_the_host(name: str, rank: int, host: str) -> None:
    assert named(f"some/folder/{name}") == (rank, host)


def test_digits_of_folders_are_no_rank() -> None:
    assert named("run_7/attempt_3/notes") == (-1, "")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mine_3", (3, "")),
        ("mine_node02_5", (5, "node02")),
        ("gpu7-mine_3", (3, "gpu7")),  # torchfrtrace looks for it anywhere in the name, too
        ("job_12.mine_00004.pickle", (4, "job_12")),
        ("other_3", None),
        ("3_mine_", None),
        ("mine_", None),
    ],
)
def test_a_forced_prefix_leaves_the_rest(name: str, found: tuple[int, str] | None) -> None:
    assert named(name, prefix="mine_") == found


@pytest.mark.parametrize("prefix", ["nccl_trace_rank_", "comm_lib_trace_rank_", "_dump_", "rank_", "my_own_name_"])
def test_any_naming_is_found(prefix: str, tmp_path: Path) -> None:
    hung_job().write(tmp_path, prefix=prefix)
    assert_culprit_found(report_of(tmp_path))


def test_hosts_in_names_are_kept(tmp_path: Path) -> None:
    hung_job().write(tmp_path, host_in_name=True)
    trace = load([tmp_path])
    assert {row["host"] for row in rows_of(trace, "ranks")} == {"node00"}


def test_one_folder_per_host_names_the_hosts(dumps: Path) -> None:
    for rank in range(4):
        host = dumps / f"gpu-{rank // 2}"
        host.mkdir(exist_ok=True)
        (dumps / f"{PREFIX}{rank}").rename(host / f"{PREFIX}{rank}")
    assert_culprit_found(report_of(dumps))
    trace = load([dumps])
    assert {row["rank"]: row["host"] for row in rows_of(trace, "ranks")} == {
        0: "gpu-0",
        1: "gpu-0",
        2: "gpu-1",
        3: "gpu-1",
    }


def test_several_prefixes_in_one_tree_are_one_job(dumps: Path) -> None:
    (dumps / "deep" / "deeper").mkdir(parents=True)
    (dumps / f"{PREFIX}1").rename(dumps / "deep" / "_dump_1")
    (dumps / f"{PREFIX}3").rename(dumps / "deep" / "deeper" / "comm_lib_trace_rank_3")
    assert_culprit_found(report_of(dumps))


def test_a_forced_prefix_chooses_among_runs(dumps: Path) -> None:
    for rank in range(4):
        shutil.copy(dumps / f"{PREFIX}0", dumps / f"old_{rank}")
    report = report_of(dumps, prefix=PREFIX)
    assert_culprit_found(report)
    assert "D903" not in codes(report)
    assert len(load([dumps], prefix="old_").table("ranks")) == 4


def test_files_may_be_given_one_by_one_and_twice(dumps: Path) -> None:
    paths = sorted(dumps.iterdir())
    assert_culprit_found(report_of(*paths, paths[0]))
    assert "D903" not in codes(report_of(*paths, dumps))


def test_hidden_files_and_folders_are_passed_over(dumps: Path) -> None:
    shutil.copytree(dumps, dumps / ".cache")
    shutil.copy(dumps / f"{PREFIX}1", dumps / f".{PREFIX}9")
    assert_culprit_found(report_of(dumps))


def pack_zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in folder.iterdir():
            packed.write(path, f"job/{path.name}")


def pack_tar(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz" if archive.suffix in (".gz", ".tgz") else "w") as packed:
        packed.add(folder, "job")


@pytest.mark.cases
@pytest.mark.parametrize(
    ("name", "pack"),
    [("dumps.zip", pack_zip), ("dumps.tar", pack_tar), ("dumps.tar.gz", pack_tar), ("dumps.tgz", pack_tar)],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_archives_are_read_in_place(
    name: str, pack: Callable[[Path, Path], None], jobs: int, dumps: Path, tmp_path: Path
) -> None:
    archive = tmp_path / name
    pack(dumps, archive)
    assert_culprit_found(report_of(archive, jobs=jobs))
    assert {row["path"] for row in rows_of(load([archive]))} == {f"{archive}!job/{PREFIX}{rank}" for rank in range(4)}


def test_compressed_files_may_lie_in_archives_beside_plain_ones(dumps: Path, tmp_path: Path) -> None:
    packed = dumps / f"{PREFIX}1"
    (dumps / f"{PREFIX}1.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    half = tmp_path / "half"
    half.mkdir()
    for name in (f"{PREFIX}0", f"{PREFIX}1.gz"):
        (dumps / name).rename(half / name)
    pack_tar(half, dumps / "half.tar")
    assert_culprit_found(report_of(dumps))


def test_nothing_of_an_archive_is_written_to_disk(dumps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as packed:
        for rank in range(4):
            packed.add(dumps / f"{PREFIX}{rank}", f"../../escaped/{PREFIX}{rank}")
    shutil.rmtree(dumps)
    before = sorted(tmp_path.parent.rglob("*"))
    assert_culprit_found(report_of(archive))
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["broken.zip", "broken.tar", "broken.tar.gz"])
@pytest.mark.parametrize(
    "content", [b"", b"no archive at all" * 100, b"\x1f\x8b\x08\x00broken"], ids=["empty", "text", "gzip"]
)
def test_a_broken_archive_is_a_finding(name: str, content: bytes, dumps: Path) -> None:
    (dumps / name).write_bytes(content)
    report = report_of(dumps)
    assert_culprit_found(report)
    if not (content == b"" and name == "broken.tar.gz"):
        assert name in damaged_text(report)


def test_a_cut_archive_is_a_finding_and_its_whole_members_count(dumps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "dumps.tar"
    pack_tar(dumps, archive)
    content = archive.read_bytes()
    with tarfile.open(archive) as packed:
        last = max(packed.getmembers(), key=lambda member: member.offset_data)
    archive.write_bytes(content[: last.offset_data + last.size // 2])
    report = report_of(archive)
    assert "D902" in codes(report)
    assert len(report.capture.ranks) >= 3


def test_an_archive_with_a_password_is_named(dumps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "locked.zip"
    pack_zip(dumps, archive)
    content = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] |= 1  # the flag of an encrypted member
            place = content.find(signature, place + 1)
    archive.write_bytes(content)
    with pytest.raises(InputError, match=r"password|encrypted"):
        load([archive])


def damaged_text(report: Report) -> str:
    return " ".join(
        " ".join((finding.title, *finding.evidence.certain)) for finding in report.findings if finding.code == "D902"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\x80\x02}q\x00(X\x07\x00\x00\x00version", "truncated"),
        (b"Traceback (most recent call last):\n", "not a Flight Recorder dump"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a Flight Recorder dump"),
        (b"\x80\x02]q\x00(K\x01K\x02e.", "not a Flight Recorder dump"),
        (b"\x80\x02}q\x00X\x01\x00\x00\x00aK\x01s.", "not a Flight Recorder dump"),
    ],
    ids=["empty", "truncated", "text", "picture", "list", "dict"],
)
def test_a_bad_file_is_a_finding_and_the_others_are_judged(content: bytes, said: str, dumps: Path) -> None:
    (dumps / f"{PREFIX}3").write_bytes(content)
    report = report_of(dumps)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))
    assert f"{PREFIX}3" in damaged_text(report)
    assert said in damaged_text(report)


def test_files_of_other_kinds_are_passed_over(dumps: Path) -> None:
    (dumps / "README.txt").write_text("the dumps of run 12\n")
    (dumps / "step_12.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (dumps / "stderr_rank_1.log").write_text("watchdog\n")
    report = report_of(dumps)
    assert_culprit_found(report)
    assert "D902" not in codes(report)


def test_two_files_of_one_rank_are_named_and_the_newest_counts(dumps: Path) -> None:
    (dumps / f"{PREFIX}1").rename(dumps / "_dump_1")
    stale = hung_job(mesh=None).write(dumps / "old", prefix="old_")[1]
    content = stale.read_bytes()
    shutil.rmtree(dumps / "old")
    (dumps / f"{PREFIX}1").write_bytes(content[: len(content) // 2])
    report = report_of(dumps)
    assert_culprit_found(report)
    (doubled,) = [finding for finding in report.findings if finding.code == "D903"]
    assert doubled.ranks == (1,)
    assert doubled.evidence.facts["left_out"] == [str(dumps / f"{PREFIX}1")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_folder_does_not_block(dumps: Path) -> None:
    os.mkfifo(dumps / f"{PREFIX}4.pipe")
    assert_culprit_found(report_of(dumps))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_is_given_does_not_block(dumps: Path) -> None:
    os.mkfifo(dumps / "pipe")
    with pytest.raises(InputError, match="pipe is a pipe, a socket or a device"):
        load([str(dumps / "pipe")])


def test_a_link_to_nowhere_is_a_finding(dumps: Path) -> None:
    (dumps / f"{PREFIX}4").symlink_to(dumps / "gone")
    report = report_of(dumps)
    assert_culprit_found(report)
    assert f"{PREFIX}4" in damaged_text(report)


def test_a_circle_of_folders_ends(dumps: Path) -> None:
    (dumps / "circle").symlink_to(dumps, target_is_directory=True)
    assert_culprit_found(report_of(dumps))


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_a_folder_that_cannot_be_listed_is_a_finding(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = dumps / "locked"
    locked.mkdir()
    scandir = os.scandir

    def refuse(path: str | os.PathLike[str]) -> object:
        # As root every folder can be listed, whatever its permissions.
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(locked))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = report_of(dumps)
    assert_culprit_found(report)
    assert "locked" in damaged_text(report)
    assert "permission denied" in damaged_text(report)


def test_a_file_that_cannot_be_opened_is_a_finding(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Source) -> io.BufferedReader:
        if source.rank == 3:
            raise PermissionError(13, "Permission denied", str(source.path))
        return open(source.path, "rb")

    monkeypatch.setattr(Source, "_open_raw", refuse)
    report = report_of(dumps)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))
    assert f"{PREFIX}3" in damaged_text(report)
    assert "permission denied" in damaged_text(report)


def assert_one_line_and_hint(error: RankscopeError) -> None:
    assert error.message
    assert "\n" not in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["missing", "empty", "foreign", "wrong-prefix", "all-bad"])
def test_nothing_to_read_is_one_line_with_a_hint(name: str, dumps: Path, tmp_path: Path) -> None:
    folder = tmp_path / name
    if name != "missing":
        folder.mkdir()
    if name == "foreign":
        (folder / "notes.md").write_text("# nothing\n")
    if name == "all-bad":
        (folder / f"{PREFIX}0").touch()
        (folder / f"{PREFIX}1").write_bytes(b"\x80\x02}")
    with pytest.raises(InputError) as caught:
        load([dumps if name == "wrong-prefix" else folder], prefix="no_such_" if name == "wrong-prefix" else None)
    assert_one_line_and_hint(caught.value)


def test_a_gzip_bomb_stops_at_its_limit(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MIN_UNPACKED_LIMIT", 1 << 16)
    (dumps / f"{PREFIX}3.gz").write_bytes(gzip.compress(b"\x80\x02" + bytes(64 << 20)))
    (dumps / f"{PREFIX}3").unlink()
    report = report_of(dumps)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))
    assert f"{PREFIX}3.gz" in damaged_text(report)


def test_a_json_bomb_in_gzip_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MIN_UNPACKED_LIMIT", 1 << 16)
    path = tmp_path / "rank_0.json.gz"
    path.write_bytes(gzip.compress(b'{"entries": [' + b" " * (64 << 20)))
    source = Source(path, str(path), path.stat().st_size)
    with pytest.raises(OSError, match="far more than a trace"), source.open() as stream:
        stream.read()


def test_a_zip_bomb_is_left_out_and_said_so(dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    with zipfile.ZipFile(dumps / "more.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{PREFIX}4", bytes(4 << 20))
    report = report_of(dumps)
    assert_culprit_found(report)
    assert "more.zip" in damaged_text(report)


def test_a_packed_tar_stops_at_its_limit() -> None:
    packed, plain = io.BytesIO(bytes(5 << 20)), io.BytesIO()
    with pytest.raises(OSError, match="unpacks to more"):
        archives.copy_limited(packed, plain, limit=2 << 20)
    assert len(plain.getvalue()) <= 2 << 20


def test_the_order_of_files_is_fixed_and_natural(tmp_path: Path) -> None:
    for rank in (10, 2, 1, 0):
        (tmp_path / f"rank_{rank}").touch()
    sources, _ = find_sources([str(tmp_path)])
    assert [source.path.name for source in sources] == ["rank_0", "rank_1", "rank_2", "rank_10"]


def test_parallel_reading_gives_the_same_tables(dumps: Path) -> None:
    (dumps / f"{PREFIX}3").write_bytes(b"")
    one, two = (load([dumps], jobs=jobs) for jobs in (1, 2))
    for name in one.tables:
        assert rows_of(one, name) == rows_of(two, name), name


def test_a_script_need_not_guard_itself_to_read_in_processes(dumps: Path, tmp_path: Path) -> None:
    """Spawned processes, as on macOS or once the database is there, would run the script that asked for them again."""
    script = tmp_path / "script.py"
    script.write_text(f"import duckdb, rankscope\nprint(len(rankscope.load({str(dumps)!r}, jobs=2).table('ranks')))\n")
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (finished.stdout, finished.returncode) == ("4\n", 0), finished.stderr


def test_an_unreadable_source_is_a_bad_file(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(BadFileError) as caught:
        Source(gone, str(gone), 1).head()
    assert_one_line_and_hint(caught.value)


def test_other_runs_in_a_folder_are_told_and_not_mixed(tmp_path: Path) -> None:
    for name in ("nccl_trace_rank_0", "run_2/nccl_trace_rank_0", "run_10/nccl_trace_rank_0", "run_files/rank_1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert len(find_sources([str(tmp_path)])[0]) == 4  # without run.json they are folders like any other
    (tmp_path / "run.json").write_text("{}")
    sources, others = find_sources([str(tmp_path)])
    assert [source.path.relative_to(tmp_path).as_posix() for source in sources] == [
        "nccl_trace_rank_0",
        "run.json",
        "run_files/rank_1",
    ]
    assert [(other.shown.rpartition("/")[2], other.status) for other in others] == [
        ("run_2", "other-run"),
        ("run_10", "other-run"),
    ]
    assert [source.shown for source in find_sources([str(tmp_path / "run_2")])[0]] != []
