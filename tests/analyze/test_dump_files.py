"""Which files prove that a rank was alive when the job hung, and which say that its dump is cut."""

from __future__ import annotations

import pytest

from analyze.building import Setting, job, root_cause
from rankscope.analyze.hangs.view import ranks_alive, ranks_cut
from rankscope.model.tables import Table, Trace


def capture(*files: tuple[int, str, str]) -> Trace:
    rows = [{"rank": rank, "source": source, "status": status} for rank, source, status in files]
    return Trace(("traces",), {"files": Table.from_rows("files", rows)})


def test_what_is_written_while_the_job_trains_proves_nothing_about_its_end() -> None:
    trace = capture((0, "flight_recorder", "damaged"), (1, "metrics", "read"), (2, "kineto", "read"))
    assert ranks_alive(trace) == {0}


@pytest.mark.parametrize("source", ["thread_stacks", "desync", "flight_recorder"])
def test_what_is_written_when_it_hangs_does(source: str) -> None:
    assert ranks_alive(capture((3, source, "read"))) == {3}
    assert ranks_alive(capture((3, source, "ignored"))) == frozenset()


def test_a_dump_is_cut_unless_another_one_of_the_rank_is_whole() -> None:
    cut, whole = (0, "flight_recorder", "damaged"), (0, "flight_recorder", "read")
    assert ranks_cut(capture(cut)) == {0}
    assert ranks_cut(capture(cut, whole)) == frozenset()
    assert ranks_cut(capture(cut, (0, "metrics", "read"))) == {0}


@pytest.mark.parametrize("source", ["metrics", "thread_stacks", "kineto"])
def test_a_damaged_file_of_another_kind_does_not_cut_the_dump(source: str) -> None:
    assert ranks_cut(capture((0, "flight_recorder", "read"), (0, source, "damaged"))) == frozenset()


def test_the_rank_that_left_only_metrics_is_the_one_that_was_lost() -> None:
    """Its metrics must not make it look alive, and so another one guilty."""
    call = "dp:1 all_reduce"
    trace = job({0: [call], 1: [call]}, Setting(config={"1": [[0, 1, 2, 3]]}))
    files = [*trace.table("files").rows(), {"file_id": 8, "rank": 2, "source": "metrics", "status": "read"}]
    files.append({"file_id": 9, "rank": 3, "source": "flight_recorder", "status": "damaged"})
    trace.tables["files"] = Table.from_rows("files", files)
    assert root_cause(trace).ranks == (2,)
