"""Whatever happens to a dump, the reader answers with tables or a BadFileError, runs nothing, and the job is judged."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.errors import BadFileError, InputError
from rankscope.model.finding import Report
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate
from read.dumps import (
    assert_read_or_clearly_refused,
    make_dump,
    make_entry,
    read_tables,
    report_of,
    verdict,
    write_dump,
)
from read.mutating import mutations

pytestmark = pytest.mark.slow

resource = pytest.importorskip("resource")

CULPRIT = 2
PREFIX = "nccl_trace_rank_"
SAMPLES = Path(__file__).parents[1] / "data" / "flight_recorder"

quickly = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
on_whole_jobs = settings(quickly, max_examples=40)


@pytest.fixture(scope="module", autouse=True)
def _little_memory() -> Iterator[None]:
    """A flipped bit may ask the unpickler for gigabytes; it shall get a MemoryError, not the machine's memory."""
    n_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (n_now + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def job() -> dict[str, bytes]:
    """The files of a job in which rank 2 calls another collective than its three peers."""
    with tempfile.TemporaryDirectory() as folder:
        spec = JobSpec(Mesh(dp=4, tp=1), steps=3)
        paths = simulate(spec, Fault("op", rank=CULPRIT, step=1), Noise(ring=24)).write(folder)
        return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
@given(data=st.data())
@settings(quickly, max_examples=60)
def test_mutated_dumps_never_crash_the_reader(sample: str, data: st.DataObject, scratch: Path) -> None:
    path = scratch / sample
    path.write_bytes(data.draw(mutations((SAMPLES / sample).read_bytes())))
    assert_read_or_clearly_refused(path)


@given(st.binary(max_size=200))
@quickly
def test_random_bytes_never_crash_the_reader(scratch: Path, content: bytes) -> None:
    path = scratch / f"{PREFIX}0"
    for start in (
        b"",
        b"\x80\x02",
        b"\x80\x04\x95",
        b"\x80\x02}(X\x07\x00\x00\x00entries]",
        b"\x1f\x8b",
        b'{"entries":',
    ):
        path.write_bytes(start + content)
        assert_read_or_clearly_refused(path)


def opcodes(marker: Path) -> st.SearchStrategy[bytes]:
    """Streams of valid opcodes in any order, among them all that can call a function."""
    command = f"touch {marker}".encode()
    texts = [b"os", b"system", b"subprocess", b"getoutput", b"builtins", b"eval", b"entries", b"version", command]
    push_text = st.sampled_from(texts).map(lambda text: b"X" + len(text).to_bytes(4, "little") + text)
    calls = [
        b"cos\nsystem\n",
        b"cbuiltins\neval\n",
        b"(S'" + command + b"'\nios\nsystem\n",
        b"\x93",
        b"R",
        b"\x81",
        b"\x92",
    ]
    calls += [b"o", b"b", b"\x82\x01", b"Q", b"Pabc\n"]
    plain = [
        b"(",
        b"]",
        b"}",
        b")",
        b"e",
        b"a",
        b"u",
        b"s",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"N",
        b"\x88",
        b"\x89",
        b"0",
    ]
    plain += [
        b"1",
        b"2",
        b"q\x00",
        b"q\x01",
        b"h\x00",
        b"h\x01",
        b"K\x07",
        b"M\x07\x01",
        b"\x8a\x01\x05",
        b"G@\x00\x00\x00\x00\x00\x00\x00",
    ]
    one = st.one_of(push_text, st.sampled_from(calls), st.sampled_from(plain))
    return st.lists(one, max_size=40).map(lambda parts: b"\x80\x02" + b"".join(parts) + b".")


@given(data=st.data())
@settings(quickly, max_examples=400)
def test_streams_of_opcodes_never_run_anything(data: st.DataObject, scratch: Path) -> None:
    marker = scratch / "marker"
    path = scratch / f"{PREFIX}0"
    content = data.draw(opcodes(marker))
    path.write_bytes(content)
    assert_read_or_clearly_refused(path)
    path.write_bytes(b"\x80\x02}(" + content[2:-1] + b"u.")
    assert_read_or_clearly_refused(path)
    assert not marker.exists()


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 1 << 66),
    st.floats(),
    st.text(max_size=6),
    st.just("nccl:send 0->1"),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
