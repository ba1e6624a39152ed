"""What every reader promises. A new one takes part as soon as it is in read/ and has files in tests/data/NAME."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from conformance.foreign import CONTENTS
from rankscope.errors import BadFileError
from rankscope.model.tables import SCHEMA, Part, Table, Text, Trace
from rankscope.read import Reader, own_readers
from rankscope.read.cache import entry_name
from rankscope.read.files import Source, name_source
from read.metric_files import record_ends

DATA = Path(__file__).parents[1] / "data"
N_CUTS = 64
# They stage events in a database: a cut costs so much that those that tell nothing new are left out.
N_CUTS_STAGED = 8
STAGED = {"execution_trace", "kineto"}
KIND_OF_EVENT = re.compile(rb'"(?:ph|cat)": ?"(\w+)"')
LOGS = {"host_samples", "compile_log", "torch_logs", "thread_stacks", "metrics", "metric_log", "tensorboard", "wandb"}
LOGS |= {"job_log"}
FILE_ID = 7

_UNLOADED = {unloaded.module.removeprefix("rankscope.read."): unloaded for unloaded in own_readers()}
_READERS = {name: unloaded.load() for name, unloaded in _UNLOADED.items()}
SAMPLES = [(name, path) for name in _READERS for path in sorted((DATA / name).glob("*")) if path.is_file()]
each_reader = pytest.mark.parametrize("reader", _READERS.values(), ids=list(_READERS))
each_sample = pytest.mark.parametrize(("name", "path"), SAMPLES, ids=[f"{name}/{path.name}" for name, path in SAMPLES])
# Which pickle a pickle is shows only when it is read.
_RECOGNISABLE = {kind: content for kind, content in CONTENTS.items() if not content.startswith(b"\x80")}
each_recognisable = pytest.mark.parametrize("content", _RECOGNISABLE.values(), ids=list(_RECOGNISABLE))
each_foreign = pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))


def source_of(path: Path) -> Source:
    named = name_source(Source(path, str(path), path.stat().st_size))
    assert named is not None
    return replace(named, file_id=FILE_ID)


def read(name: str, path: Path) -> list[Table]:
    """All tables of a file; those that come as parts are loaded."""
    source = source_of(path)
    scratch = Path(os.environ["RANKSCOPE_CACHE"], f"{entry_name(source.identity)}-plain")
    with TemporaryDirectory() as folder:
        placed = replace(source, workspace=str(Path(folder, "entry")), scratch=str(scratch))
        results = list(_READERS[name].read(placed))
        tables = [result for result in results if isinstance(result, Table)]
        parts = [result for result in results if isinstance(result, Part)]
        return [*tables, *(Trace((), {}, {part.table: [part]}).table(part.table) for part in parts)]


@functools.cache
def read_sample(name: str, path: Path) -> list[Table]:
    return read(name, path)


def plain(table: Table) -> tuple[str, dict[str, list[object]]]:
    """Comparable: a missing float is equal to another one here."""
    lists = {column: values.tolist() for column, values in table.columns.items()}
    return table.name, {name: [None if value != value else value for value in values] for name, values in lists.items()}


@each_reader
def test_a_reader_has_a_name_and_samples(reader: Reader) -> None:
    assert _READERS[reader.NAME] is reader
    assert sum(name == reader.NAME for name, _ in SAMPLES) >= 2


@each_sample
def test_a_sample_is_claimed_by_its_own_reader_alone(name: str, path: Path) -> None:
    head = source_of(path).head()
    assert [own for own, reader in _READERS.items() if reader.sniff(head, str(path))] == [name]


@each_sample
def test_a_sample_is_recognised_by_its_content_under_any_name(name: str, path: Path) -> None:
    assert _READERS[name].sniff(source_of(path).head(), "0")


@each_reader
@each_recognisable
def test_foreign_files_are_not_claimed(reader: Reader, content: bytes) -> None:
    assert not reader.sniff(content, "holiday/notes.dat")


@each_sample
def test_what_a_reader_takes_has_its_marks(name: str, path: Path) -> None:
    source = source_of(path)
    head = source.head()
    starts = [head[: round(len(head) * part / 64)] for part in range(65)] + [head.replace(b"\n", b"\r\n"), b"\n" + head]
    names = (source.shown, source.shown.upper(), "other.bin")
    taken = [(start, shown) for start in starts for shown in names if _READERS[name].sniff(start, shown)]
    assert taken
    assert all(_UNLOADED[name].may_take(start, shown) for start, shown in taken)


@each_sample
def test_columns_and_types_are_as_declared(name: str, path: Path) -> None:
    tables = read_sample(name, path)
    assert sum(len(table) for table in tables) > 0
    for table in tables:
        assert list(table.columns) == [column.name for column in SCHEMA[table.name].columns]
        for column in SCHEMA[table.name].columns:
            values = table.columns[column.name]
            assert len(values) == len(table)
            if isinstance(values, Text):
                assert column.is_text
                assert all(type(value) is str for value in values.values)
                assert values.tolist() is not None  # every code has a value
            else:
                assert values.dtype == np.dtype(column.kind), f"{table.name}.{column.name}"


@each_sample
def test_every_row_knows_its_rank_and_its_file(name: str, path: Path) -> None:
    tables = read_sample(name, path)
    source = source_of(path)
    referred: dict[str, set[int]] = {}
    for table in tables:
        for column in SCHEMA[table.name].columns[1:]:
            values = table.columns[column.name]
            if column.name.endswith("_id") and not isinstance(values, Text):
                referred.setdefault(column.name, set()).update(values.tolist())
    for table in tables:
        if "file_id" in table.columns:
            assert set(table.array("file_id").tolist()) <= {FILE_ID}
            assert set(table.array("rank").tolist()) <= {source.rank}
        else:  # rows that others share are reached through their number
            number = SCHEMA[table.name].columns[0].name
            assert set(table.array(number).tolist()) <= referred[number]


@each_sample
def test_the_same_file_gives_the_same_tables(name: str, path: Path) -> None:
    assert list(map(plain, read(name, path))) == list(map(plain, read_sample(name, path)))


@pytest.mark.slow
@each_sample
def test_a_cut_file_gives_its_whole_part_or_a_clear_error(name: str, path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    cut = tmp_path / path.name
    n_needed = len(content) // 4 if name in STAGED else len(content)  # a quarter of these holds whole events
    for n_bytes in cuts(name, content):
        if is_whole_log(name, content, n_bytes):
            continue
        cut.write_bytes(content[:n_bytes])
        if gives_tables_or_clear_error(name, cut):
            n_needed = min(n_needed, n_bytes)
        else:
            assert n_bytes < n_needed, "the part before the cut can be read"


def cuts(name: str, content: bytes) -> list[int]:
    """Within the head and the end, all over the file, and within the first event of each kind."""
    spread = range(8, len(content), max(1, len(content) // (N_CUTS_STAGED if name in STAGED else N_CUTS)))
    kinds = {found.group(1): found.end() for found in reversed(list(KIND_OF_EVENT.finditer(content)))}
    # What is compressed ends with the sum and the length of what was: all of the data are there, and no proof of it.
    ends = (len(content) - 8, len(content) - 1)
    return sorted({*range(8), *spread, *kinds.values(), *ends})


def is_whole_log(name: str, content: bytes, n_bytes: int) -> bool:
    """A log is written record by record: cut between two of them, or before a last newline, it is a shorter log."""
    if name not in LOGS or content.startswith(b"\x1f\x8b"):
        return False
    if name == "job_log" and n_bytes:  # whatever the ranks print: no line has a form by which its end could be known
        return True
    if n_bytes in record_ends(name, content):
        return True
    following = content[n_bytes:].removeprefix(b"\n")
    return b"\n" in content[n_bytes - 1 : n_bytes + 1] and not following.startswith(b"\t")


@each_sample
def test_an_empty_file_is_a_clear_error(name: str, path: Path, tmp_path: Path) -> None:
    empty = tmp_path / path.name
    empty.touch()
    assert_clear_error(name, empty)


@each_sample
@each_foreign
def test_foreign_content_is_a_clear_error(name: str, path: Path, content: bytes, tmp_path: Path) -> None:
    foreign = tmp_path / path.name
    foreign.write_bytes(content)
    assert_clear_error(name, foreign)


def gives_tables_or_clear_error(name: str, path: Path) -> bool:
    """True when there are tables."""
    try:
        tables = read(name, path)
    except BadFileError as error:
        assert_is_clear(error)
        return False
    damaged = [table for table in tables if table.name == "files"]
    assert len(damaged) == 1, "the reader must say that a part is missing"
    assert damaged[0].text("status").tolist() == ["damaged"]
    assert damaged[0].text("problem").tolist() != [""]
    return True


def assert_clear_error(name: str, path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        read(name, path)
    assert_is_clear(caught.value)


def assert_is_clear(error: BadFileError) -> None:
    assert error.message
    assert "\n" not in error.message
    assert error.hint
