"""Files of strangers: nothing in them is run, and each ends in tables or in a clear error."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import InputError
from rankscope.pipeline import load
from read.nsys_exports import NsysExport, rows_of, training_export

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return training_export(0).write(tmp_path / "nsys_0.sqlite")


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def error_of(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.hint
    return caught.value


def test_a_foreign_database_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.sqlite"
    change(path, "CREATE TABLE experiments (id, name)")
    assert "not an Nsight Systems export" in error_of(path).message


def test_an_export_without_events_is_a_clear_error(tmp_path: Path) -> None:
    path = NsysExport().write(tmp_path / "nsys_0.sqlite")
    error = error_of(path)
    assert "neither CUDA nor NVTX" in error.message
    assert "--trace=cuda,nvtx" in error.hint


def test_a_view_under_the_name_of_a_table_is_not_read(path: Path) -> None:
    change(
        path,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT *, zeroblob(1000000000) FROM hidden",
    )
    assert "sm80_gemm_f32" not in [row["name"] for row in rows_of(load(path), "kernels")]


def test_generated_columns_and_virtual_tables_are_not_read(path: Path) -> None:
    change(
        path,
        "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_MEMCPY USING fts4(start, end, globalPid)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 3)",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN bytes",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET ADD COLUMN bytes INTEGER AS (length(zeroblob(1000000000)))",
    )
    kernels = rows_of(load(path), "kernels")
    assert [row["n_bytes"] for row in kernels if row["kind"] == "memset"] == [-1, -1]
    assert not [row for row in kernels if row["kind"] == "memcpy"]


def test_a_trigger_stays_still_and_the_file_unchanged(path: Path) -> None:
    change(path, "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END")
    before = path.read_bytes()
    load(path)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("value", ["'soon'", "x'00'", "'1e400'"])
def test_text_where_a_number_belongs_is_a_clear_error(path: Path, value: str) -> None:
    change(path, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = {value}")
    assert "CUPTI_ACTIVITY_KIND_KERNEL.start" in error_of(path).message


def test_times_beyond_all_limits_are_a_clear_error(path: Path) -> None:
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775807, end = 9223372036854775807")
    error_of(path)


def test_long_texts_are_cut(path: Path) -> None:
    change(path, "UPDATE StringIds SET value = printf('%.*c', 3000000, 'x') WHERE value = 'sm80_gemm_f32'")
    assert max(len(row["name"]) for row in rows_of(load(path), "kernels")) == 8192


def test_a_page_that_is_listed_again_and_again_is_noticed(tmp_path: Path) -> None:
    """All pointers of a tree are turned to one leaf, level after level: few pages, endless rows."""
    export = NsysExport()
    for number in range(40_000):
        export.launch(f"kernel{number % 7}", 1_000 * number, number + 1)
    path = export.write(tmp_path / "nsys_0.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        [(root,)] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_RUNTIME'"
        ).fetchall()
    content = bytearray(path.read_bytes())
    _fold_tree(content, root)
    path.write_bytes(content)
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" in error_of(path).message


def _fold_tree(content: bytearray, root: int) -> None:
    """Makes a chain of interior pages below the root, each pointing at the next one many times."""
    page_bytes = int.from_bytes(content[16:18], "big")

    def start(page: int) -> int:
        return (page - 1) * page_bytes

    base = start(root)
    assert content[base] == 5, "the root is an interior page"
    interior = bytes(content[base : base + page_bytes])
    leaf = int.from_bytes(content[base + 8 : base + 12], "big")
    n_pages = len(content) // page_bytes
    chain = [root, n_pages + 1, n_pages + 2, n_pages + 3]
    content.extend(interior * 3)
    content[28:32] = (n_pages + 3).to_bytes(4, "big")
    for page, child in zip(chain, [*chain[1:], leaf], strict=True):
        first = start(page)
        content[first + 8 : first + 12] = child.to_bytes(4, "big")
        n_cells = int.from_bytes(content[first + 3 : first + 5], "big")
        for cell in range(n_cells):
            place = first + int.from_bytes(content[first + 12 + 2 * cell : first + 14 + 2 * cell], "big")
            content[place : place + 4] = child.to_bytes(4, "big")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_changed_bytes_give_tables_or_a_clear_error(path: Path, seed: int) -> None:
    source = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(source.choice([1, 4, 64])):
        content[source.randrange(100, len(content))] = source.randrange(256)
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert load(path).has("profiles")


def test_the_environment_of_the_job_is_not_kept(tmp_path: Path) -> None:
    """It holds passwords and keys, and exports have all of it."""
    export = training_export(0)
    export.environment(API_KEY="hunter2hunter2")
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="TOKEN=hunter2hunter2;RANK=0")
    cache = tmp_path / "cache"
    trace: Any = load(export.write(tmp_path / "nsys_0.sqlite"), cache=str(cache))
    kept = [file for file in cache.rglob("*") if file.is_file()]
    assert any(file.name == "kernels.parquet" for file in kept)
    assert not any(b"hunter2" in file.read_bytes() for file in kept)
    assert not any(file.name.startswith("raw_") for file in kept)
    assert trace.has("kernels")