FIELDS = sorted([*make_entry(), "duration_ms", "seq_id", "time_created_us"])


@given(st.lists(st.one_of(PLAIN, st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=6)), max_size=4))
@quickly
def test_anything_in_place_of_entries_never_crashes_the_reader(scratch: Path, entries: list[Any]) -> None:
    assert_read_or_clearly_refused(write_dump(scratch / f"{PREFIX}0", make_dump(entries)))


@given(st.dictionaries(st.sampled_from(FIELDS), PLAIN, min_size=1, max_size=2), st.booleans())
@settings(quickly, max_examples=400)
def test_one_odd_field_never_crashes_the_reader(scratch: Path, odd: dict[str, Any], in_all: bool) -> None:
    entries = [make_entry(1, **(odd if in_all else {})), make_entry(2, **odd), make_entry(3)]
    assert_read_or_clearly_refused(write_dump(scratch / f"{PREFIX}0", make_dump(entries)))


@given(st.dictionaries(st.sampled_from(["version", "pg_config", "pg_status", "entries", "comm_lib_version"]), PLAIN))
@quickly
def test_odd_top_levels_never_crash_the_reader(scratch: Path, odd: dict[str, Any]) -> None:
    assert_read_or_clearly_refused(write_dump(scratch / f"{PREFIX}0", make_dump([make_entry(1)], **odd)))


def judge(files: dict[str, bytes]) -> Report | None:
    """None when nothing at all was readable; any other exception is a failure of the test."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        try:
            return report_of(Path(folder), jobs=1)
        except InputError:
            return None


def names_as_damaged(report: Report, name: str) -> bool:
    return any(
        name in file["path"]
        for finding in report.findings
        if finding.code == "D902"
        for file in finding.evidence.facts["files"]
    )


@given(rank=st.sampled_from([0, 1, 3]), part=st.floats(0, 1, exclude_max=True))
@on_whole_jobs
def test_a_cut_bystander_is_named_and_changes_no_verdict(job: dict[str, bytes], rank: int, part: float) -> None:
    name = f"{PREFIX}{rank}"
    report = judge({**job, name: job[name][: int(len(job[name]) * part)]})
    assert report is not None
    assert names_as_damaged(report, name)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (CULPRIT,))


@given(part=st.floats(0, 1, exclude_max=True))
@on_whole_jobs
def test_a_cut_culprit_is_named_and_nobody_else_is_blamed_for_certain(job: dict[str, bytes], part: float) -> None:
    name = f"{PREFIX}{CULPRIT}"
    report = judge({**job, name: job[name][: int(len(job[name]) * part)]})
    assert report is not None
    assert names_as_damaged(report, name)
    blamed = {
        rank
        for finding in report.findings
        if finding.severity == "error" and finding.certainty == "certain"
        for rank in finding.ranks
    }
    assert blamed <= {CULPRIT}


@given(data=st.data(), rank=st.sampled_from([0, 1, 3]))
@on_whole_jobs
def test_a_mutated_file_that_cannot_be_read_is_named(job: dict[str, bytes], data: st.DataObject, rank: int) -> None:
    """A mutation that still reads as a whole dump is another dump: of that only an answer is promised."""
    name = f"{PREFIX}{rank}"
    content = data.draw(mutations(job[name]))
    report = judge({**job, name: content})
    assert report is not None
    if not reads_whole(content):
        assert names_as_damaged(report, name)
        assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (CULPRIT,))


def reads_whole(content: bytes) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{PREFIX}0")
        path.write_bytes(content)
        try:
            return "files" not in read_tables(path)
        except BadFileError:
            return False


@given(
    st.lists(
        st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, SCALARS)), max_size=5),
        min_size=1,
        max_size=3,
    )
)
@on_whole_jobs
def test_any_set_of_readable_dumps_is_judged(dumps: list[list[dict[str, Any]]]) -> None:
    files = {
        f"{PREFIX}{rank}": pickle.dumps(
            make_dump([make_entry(seq, **odd) for seq, odd in enumerate(entries)]), protocol=2
        )
        for rank, entries in enumerate(dumps)
    }
    judge(files)
