"""The forms of an export: compressed, in archives, as Parquet, as a report; and what lies beside it."""

from __future__ import annotations

import gzip
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rankscope.errors import InputError
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.nsys_exports import NsysExport, rows_of, training_export

pytestmark = pytest.mark.slow

REPORT = b"NVIDIA Tegra Profiler Report 2025@5@1@121-255136380782v0" + bytes(64)


def facts(trace: Trace) -> list[object]:
    """What must not depend on the form."""
    names = [(row["name"], row["start_ns"], row["op_id"]) for row in rows_of(trace, "kernels")]
    sizes = [(row["op"], row["group_size"], row["n_bytes"]) for row in rows_of(trace, "comms")]
    profiles = [(row["rank"], row["host"], row["n_ops"]) for row in trace.table("profiles").rows()]
    return [names, sizes, profiles]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    return training_export(1).write(tmp_path / "plain" / "nsys_1.sqlite")


def test_a_compressed_export_is_the_same(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "nsys_1.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert facts(load(packed)) == facts(load(plain))


def test_a_cut_compressed_export_is_a_clear_error(tmp_path: Path) -> None:
    export = NsysExport()
    for number in range(9_000):  # more than is looked at to see what the file is
        export.launch(f"kernel{number}", 1_000 * number, number + 1)
    packed = gzip.compress(export.write(tmp_path / "plain").read_bytes())
    (tmp_path / "nsys_1.sqlite.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"cannot be (unpacked|read)"):
        load(tmp_path / "nsys_1.sqlite.gz")


def test_an_export_in_an_archive_is_the_same(plain: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "run/nsys_1.sqlite")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(plain, "run/nsys_1.sqlite")
    assert facts(load(tmp_path / "a.zip")) == facts(load(tmp_path / "a.tar")) == facts(load(plain))


def test_a_folder_of_parquet_tables_is_one_trace(plain: Path, tmp_path: Path) -> None:
    training_export(1).write_parquet(tmp_path / "nsys_1_pqtdir")
    trace = load(tmp_path / "nsys_1_pqtdir")
    assert facts(trace) == facts(load(plain))
    assert trace.table("files").text("status").tolist() == ["read"]


def test_the_name_of_a_parquet_folder_tells_the_rank_and_may_be_a_pattern(tmp_path: Path) -> None:
    export = NsysExport()
    export.launch("kernel", 1_000, 1)
    export.write_parquet(tmp_path / "rank_6 [a*]?")
    assert load(tmp_path).table("profiles").array("rank").tolist() == [6]


def test_payloads_that_parquet_declares_as_text_are_left_out(tmp_path: Path) -> None:
    """nsys does so, and they are no text: DuckDB would refuse the table."""
    export = training_export(0)
    for row in export.tables["NVTX_EVENTS"]:
        row["binaryData"] = "Z" * 56 if row.get("binaryData") else None
    table = export.write_parquet(tmp_path / "nsys_0", payloads="VARCHAR") / "NVTX_EVENTS.parquet"
    table.write_bytes(table.read_bytes().replace(b"Z" * 56, b"\xff" * 56))
    assert [(row["op"], row["group_size"]) for row in rows_of(load(tmp_path), "comms")] == [("all_reduce", -1)] * 2


def test_a_damaged_parquet_table_is_a_clear_error(tmp_path: Path) -> None:
    folder = training_export(0).write_parquet(tmp_path / "nsys_0")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError, match="damaged Parquet table"):
        load(folder)


def test_what_lies_beside_an_export_is_not_counted_twice(plain: Path) -> None:
    (plain.parent / "nsys_1.nsys-rep").write_bytes(REPORT)
    training_export(1).write_parquet(plain.parent / "nsys_1_pqtdir")
    trace = load(plain.parent)
    assert trace.table("files").text("path").tolist() == [str(plain)]
    assert len(trace.table("profiles")) == 1


def test_a_report_alone_says_how_to_export_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run_3.nsys-rep").write_bytes(REPORT)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert "only nsys can read" in caught.value.message
    assert "nsys export --type=sqlite --include-blobs=true run_3.nsys-rep" in caught.value.hint


def write_command(folder: Path, body: str) -> None:
    command = folder / "nsys"
    command.write_text(f"#!{sys.executable}\nimport shutil, sys\n{body}\n")
    command.chmod(0o755)


def test_a_report_is_exported_where_nsys_is_installed(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an old nsys, which does not know --include-blobs."""
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "run_1.nsys-rep").write_bytes(REPORT)
    write_command(
        tmp_path,
        f"""
if "--include-blobs=true" in sys.argv: sys.exit("unknown option")
assert sys.argv[1] == "export" and sys.argv[-1].endswith("run_1.nsys-rep")
shutil.copy({str(plain)!r}, next(each for each in sys.argv if each.startswith("--output=")).removeprefix("--output="))
""",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts(load(reports)) == facts(load(plain))


def test_a_failing_export_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(REPORT)
    write_command(tmp_path, 'sys.exit("Importer error: the report is from a newer version")')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="the report is from a newer version"):
        load(tmp_path / "run.nsys-rep")
