"""Logs that came through another program: packed, or with several ranks in one stream."""

from __future__ import annotations

import gzip
from itertools import zip_longest
from pathlib import Path

import pytest

from rankscope.model.payloads import damaged_payloads
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.simulate.compile_log import LogBuilder, Site, log_name
from read.compile_log_reading import payload_of, records_of, refusal, rows_of, the_file


def lines_of(log: LogBuilder) -> list[bytes]:
    return log.content().splitlines(keepends=True)


def ranked_log(rank: int, says: str = "of rank {}") -> LogBuilder:
    log = LogBuilder(rank).start(sites=[Site(f"/job/rank{rank}.py", 3, "f")])
    return log.graph(text=says.format(rank) + "\nin two lines").metrics()


def interleaved(prefix: str, *logs: LogBuilder) -> bytes:
    """Line by line in turn, as a launcher merges what its processes write."""
    turns = zip_longest(*map(lines_of, logs), fillvalue=b"")
    marked = (
        prefix.format(log.rank).encode() + line for turn in turns for log, line in zip(logs, turn, strict=True) if line
    )
    return b"".join(marked)


def graphs_by_rank(trace: Trace) -> dict[int, bytes]:
    return {row["rank"]: payload_of(trace, row) for row in records_of(trace, "dynamo_output_graph")}


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[rank{}]: ", "[default{}]:", "[default{}]: "])
def test_lines_of_interleaved_ranks_are_put_together_again(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "stderr.log").write_bytes(interleaved(prefix, *map(ranked_log, range(3))))

    trace = load(tmp_path, jobs=1)

    whole = {rank: f"of rank {rank}\nin two lines".encode() for rank in range(3)}
    assert graphs_by_rank(trace) == whole
    assert list(damaged_payloads(trace)) == []
    assert the_file(trace)["status"] == "read"
    assert sorted(row["rank"] for row in rows_of(trace, "compilations")) == [0, 1, 2]


def test_strings_of_ranks_that_share_a_stream_are_not_mixed(tmp_path: Path) -> None:
    """Each rank numbers its file names from 0."""
    (tmp_path / "stderr.log").write_bytes(interleaved("[rank{}]:", *map(ranked_log, range(3))))

    stacks = {row["rank"]: row["file"] for row in rows_of(load(tmp_path, jobs=1), "compile_stacks")}

    assert stacks == {rank: f"/job/rank{rank}.py" for rank in range(3)}


def test_a_prefix_tells_the_rank_where_the_records_do_not(tmp_path: Path) -> None:
    logs = [ranked_log(0), ranked_log(1)]
    for log in logs:
        log.chunks = [chunk.replace(f', "rank": {log.rank}'.encode(), b"") for chunk in log.chunks]
    (tmp_path / "stderr.log").write_bytes(interleaved("[rank{}]:", *logs))

    trace = load(tmp_path, jobs=1)

    assert set(graphs_by_rank(trace)) == {0, 1}
    assert sorted(row["rank"] for row in rows_of(trace, "compilations")) == [0, 1]


def test_every_rank_of_a_shared_stream_has_a_log(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_bytes(interleaved("[rank{}]:", *map(ranked_log, range(2))))

    assert sorted(row["rank"] for row in rows_of(load(tmp_path, jobs=1), "compile_logs")) == [0, 1]


def test_a_prefix_that_begins_later_is_noticed(tmp_path: Path) -> None:
    """The launcher wrote lines of its own first."""
    content = b"W1116 torchrun says hello\n" + interleaved("[rank{}]:", *map(ranked_log, range(2)))
    (tmp_path / "stderr.log").write_bytes(content)

    assert set(graphs_by_rank(load(tmp_path, jobs=1))) == {0, 1}


def test_a_packed_log_that_is_cut_gives_what_can_be_unpacked(tmp_path: Path) -> None:
    log = LogBuilder(0)
    for number in range(200):
        log.graph(text=f"graph {number} " * 40)
    packed = gzip.compress(log.content(), 0)
    (tmp_path / f"{log_name(0)}.gz").write_bytes(packed[: len(packed) // 2])

    trace = load(tmp_path, jobs=1)

    assert 80 < len(records_of(trace, "dynamo_output_graph")) < 120
    assert the_file(trace)["status"] == "damaged"
    assert "decompressed" in the_file(trace)["problem"]


def test_a_packed_file_with_nothing_in_it_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / f"{log_name(0)}.gz"
    path.write_bytes(gzip.compress(b""))

    error = refusal(path)

    assert error is not None
    assert error.hint
