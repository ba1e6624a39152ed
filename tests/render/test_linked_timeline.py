"""The linked trace in the format of Chrome: whole, exact, and drawn as viewers need it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from analyze.link.edge_traces import Observed
from analyze.link.edge_traces import trace_of as hand_made
from rankscope.analyze.link.links import recorded_links, transplanted_links
from rankscope.commands.linking import file_paths
from rankscope.model.tables import Table, Trace
from rankscope.pipeline import load
from rankscope.render.linked_timeline import FLOWS, write_linked_timeline
from rankscope.simulate.execution import PairOptions, write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=2, n_steps=4, n_layers=1, n_microbatches=1, ranks_per_host=1)
Event = dict[str, Any]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks on two hosts whose clocks differ."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(simulate_profile(SPEC), folder)
    return load(folder)


@pytest.fixture(scope="module")
def document(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return written(trace, tmp_path_factory.mktemp("timeline"))


def written(trace: Trace, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    n_events = write_linked_timeline(trace, str(path))
    with path.open() as file:
        document: dict[str, Any] = json.load(file, parse_float=Decimal)
    assert len(document["traceEvents"]) == n_events
    return document


def spans(document: dict[str, Any]) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def nanoseconds(microseconds: Decimal | int) -> int:
    exact = microseconds * 1000
    assert exact == int(exact)
    return int(exact)


def tracks(document: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Begin and end of the spans of each track, outer ones first."""
    found = defaultdict(list)
    for event in spans(document):
        start = nanoseconds(event["ts"])
        found[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    return {track: sorted(times, key=lambda span: (span[0], -span[1])) for track, times in found.items()}


def assert_nested(document: dict[str, Any]) -> None:
    for times in tracks(document).values():
        around: list[int] = []
        for start, end in times:
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def track_names(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    named = (event for event in document["traceEvents"] if event["name"] == "thread_name")
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def clock_offsets(trace: Trace) -> dict[int, int]:
    return {row["rank"]: row["offset_ns"] for row in trace.table("profile_clocks").rows()}


def test_every_linked_node_is_drawn_to_the_nanosecond_on_the_common_clock(
    trace: Trace, document: dict[str, Any]
) -> None:
    offsets = clock_offsets(trace)
    assert any(offsets.values())
    names = {(row["rank"], row["node_id"]): row["name"] for row in trace.table("et_nodes").rows()}
    expected = {
        (row["rank"], row["node_id"]): (
            names[row["rank"], row["node_id"]],
            row["start_ns"] - offsets[row["rank"]],
            row["duration_ns"],
            row["tid"],
        )
        for row in trace.table("et_links").rows()
        if row["how"] != "none"
    }
    base_ns = document["baseTimeNanoseconds"]
    drawn = {
        (event["pid"], event["args"]["node"]): (
            event["name"],
            base_ns + nanoseconds(event["ts"]),
            nanoseconds(event["dur"]),
            event["tid"],
        )
        for event in spans(document)
        if event["cat"] == "node"
    }
    assert drawn == expected


def test_every_kernel_is_drawn_on_its_stream(trace: Trace, document: dict[str, Any]) -> None:
    offsets, names = clock_offsets(trace), track_names(document)
    described = ("duration_ns", "name", "device", "stream")
    expected = sorted(
        (row["rank"], row["start_ns"] - offsets[row["rank"]], *(row[name] for name in described))
        for row in trace.table("kernels").rows()
    )
    base_ns = document["baseTimeNanoseconds"]
    drawn = []
    for event in spans(document):
        if event["cat"] != "node":
            device, stream = (int(part.split()[1]) for part in names[event["pid"], event["tid"]].split(", "))
            times = base_ns + nanoseconds(event["ts"]), nanoseconds(event["dur"])
            drawn.append((event["pid"], *times, event["name"], device, stream))
    assert sorted(drawn) == expected
    assert len(expected) > 100


def test_times_begin_at_zero_and_everything_has_a_place(document: dict[str, Any]) -> None:
    assert min(event["ts"] for event in spans(document)) == 0
    for event in spans(document):
        assert event["dur"] >= 0
        assert {"pid", "tid", "name", "cat", "args"} <= event.keys()
    names = track_names(document)
    assert tracks(document).keys() == names.keys()
    assert len(set(names.values())) < len(names)  # both ranks have the same streams
    processes = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1"}


def test_spans_of_a_track_nest(document: dict[str, Any]) -> None:
    assert_nested(document)


def test_arrows_come_in_pairs_and_hold_on_to_spans(trace: Trace, document: dict[str, Any]) -> None:
    begins = {(track, start) for track, times in tracks(document).items() for start, _ in times}
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            assert ((event["pid"], event["tid"]), nanoseconds(event["ts"])) in begins
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
    kinds: dict[str, int] = defaultdict(int)
    for pair in ends.values():
        assert pair["s"]["name"] == pair["f"]["name"]
        assert pair["f"]["bp"] == "e"
        kinds[pair["s"]["name"]] += 1
    listed = ", ".join(f"'{kind}'" for kind in FLOWS)
    counted = f"SELECT kind, count(*) FROM et_edges WHERE kind IN ({listed}) GROUP BY kind"
    assert kinds == dict(trace.sql(counted).rows())
    assert kinds["launch"] > 100
    assert kinds["collective"] > 0


def test_collectives_tie_the_ranks_on_one_clock(document: dict[str, Any]) -> None:
    """On clocks of their own the ranks are milliseconds apart."""
    arrows: dict[int, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "sf" and event["name"] == "collective":
            arrows[event["id"]].append(event)
    for first, second in arrows.values():
        assert first["pid"] != second["pid"]
        assert abs(first["ts"] - second["ts"]) < 2000


def test_packed_by_name_and_the_same_each_time(trace: Trace, tmp_path: Path) -> None:
    paths = [tmp_path / "one.json.gz", tmp_path / "two.json.gz"]
    for path in paths:
        write_linked_timeline(trace, str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert json.loads(gzip.decompress(paths[0].read_bytes()))["traceEvents"]


def test_it_is_not_taken_for_a_trace_of_a_profiler(tmp_path: Path) -> None:
    """It may lie in the folder of the traces that it was made of."""
    write_pairs(simulate_profile(SPEC), tmp_path)
    write_linked_timeline(load(tmp_path), str(tmp_path / "trace.json.gz"))
    status = {Path(row["path"]).name: row["status"] for row in load(tmp_path).table("files").rows()}
    assert status.pop("trace.json.gz") == "ignored"
    assert set(status.values()) == {"read"}


@pytest.mark.parametrize(
    "name",
    [
        'say "no"',
        "back\\slash",
        "</script><b>",
        "line\nbreak\t\x00\x1f",
        "ünï\u2028çødé 𝕏",
        "",
        "'; DROP TABLE ops; --",
    ],
)
def test_names_of_any_content_survive(name: str, tmp_path: Path) -> None:
    process = Observed()
    process.node(name, 0, 10)
    [event] = spans(written(hand_made(process), tmp_path))
    assert event["name"] == name


def test_what_ends_after_the_span_it_began_in_has_a_track_beside(tmp_path: Path) -> None:
    """As gloo's transfers, which outlast the calls that began them."""
    process = Observed()
    process.node("c10d::send", 10, 20)
    process.node("gloo:send", 15, 40)
    process.node("gloo:inner", 16, 30)
    process.node("c10d::recv_", 20, 50)
    document = written(hand_made(process), tmp_path)
    assert_nested(document)
    names = track_names(document)
    drawn = {event["name"]: names[event["pid"], event["tid"]] for event in spans(document)}
    assert len(set(drawn.values())) == 2
    assert drawn["c10d::send"] == drawn["c10d::recv_"]
    assert drawn["gloo:send"] == drawn["gloo:inner"] == f"{drawn['c10d::send']}, beside"


def test_a_staircase_of_spans_ends(tmp_path: Path) -> None:
    process = Observed()
    for number in range(200):
        process.node("step", number, number + 300)
    document = written(hand_made(process), tmp_path)
    assert len(spans(document)) == 200
    assert len(tracks(document)) == 64


def test_a_clock_that_drifts_is_put_right(tmp_path: Path) -> None:
    process = Observed()
    for number in range(3):
        process.node("outer", 1_000_000 * number, 1_000_000 * number + 1001)
        process.node("inner", 1_000_000 * number + 1, 1_000_000 * number + 1001)
    trace = hand_made(process)
    first = min(row["start_ns"] for row in trace.table("et_links").rows() if row["how"] != "none")
    clock = {**process.keys, "offset_ns": 500, "drift_ppb": 1000.0, "at_ns": first}
    trace.tables["profile_clocks"] = Table.from_rows("profile_clocks", [clock])
    document = written(trace, tmp_path)
    assert_nested(document)
    assert document["baseTimeNanoseconds"] == first - 500
    starts = [nanoseconds(event["ts"]) for event in spans(document) if event["name"] == "outer"]
    assert starts == [0, 10**9 - 1000, 2 * 10**9 - 2000]


def test_nothing_linked_gives_a_timeline_without_spans(tmp_path: Path) -> None:
    process = Observed()
    process.node("aten::mm", 0, 10, is_seen=False)
    document = written(hand_made(process), tmp_path)
    assert (document["traceEvents"], document["baseTimeNanoseconds"]) == ([], 0)


def test_durations_of_clean_steps_are_told_but_not_drawn(tmp_path: Path) -> None:
    """They do not fit between beginnings that were recorded with the observer."""
    write_pairs(simulate_profile(SPEC), tmp_path)
    clean = tmp_path / "kineto_clean_0.json"
    events = json.loads((tmp_path / "kineto_trace_0.json").read_text())
    for event in events["traceEvents"]:
        if "Record function id" in event.get("args", {}):
            event["args"]["Record function id"] = 0
            if event["cat"] == "cpu_op" and event["name"] != "aten::mm":  # what calls it is then shorter than it
                event["dur"] /= 10
    clean.write_text(json.dumps(events))
    trace = load(tmp_path)
    recorded = {(row["file_id"], row["node_id"]): row["duration_ns"] for row in recorded_links(trace).rows()}
    [clean_id] = [file_id for file_id, path in file_paths(trace).items() if path == str(clean)]
    trace.tables["et_links"] = transplanted_links(trace, {clean_id})
    document = written(trace, tmp_path)
    assert_nested(document)
    n_moved = 0
    for row in trace.table("et_links").rows():
        if row["duration_from"] == clean_id:
            n_moved += 1
            [event] = [e for e in spans(document) if e["pid"] == 0 and e["args"].get("node") == row["node_id"]]
            assert nanoseconds(event["dur"]) == recorded[row["file_id"], row["node_id"]]
            assert event["args"]["us without the observer"] * 1000 == row["duration_ns"]
    assert n_moved > 100


def test_processes_of_one_file_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    """An export of nsys holds several, and numbers the kernels of each from 0."""
    processes = [Observed(0), Observed(1)]
    for process in processes:
        process.node("aten::mm", 0, 10)
    trace = hand_made(*processes)
    rows = [
        {"file_id": 0, "rank": rank, "kernel_id": 0, "name": f"kernel of {rank}", "start_ns": 1, "duration_ns": 1}
        for rank in (0, 1)
    ]
    trace.tables["kernels"] = Table.from_rows("kernels", rows)
    links = [
        row | {"profile_id": 0} for row in trace.table("et_links").rows() if row["how"] == "id" and row["rank"] == 0
    ]
    trace.tables["et_links"] = Table.from_rows("et_links", links)
    trace.tables["et_edges"] = Table.from_rows("et_edges", [])
    drawn = [event["name"] for event in spans(written(trace, tmp_path)) if event["cat"] != "node"]
    assert drawn == ["kernel of 0"]


def test_a_layout_without_numbers_is_drawn_as_well(tmp_path: Path) -> None:
    write_pairs(simulate_profile(SPEC), tmp_path, PairOptions(schema="1.0.1", with_record_ids=False))
    document = written(load(tmp_path), tmp_path)
    assert {event["args"]["linked by"] for event in spans(document) if event["cat"] == "node"} == {"alignment"}
