"""A dump is untrusted: no class is resolved, nothing runs, and a small file cannot exhaust the machine."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import BadFileError, InputError
from rankscope.read.unpickle import BrokenPickleError, RefusedClassError, load_plain, salvage_plain
from read import hostile
from read.cage import MEGABYTE, Outcome, diagnose_caged, read_caged
from read.dumps import (
    assert_read_or_clearly_refused,
    hung_job,
    make_dump,
    make_entry,
    read_tables,
    report_of,
    verdict,
    write_dump,
)

pytestmark = pytest.mark.slow

HARMLESS_BYTES = 512 * MEGABYTE
HARMLESS_SECONDS = 5
KINDS = list(hostile.command_pickles(Path("marker")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_malicious_pickle_is_named_and_nothing_runs(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(hostile.command_pickles(marker)[kind])
    with pytest.raises(BadFileError) as caught:
        read_tables(path)
    assert not marker.exists()
    if kind != "protocol-0":  # it lacks the mark of a pickle and is taken for text
        assert "system" in caught.value.message
        assert "none of it was run" in caught.value.message
    assert caught.value.hint


def test_the_malicious_pickles_of_these_tests_would_run(tmp_path: Path) -> None:
    for kind, content in hostile.command_pickles(tmp_path / "marker").items():
        if kind == "as-key":
            continue  # the return value of os.system is a fine key
        pickle.loads(content)
        assert (tmp_path / "marker").exists(), kind
        (tmp_path / "marker").unlink()


def test_a_malicious_file_among_others_is_a_finding(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    folder = tmp_path / "dumps"
    hung_job().write(folder)
    (folder / "nccl_trace_rank_3").write_bytes(hostile.command_pickles(marker)["as-field"])
    report = report_of(folder)
    assert not marker.exists()
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))
    (damaged,) = [finding for finding in report.findings if finding.code == "D902"]
    assert "nccl_trace_rank_3" in damaged.title
    assert "malicious" in damaged.title


def test_a_malicious_file_alone_is_one_line_with_a_hint(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "rank_0").write_bytes(hostile.command_pickles(marker)["at-top"])
    with pytest.raises(InputError, match="malicious") as caught:
        report_of(tmp_path)
    assert not marker.exists()
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", [pickle.dumps(Path("a")), pickle.dumps({1.5, 2.5}, protocol=2)], ids=["class", "set"]
)
def test_every_class_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedClassError):
        load_plain(io.BytesIO(content))
    with pytest.raises(RefusedClassError):
        salvage_plain(content)


def test_persistent_objects_and_extensions_are_refused(tmp_path: Path) -> None:
    for content in (hostile.PERSISTENT, hostile.EXTENSION):
        path = tmp_path / "rank_0"
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            read_tables(path)


def test_plain_containers_are_read_as_pickle_reads_them() -> None:
    value: dict[str, Any] = {"a": [1, -(2**70), 1.5, None, True, (), (1,), (1, 2, 3, 4), "text", {"b": {}}]}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(value, protocol=protocol)
        assert load_plain(io.BytesIO(content)) == value
        assert salvage_plain(content) == value


def test_a_cut_pickle_is_salvaged_up_to_the_last_whole_item() -> None:
    entries = [{"a": number, "b": 10 * number} for number in (1, 2, 3)]
    content = pickle.dumps({"version": "2.10", "entries": entries}, protocol=2)
    before_second_b = content[: content.index(b"K\x14")]
    assert salvage_plain(before_second_b) == {"version": "2.10", "entries": [{"a": 1, "b": 10}, {"a": 2}]}
    assert salvage_plain(content[:1]) is None


def test_a_pickle_that_was_changed_is_not_taken_for_a_cut_one() -> None:
    content = pickle.dumps({"version": "2.10", "entries": [{"a": 1}, {"b": 2}]}, protocol=2)
    changed = content.replace(b"K\x02", b"?\x02")
    with pytest.raises(BrokenPickleError, match="is invalid at byte"):
        salvage_plain(changed)


@pytest.mark.parametrize(
    "name", ["ANNOUNCES_MUCH", "ANNOUNCES_LONG", "FAR_MEMO", "ABSENT_MEMO", "SELF_REFERENCE", "LIST_OF_ITSELF"]
)
def test_crooked_streams_give_tables_or_a_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(getattr(hostile, name))
    assert_read_or_clearly_refused(path)


@pytest.mark.parametrize("depth", [100, 10_000, 300_000])
def test_deep_nesting_neither_crashes_nor_recurses(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(hostile.nested(depth))
    assert_read_or_clearly_refused(path)


LONG_NAME = "x" * 10**6
BOMB = hostile.unfolding(9)  # a billion numbers
BOMBS: list[tuple[str, Any]] = [
    ("input_sizes", hostile.shared(hostile.shared(7, 10**4), 10**4)),
    ("input_sizes", hostile.shared([7], 50_000)),
    ("output_sizes", BOMB),
    ("input_dtypes", BOMB),
    ("output_dtypes", hostile.shared(LONG_NAME, 10**4)),
    ("process_group", BOMB),
    ("profiling_name", BOMB),
    ("profiling_name", LONG_NAME),
    ("state", BOMB),
    ("timeout_ms", BOMB),
    ("thread_name", {"a": BOMB}),
    ("frames", BOMB),
    ("frames", hostile.shared({"name": "f", "filename": "a.py", "line": 1}, 50_000)),
    ("frames", [{"name": "f", "filename": BOMB, "line": 1}]),
    ("frames", [{"name": BOMB, "filename": "a.py", "line": BOMB}]),
    ("time_created_ns", BOMB),
    ("duration_ms", BOMB),
]


@pytest.mark.parametrize(("field", "value"), BOMBS, ids=[f"{field}-{place}" for place, (field, _) in enumerate(BOMBS)])
def test_shared_objects_cannot_unfold_a_small_file(field: str, value: Any, tmp_path: Path) -> None:
    entries = [make_entry(seq, **{field: value}) for seq in range(10_000)]
    path = write_dump(tmp_path / "nccl_trace_rank_0", make_dump(entries))
    assert path.stat().st_size < 5 * MEGABYTE
    assert_harmless(read_caged(path))


@pytest.mark.parametrize("field", ["pg_config", "pg_status", "version", "comm_lib_version", "nccl_comm_state"])
def test_top_level_fields_cannot_unfold(field: str, tmp_path: Path) -> None:
    group = {"name": BOMB, "desc": BOMB, "ranks": "[0, 1]", "last_enqueued_collective": BOMB}
    long_key = (("x" * 1000,) * 1000,) * 1000
    mapping = {"0": BOMB, "1": group, "2": {**group, "ranks": BOMB}, long_key: {**group, "desc": "d"}}
    for value in (BOMB, mapping):
        path = write_dump(tmp_path / "nccl_trace_rank_0", make_dump([make_entry(1)], **{field: value}))
        assert_harmless(read_caged(path))


def assert_harmless(outcome: Outcome) -> None:
    assert outcome.n_bytes < HARMLESS_BYTES, outcome
    assert outcome.cpu_s < HARMLESS_SECONDS, outcome


COMMAND_BOMBS: dict[str, bytes] = {
    "memo": hostile.FAR_MEMO,
    "numbers": pickle.dumps(make_dump([make_entry(1, input_sizes=BOMB)]), protocol=2),
    "names": pickle.dumps(make_dump([make_entry(seq, thread_name=LONG_NAME) for seq in range(10**4)]), protocol=2),
    "frames": pickle.dumps(make_dump([make_entry(1, frames=[{"name": BOMB, "filename": BOMB}])]), protocol=2),
}


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("kind", COMMAND_BOMBS)
def test_the_command_survives_a_bomb_and_judges_the_rest(kind: str, jobs: str, tmp_path: Path) -> None:
    hung_job().write(tmp_path)
    (tmp_path / "nccl_trace_rank_3").write_bytes(COMMAND_BOMBS[kind])
    ran = diagnose_caged(tmp_path, jobs)
    assert ran.returncode == 1, ran.stderr[-1000:]
    assert "rank 2 called" in ran.stdout
    if kind == "memo":  # the others may as well be read, as long as nothing unfolds
        assert "nccl_trace_rank_3" in ran.stdout
