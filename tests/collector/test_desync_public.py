"""rankscope.desync: the same bytes and, where asked for, the same text as torch's own tracker."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence

import pytest

import rankscope
from rankscope import desync
from rankscope.read.desync_text import DesyncText

STATES = {
    0: (5, "ALLREDUCE", False),
    1: (4, "ALLREDUCE", True),
    2: (5, "ALLGATHER", False),
    3: (4, "BROADCAST", False),
    4: (5, "ALLREDUCE", False),
    5: (5, "ALLREDUCE", True),
}
SNAPSHOT = (
    "\n\t - Snapshot of ranks' latest states:"
    "\n\t   #4 started ranks:"
    "\n\t     [3] started BROADCAST"
    "\n\t   #4 finished ranks:"
    "\n\t     [1] finished ALLREDUCE"
    "\n\t   #5 started ranks:"
    "\n\t     [0, 4] started ALLREDUCE"
    "\n\t     [2] started ALLGATHER"
    "\n\t   #5 finished ranks:"
    "\n\t     [5] finished ALLREDUCE"
)
LAGGING = (
    "\n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
    "\n\t   - [3] joined but didn't finish collective #4 (count from 1)"
    "\n\t     [1] finished collective #4, but didn't join collective #5 (count from 1)"
)


class DictStore(dict[str, bytes]):
    """A store that is down for keys that contain `broken`."""

    broken = "\0"

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        if self.broken in key:
            raise RuntimeError("Broken pipe")
        return self[key]

    def set(self, key: str, value: bytes) -> None:
        if self.broken in key:
            raise RuntimeError("Broken pipe")
        self[key] = value


def store_of(states: dict[int, tuple[int, str, bool]]) -> DictStore:
    store = DictStore()
    for rank, (seq, op, is_finished) in states.items():
        assert desync.write_state(store, desync.start_key("0", rank), seq, op)
        if is_finished or seq > 1:
            assert desync.write_state(store, desync.end_key("0", rank), seq if is_finished else seq - 1, op)
    return store


def test_it_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, rankscope; rankscope.desync.report({}); print({'torch', 'numpy', 'msgspec'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout == "set()\n"


def test_the_module_is_a_public_name() -> None:
    assert rankscope.desync is desync
    assert "desync" in rankscope.__all__
    assert all(hasattr(desync, name) for name in desync.__all__)


def test_a_value_is_eight_bytes_the_name_and_a_zero() -> None:
    store = DictStore()
    assert desync.write_state(store, "0_1_trace_start", 0x0102030405, "ALLREDUCE")
    assert store == {"0_1_trace_start": b"\x05\x04\x03\x02\x01\0\0\0ALLREDUCE\0"}
    assert desync.read_state(store, "0_1_trace_start") == (0x0102030405, "ALLREDUCE")


def test_a_store_that_is_down_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = DictStore({"k": b"?"})
    store.broken = "k"
    with caplog.at_level(logging.ERROR, "rankscope.desync"):
        assert not desync.write_state(store, "k", 7, "ALLREDUCE")
        assert desync.read_state(store, "k") is None
        store.broken = "\0"
        assert desync.read_state(store, "k") is None
    assert caplog.messages == [
        "Store is down while updating #7 with key k",
        "Store is down while getting key k",
        "Key k: its value has 1 bytes and no name of a collective",
    ]


def test_ranks_as_text() -> None:
    assert (desync.join_ranks([]), desync.join_ranks([0]), desync.join_ranks([0, 1])) == ("", "0", "0, 1")
    assert (desync.bracket_ranks([]), desync.bracket_ranks([0, 1])) == ("[]", "[0, 1]")


def test_each_piece_of_torchs_report() -> None:
    assert desync.missing([1, 3]) == (
        "\n\t - To our best knowledge, ranks [1, 3] are the lagging ranks that caused this timeout. "
        "They never joined any collectives"
    )
    assert desync.lagging(STATES) == LAGGING
    assert desync.lagging({0: (2, "A", False)}).endswith(
        "are:\n\t   - [0] joined but didn't finish collective #2 (count from 1)"
    )
    assert desync.lagging({0: (2, "A", True)}).endswith(
        "are:\n\t     [0] finished collective #2, but didn't join collective #3 (count from 1)"
    )
    assert desync.snapshot(STATES) == SNAPSHOT


def test_torchs_report_of_states_and_of_a_store() -> None:
    whole = "\n\t - [2] Timeout at collective: ALLGATHER, #5" + LAGGING + SNAPSHOT
    assert desync.report(STATES, own_rank=2, style="torch") == whole
    assert desync.report_from_store(store_of(STATES), "0", 2, 6) == whole
    short = "\n\t - [2] Timeout at collective: ALLGATHER, #5" + desync.missing([6, 7])
    assert desync.report(STATES, own_rank=2, size=8, style="torch") == short
    assert desync.report({**STATES, 6: None, 7: None}, own_rank=2, style="torch") == short
    assert desync.report_from_store(store_of(STATES), "0", 2, 8) == short
    assert desync.report({}, style="torch") == ""


def test_torch_compares_numbers_alone() -> None:
    """A send has the number of the collective before it: torch takes it for finished, rankscope does not."""
    store = store_of({0: (5, "ALLREDUCE", True), 1: (6, "ALLREDUCE", False)})
    desync.write_state(store, desync.start_key("0", 0), 5, "SEND")
    assert "[0] finished SEND" in desync.report_from_store(store, "0", 1, 2)
    assert "[0] started SEND" in desync.report_from_store(store, "0", 1, 2, style="rankscope")


def test_who_timed_out_has_to_be_in_a_collective() -> None:
    with pytest.raises(ValueError, match=r"Timeout rank \[9\] must have collective tracking item in c10::Store trace"):
        desync.report(STATES, own_rank=9, size=10, style="torch")
    with pytest.raises(
        ValueError, match=r"Timeout rank \[1\] last trace item must be kEventStart\. thisSeq = 4, col = "
    ):
        desync.report(STATES, own_rank=1, style="torch")


@pytest.mark.parametrize("broken", ["3_trace_start", "3_trace_end"])
def test_torchs_report_is_empty_where_the_store_is_down(broken: str) -> None:
    store = store_of(STATES)
    store.broken = broken
    assert desync.report_from_store(store, "0", 0, 6) == ""
    assert "Partial report" in desync.report_from_store(store, "0", 0, 6, style="rankscope")


def test_the_own_style_says_the_same_in_its_words() -> None:
    lines = desync.report(STATES, own_rank=2).splitlines()
    assert lines[1:6] == [
        "group 0 (6 ranks: 0, 1, 2, 3, 4, 5), collective state from the job's store",
        " - [2] Timeout at collective: ALLGATHER, #5",
        " - Lagging ranks:",
        "   - [3] joined but did not finish collective #4 (counted from 1)",
        "   - [1] finished collective #4 but did not join collective #5 (counted from 1)",
    ]
    assert desync.record(STATES)["lagging"] == {"seq": 4, "joined": [3], "finished": [1]}
    with pytest.raises(ValueError, match='style is "rankscope" or "torch"'):
        desync.report(STATES, style="other")  # type: ignore[arg-type]


def test_the_reader_takes_both_styles_alike() -> None:
    found = []
    for text in (desync.report(STATES, own_rank=2, style="torch"), desync.report(STATES, own_rank=2)):
        read = DesyncText(0)
        read.read([f"{line}\n".encode() for line in text.split("\n")])
        [report] = read.reports
        found.append(report.latest)
    assert found[0] == found[1]
    assert {rank: (each.seq, each.op, each.state == "finished") for rank, each in found[0].items()} == STATES
