"""Archives that are cut, damaged or made to hurt: each is told, and what was in it is unknown, not lost."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from rankscope import diagnose, load
from rankscope.model.finding import Finding, Report
from rankscope.read.archives import BadMember, Member, members
from read.dumps import hung_job

PREFIX = "nccl_trace_rank_"
BLOCK = 512


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    hung_job().write(tmp_path / "dumps")
    return [tmp_path / "dumps" / f"{PREFIX}{rank}" for rank in range(4)]


def tar_of(files: list[Path]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for file in files:
            archive.add(file, file.name)
    return held.getvalue()


def headers(archive: bytes) -> list[int]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return [info.offset for info in opened]


def damages(whole: bytes) -> dict[str, bytes]:
    """All of them behind the second of four members."""
    third = headers(whole)[2]
    return {
        "bad header": whole[: third + 150] + b"\xff" + whole[third + 151 :],
        "zero header": whole[:third] + bytes(BLOCK) + whole[third + BLOCK :],
        "cut at a header": whole[: third + 100],
        "cut at a member's end": whole[:third],
        "cut in a member": whole[: third - BLOCK - 100],
    }


def found(report: Report, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


@pytest.mark.parametrize("kind", ["bad header", "zero header", "cut at a header", "cut at a member's end"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_tar_that_ends_early_is_told_and_no_rank_is_lost(
    kind: str, packed: bool, dumps: list[Path], tmp_path: Path
) -> None:
    content = damages(tar_of(dumps))[kind]
    place = tmp_path / "job" / ("d.tar.gz" if packed else "d.tar")
    place.parent.mkdir()
    place.write_bytes(gzip.compress(content) if packed else content)
    report = diagnose(load(place.parent))
    (damaged,) = found(report, "D902")
    assert place.name in damaged.title
    assert "unknown" in damaged.title
    assert not found(report, "H101")
    (missing,) = found(report, "D901")
    assert missing.ranks == (2, 3)
    assert "whether these ranks are lost is unknown" in missing.evidence.notes[0]


def test_a_whole_tar_has_no_damage_whatever_its_padding(dumps: list[Path], tmp_path: Path) -> None:
    whole = tar_of(dumps)
    end = len(whole.rstrip(b"\0")) + BLOCK
    end -= end % BLOCK
    for number, content in enumerate((whole, whole + bytes(10 * BLOCK), whole[: end + 2 * BLOCK])):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(content)
        assert not [member for member in members(path) if isinstance(member, BadMember)]


def test_a_member_that_is_cut_is_told_by_name(dumps: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "d.tar"
    path.write_bytes(damages(tar_of(dumps))["cut in a member"])
    whole, cut, archive = members(path)
    assert isinstance(whole, Member)
    assert isinstance(cut, BadMember)
    assert cut.name == f"{PREFIX}1"
    assert isinstance(archive, BadMember)
    assert not archive.name


def test_a_packed_tar_that_is_cut_gives_what_comes_before(dumps: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "d.tar.gz"
    path.write_bytes(gzip.compress(tar_of(dumps))[:-40])
    assert any(isinstance(member, Member) for member in members(path))
    report = diagnose(load(path))
    assert found(report, "D902")
    assert not found(report, "H101")


def test_an_archive_that_is_replaced_is_read_again(dumps: list[Path], tmp_path: Path) -> None:
    for name, write in (("d.zip", _zip), ("d.tgz", _tgz)):
        path = tmp_path / name
        write(path, dumps[:1])
        assert load(path).table("ranks").array("rank").tolist() == [0]
        write(path, dumps[1:2])
        assert load(path).table("ranks").array("rank").tolist() == [1]


def _zip(path: Path, files: list[Path]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.write(file, file.name)


def _tgz(path: Path, files: list[Path]) -> None:
    path.write_bytes(gzip.compress(tar_of(files)))


@pytest.mark.parametrize("name", ["1" * 60_000, "1a" * 30_000, "x" + ".gz" * 20_000], ids=["digits", "1a", "gz"])
def test_names_without_end_are_told_and_cost_nothing(name: str, dumps: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "dumps" / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    report = diagnose(load(tmp_path / "dumps"))
    assert report.capture.ranks == (0, 1, 2, 3)
    assert "has a name of 60,00" in found(report, "D902")[0].title


def test_members_that_share_their_bytes_cannot_unfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.read.archives.MIN_UNPACKED_LIMIT", 1 << 20)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank_0", bytes(1 << 20))
        info = archive.infolist()[0]
        for number in range(1, 100):
            copied = zipfile.ZipInfo(f"rank_{number}")
            for field in ("file_size", "compress_size", "CRC", "header_offset", "compress_type"):
                setattr(copied, field, getattr(info, field))
            archive.filelist.append(copied)
            archive.NameToInfo[copied.filename] = copied
    assert isinstance(list(members(path))[-1], BadMember)
    assert len(list(members(path))) < 100


def test_links_in_a_tar_are_told_and_second_names_are_read(dumps: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "job.tar"
    (tmp_path / "dumps" / f"{PREFIX}7").hardlink_to(dumps[0])
    (tmp_path / "dumps" / "latest").symlink_to(dumps[1])
    os.mkfifo(tmp_path / "dumps" / "pipe")
    with tarfile.open(place, "w") as archive:
        archive.add(tmp_path / "dumps", "d")
    found = list(members(place))
    assert {member.name for member in found if isinstance(member, Member)} == {
        f"d/{PREFIX}{rank}" for rank in (0, 1, 2, 3, 7)
    }
    told = {member.name: member.problem for member in found if isinstance(member, BadMember)}
    assert told == {"d/latest": "is a link", "d/pipe": "is no file"}
    rows = {Path(row["path"]).name: row["status"] for row in load(place).table("files").rows()}
    assert rows["pipe"] == rows["latest"] == "ignored"


@pytest.mark.parametrize("name", ["job.zip", "job.tar", "job.tar.gz"])
def test_an_empty_archive_is_told(name: str, dumps: list[Path]) -> None:
    place = dumps[0].parent / name
    if name == "job.zip":
        zipfile.ZipFile(place, "w").close()
    else:
        tarfile.open(place, "w:gz" if name.endswith("gz") else "w").close()
    (row,) = (row for row in load(place.parent).table("files").rows() if row["path"].endswith(name))
    assert (row["status"], row["problem"]) == ("ignored", "is an empty archive")
