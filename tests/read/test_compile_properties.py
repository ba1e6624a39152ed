"""Whatever happens to a log, the reader answers with tables or a BadFileError, and no whole record is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankscope.model.payloads import MappedLog
from rankscope.model.tables import Table
from rankscope.simulate.compile_log import LogBuilder, checksum, log_name
from read.compile_log_reading import read_tables, refusal
from read.dumps import assert_clear
from read.mutating import mutations

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parents[1] / "data" / "compile_log" / log_name(0, "qwertyui")
CONTENT = SAMPLE.read_bytes()
quickly = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def records_in(content: bytes) -> list[bytes]:
    """The records of an undamaged log, in the plainest way: a line that does not begin with a tab begins one."""
    records: list[bytes] = []
    for line in content.split(b"\n")[:-1]:
        if line.startswith(b"\t"):
            records[-1] += b"\n" + line
        else:
            records.append(line)
    return [record + b"\n" for record in records]


RECORDS = records_in(CONTENT)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / log_name(0)


def index_of(path: Path) -> Table:
    return read_tables(path)["compile_records"]


def whole_records(path: Path, index: Table) -> list[tuple[str, str]]:
    """Kind and checksum of all records whose payload is as it was written."""
    log = MappedLog(str(path))
    rows = [row for row in index.rows() if row["kind"]]
    return [(row["kind"], row["md5"]) for row in rows if not row["md5"] or checksum(log.payload(row)) == row["md5"]]


def told(records: list[bytes]) -> list[tuple[str, str]]:
    headers = [json.loads(record.split(b"\n")[0].partition(b"] ")[2]) for record in records]
    return [(next(iter(header)), header.get("has_payload", "")) for header in headers]


@given(n_bytes=st.integers(1, len(CONTENT)))
@example(n_bytes=len(CONTENT))
@settings(quickly, max_examples=300)
def test_a_log_cut_anywhere_gives_every_whole_record(scratch: Path, n_bytes: int) -> None:
    scratch.write_bytes(CONTENT[:n_bytes])
    kept: list[bytes] = []
    for record in RECORDS:
        if sum(map(len, kept)) + len(record) > n_bytes + 1:  # the last newline may be missing
            break
        kept.append(record)
    if not kept:
        assert_clear(refusal(scratch))
        return

    found = whole_records(scratch, index_of(scratch))

    assert found[: len(kept)] == told(kept)
    assert len(found) <= len(kept) + 1


@given(order=st.permutations(range(len(RECORDS))))
@quickly
def test_records_in_any_order_are_all_read(scratch: Path, order: list[int]) -> None:
    shuffled = [RECORDS[number] for number in order]
    scratch.write_bytes(b"".join(shuffled))

    assert whole_records(scratch, index_of(scratch)) == told(shuffled)


@given(data=st.data())
@quickly
def test_lines_in_any_order_lose_no_header(scratch: Path, data: st.DataObject) -> None:
    lines = CONTENT.splitlines(keepends=True)
    shuffled = data.draw(st.permutations(lines))
    scratch.write_bytes(b"".join(shuffled))

    kinds = [kind for kind in index_of(scratch).text("kind").tolist() if kind]

    headers = [line for line in shuffled if not line.startswith(b"\t")]
    assert kinds == [kind for kind, _ in told(headers)]


@given(data=st.data())
@settings(quickly, max_examples=400)
def test_mutated_logs_never_crash_the_reader(scratch: Path, data: st.DataObject) -> None:
    scratch.write_bytes(data.draw(mutations(CONTENT)))
    assert_clear(refusal(scratch))


@given(number=st.integers(0, len(RECORDS) - 1), place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
@settings(quickly, max_examples=300)
def test_one_changed_byte_costs_one_record_at_most(scratch: Path, number: int, place: float, byte: int) -> None:
    """A newline may make two of a record, and the newline behind it may be lost, but no other record suffers."""
    record = bytearray(RECORDS[number])
    where = int(len(record) * place)
    record[where] = byte
    scratch.write_bytes(b"".join([*RECORDS[:number], bytes(record), *RECORDS[number + 1 :]]))

    found = whole_records(scratch, index_of(scratch))

    before, after = told(RECORDS[:number]), told(RECORDS[number + 2 :])
    n_before = max(0, len(before) - (where == 0))  # without its first letter it may look like the end of the one before
    assert found[:n_before] == before[:n_before]
    assert found[len(found) - len(after) :] == after


@given(st.binary(max_size=300))
@quickly
def test_random_bytes_never_crash_the_reader(scratch: Path, content: bytes) -> None:
    prefix = b'V1116 06:18:20.896000 1 torch/x.py:1] {"artifact": {"name": "recompile_reasons"}, "has_payload": "0"}'
    for start in (b"", b"V1116 ", prefix, prefix + b"\n\t", prefix[:-30], b"[rank0]:" + prefix + b"\n", b"\x1f\x8b"):
        scratch.write_bytes(start + content)
        assert_clear(refusal(scratch))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)
HANDLED = st.sampled_from(
    (
        *("str", "dynamo_start", "compilation_metrics", "bwd_compilation_metrics", "create_symbol", "guard_added"),
        *("symbolic_shape_specialization", "missing_fake_kernel", "artifact", "link", "chromium_event", "rank"),
    )
)
FIELDS = st.sampled_from(
    (
        *("stack", "user_stack", "symbol", "sources", "expr", "val", "reason", "name", "encoding", "filename", "url"),
        *("start_time", "end_time_us", "duration_us", "fail_type", "restart_reasons", "co_name", "graph_op_count"),
    )
)
METADATA = st.one_of(JSON, st.dictionaries(FIELDS, JSON, max_size=5))
ENVELOPE = st.dictionaries(
    st.sampled_from(
        ("rank", "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "has_payload", "stack")
    ),
    JSON,
    max_size=4,
)


@given(kind=HANDLED, metadata=METADATA, envelope=ENVELOPE, payload=st.one_of(st.none(), st.binary(max_size=60)))
@settings(quickly, max_examples=500)
def test_any_json_in_place_of_a_record_never_crashes_the_reader(
    scratch: Path, kind: str, metadata: Any, envelope: dict[str, Any], payload: bytes | None
) -> None:
    log = LogBuilder(0).record(kind, metadata, payload, **envelope).metrics("7/0")
    scratch.write_bytes(log.content())

    tables = read_tables(scratch)

    assert "7/0" in tables["compilations"].text("compile_id").tolist()


NAMES = st.sampled_from(
    (
        *("recompile_reasons", "dynamo_graph_break_reason", "dynamo_error", "torch_version", "fx_graph_cache_miss"),
        *("aotautograd_cache_bypass", "fx_graph_cache_hit", "_hit", ""),
    )
)


@given(name=NAMES, payload=st.one_of(st.text(max_size=80), JSON.map(json.dumps)))
@settings(quickly, max_examples=400)
def test_any_text_in_place_of_an_artifact_never_crashes_the_reader(scratch: Path, name: str, payload: str) -> None:
    content = payload.encode("utf-8", "surrogatepass")
    scratch.write_bytes(LogBuilder(0).record("artifact", {"name": name}, content).metrics("7/0").content())

    index = index_of(scratch)

    assert index.text("kind").tolist() == ["artifact", "compilation_metrics"]
