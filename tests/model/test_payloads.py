"""Payloads of compile logs, read back from where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.model.payloads import MappedLog, damaged_payloads, mapped_log, payloads, untabbed
from rankscope.pipeline import load
from rankscope.simulate.compile_log import LogBuilder, ids_of, log_name


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (b"", b""),
        (b"\t\n", b""),
        (b"\tone\n", b"one"),
        (b"\tone", b"one"),
        (b"\tone\n\ttwo\n", b"one\ntwo"),
        (b"\tone\n\t\n\ttwo\n\t\n", b"one\n\ntwo\n"),
        (b"\t\tindented\n\t\tboth\n", b"\tindented\n\tboth"),
        (b"\tone\r\n\ttwo\r\n", b"one\r\ntwo\r"),
        (b"\tone\n\n\n\ttwo\n\n", b"one\ntwo"),
    ],
)
def test_tabs_are_taken_off_line_by_line(raw: bytes, payload: bytes) -> None:
    assert untabbed(raw) == payload


def test_payloads_are_found_by_kind_and_name_in_the_order_of_the_files(tmp_path: Path) -> None:
    for rank in range(2):
        log = LogBuilder(rank).artifact("first", f"a{rank}").artifact("second", f"b{rank}").graph(text=f"c{rank}")
        log.record("artifact", {"name": "first"}, None, **ids_of("0/0")).write(tmp_path)
    trace = load(tmp_path, jobs=1)

    assert [payload for _, payload in payloads(trace, "artifact", "first")] == [b"a0", b"a1"]
    assert [payload for _, payload in payloads(trace, "artifact")] == [b"a0", b"b0", b"a1", b"b1"]
    assert [(row["rank"], payload) for row, payload in payloads(trace, "dynamo_output_graph")] == [
        (0, b"c0"),
        (1, b"c1"),
    ]
    assert list(payloads(trace, "no_such_kind")) == []


def test_a_header_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    LogBuilder(0).record("link", {"name": "docs", "url": "https://example.org"}).write(tmp_path)
    trace = load(tmp_path, jobs=1)

    [row] = trace.table("compile_records").rows()

    header = mapped_log(trace, row["file_id"]).header(row)
    assert header == b'{"link": {"name": "docs", "url": "https://example.org"}, "rank": 0}'


def test_one_mapping_serves_all_who_ask(tmp_path: Path) -> None:
    LogBuilder(0).start().write(tmp_path)
    trace = load(tmp_path, jobs=1)

    assert mapped_log(trace, 0) is mapped_log(trace, 0)


def test_pages_that_were_given_back_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\tpayload\n" * 10_000)
    log = MappedLog(str(path))
    row = {"payload_start": 9 * 5000, "n_payload_bytes": 18}

    before = log.payload(row)
    log.give_back()

    assert before == log.payload(row) == b"payload\npayload"


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    log = MappedLog(str(path))

    log.give_back()

    assert log.payload({"payload_start": 0, "n_payload_bytes": 0}) == b""


def test_damaged_payloads_are_those_whose_checksum_is_wrong(tmp_path: Path) -> None:
    log = LogBuilder(0).graph(text="one").graph(text="two").artifact("none", "").record("export", {}, "three")
    log.record("aot_joint_graph", {}, "four", has_payload="0" * 32)
    log.chunks = [chunk.replace(b"\ttwo", b"\tTWO") for chunk in log.chunks]
    log.write(tmp_path)

    assert [row["record"] for row in damaged_payloads(load(tmp_path, jobs=1))] == [1, 4]


def test_converted_line_ends_are_no_damage(tmp_path: Path) -> None:
    log = LogBuilder(0).graph(text="one\ntwo\n").graph(text="three")
    log.write(tmp_path)
    path = tmp_path / log_name(0)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert list(damaged_payloads(load(tmp_path, jobs=1))) == []
