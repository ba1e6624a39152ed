"""C407 and C408: keys compared by their components, and graphs that no cache takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyze.compile.building import SECOND, START, Made, compiled, findings, log, looked_up, payload_log, trace_of
from rankscope.analyze.compile.cache_keys import differing
from rankscope.model.tables import Trace

GRAPH = "[g1] gm: def forward(self, x): return x + 1"
COMPONENTS = [GRAPH, "[i1] example_inputs[0]: shape=[8]", "[t] inductor_config[dce]: True", "[h] torch_version: 2.13"]


def two_runs(folder: Path, changed: dict[str, str], key: str = "new") -> Trace:
    """The look-up of `step` in two runs; `changed` are components of the second: old text -> new text."""
    made: list[Made] = []
    for run in range(2):
        texts = [changed.get(text, text) if run else text for text in COMPONENTS]
        made += payload_log(folder / f"{run}.log", run, run, [{"components": texts}])
        later: dict[str, Any] = {
            "file_id": run,
            "record": 0,
            "time_ns": START + run * SECOND,
            "taken_ns": (run + 1) * SECOND,
        }
        made += [compiled("0/0", file_id=run), looked_up("0/0", "miss", key if run else "old", **later)]
    return trace_of(*made)


def test_a_setting_that_differs_from_the_run_before_is_named(tmp_path: Path) -> None:
    trace = two_runs(tmp_path, {"[t] inductor_config[dce]: True": "[f] inductor_config[dce]: False"})
    [explained, *summaries] = sorted(findings(trace, "C407"), key=lambda finding: finding.severity == "info")
    assert explained.severity == "warning"
    assert "because inductor_config[dce] differs from run 0 (2.0 s)" in explained.title
    assert explained.evidence.comparison
    assert explained.evidence.comparison.keys == ("inductor_config[dce]",)
    assert [side.cells for side in explained.evidence.comparison.sides] == [("True",), ("False",)]
    assert [finding.severity for finding in summaries] == ["info", "info"]


def test_hashes_count_and_not_the_texts_beside_them(tmp_path: Path) -> None:
    trace = two_runs(tmp_path, {"[h] torch_version: 2.13": "[h] torch_version: another text"})
    assert {finding.severity for finding in findings(trace, "C407")} == {"info"}


def test_another_graph_is_no_fault(tmp_path: Path) -> None:
    trace = two_runs(tmp_path, {GRAPH: "[g2] gm: def forward(self, x): return x + 2"})
    found = findings(trace, "C407")
    assert {finding.severity for finding in found} == {"info"}
    assert any("changed since then in step [0/0]: the graph" in note for note in found[-1].evidence.notes)


def test_a_key_that_an_earlier_run_had_compiled_means_that_the_cache_was_not_kept(tmp_path: Path) -> None:
    [lost, *_] = sorted(
        findings(two_runs(tmp_path, {}, key="old"), "C407"), key=lambda finding: finding.severity == "info"
    )
    assert lost.severity == "warning"
    assert "the cache was not kept" in lost.title
    assert lost.evidence.cost_ns == 2 * SECOND


def test_of_several_earlier_look_ups_the_most_similar_is_compared(tmp_path: Path) -> None:
    fewer, more = ["[f] inductor_config[dce]: False"], ["[x] inductor_config[dce]: None", "[i2] example_inputs[0]: []"]
    made: list[Made] = []
    for run, changed in enumerate((COMPONENTS, [GRAPH, *more], [GRAPH, *fewer, *COMPONENTS[1:2], COMPONENTS[3]])):
        made += payload_log(tmp_path / f"{run}.log", run, run, [{"components": changed}])
        later: dict[str, Any] = {"file_id": run, "record": 0, "time_ns": START + run * SECOND}
        made += [compiled("0/0", file_id=run), looked_up("0/0", "miss", f"key {run}", **later)]
    titles = [finding.title for finding in findings(trace_of(*made), "C407") if finding.evidence.comparison]
    assert any("because inductor_config[dce] differs from run 0" in title for title in titles)


def test_ranks_whose_keys_differ_are_told_as_information(tmp_path: Path) -> None:
    made: list[Made] = []
    for rank in range(2):
        texts = [GRAPH, f"[d{rank}] example_inputs[0]: cuda:{rank}"]
        [(_, place), *records] = payload_log(tmp_path / f"{rank}.log", rank, 0, [{"components": texts}])
        made += [("compile_logs", place | {"rank": rank}), *records, compiled("0/0", rank=rank)]
        made.append(looked_up("0/0", "miss", f"key {rank}", rank=rank, record=0, time_ns=START + rank))
    [explained] = [finding for finding in findings(trace_of(*made), "C407") if finding.evidence.comparison]
    assert explained.severity == "info"
    assert explained.ranks == (1,)
    assert explained.evidence.comparison
    assert [side.label for side in explained.evidence.comparison.sides] == ["rank 0", "rank 1"]


def test_a_cold_cache_is_one_finding_with_what_a_warm_one_would_save() -> None:
    other = looked_up("1/0", "miss", "b", taken_ns=4 * SECOND)
    untold = looked_up("0/0", "miss", "c", cache="aotautograd", taken_ns=-1)
    trace = trace_of(compiled("0/0"), compiled("1/0"), looked_up("0/0", "miss", "a"), other, untold)
    [finding] = findings(trace, "C407")
    assert finding.title == "the compile caches were cold: all 3 lookups missed; compiling what was missing took 5.0 s"
    assert finding.severity == "info"
    assert "TORCHINDUCTOR_CACHE_DIR" in finding.help
    assert any("the AOTAutograd cache logs nothing about its keys" in note for note in finding.evidence.notes)


def test_hits_alone_are_nothing_to_tell() -> None:
    assert findings(trace_of(compiled("0/0"), looked_up("0/0", "hit", "a")), "C407") == []


def test_hits_and_misses_are_counted() -> None:
    trace = trace_of(compiled("0/0"), looked_up("0/0", "hit", "a"), looked_up("0/0", "miss", "b"))
    [finding] = findings(trace, "C407")
    assert finding.title.startswith("1 of 2 compile cache lookups missed")


def test_long_values_are_shown_around_their_difference() -> None:
    same = "TensorMetadata(dtype=torch.float32, layout=torch.strided, " * 3
    old, new = differing(f"{same}shape=[32]{same}", f"{same}shape=[48]{same}")
    assert "shape=[32]" in old
    assert "shape=[48]" in new
    assert max(len(old), len(new)) < 90
    assert differing("True", "False") == ("True", "False")


APPLY = (
    "Unsupported call_function target autograd_function_apply. \n Function module: torch.ops.higher_order, \nFunction"
)
FLEX = "Unsupported call_function target flex_attention. \n Function module: torch.ops.higher_order, \nFunction name: f"


def bypassed(compile_id: str, reason: str, rank: int = 0) -> Made:
    return looked_up(compile_id, "bypass", "", rank=rank, reason=reason, cache="aotautograd")


def test_a_bypass_is_told_in_plain_words_with_its_function() -> None:
    [finding] = findings(trace_of(compiled("0/0", seconds=3), bypassed("0/0", APPLY)), "C408")
    assert (
        finding.title
        == "step cannot be stored in the AOTAutograd cache: the graph contains a custom torch.autograd.Function"
    )
    assert finding.severity == "info"
    assert finding.evidence.cost_ns == 3 * SECOND
    assert "custom_op" in finding.help


def test_a_dear_bypass_is_a_warning_and_ranks_are_one_finding() -> None:
    made = [row for rank in range(2) for row in (compiled("0/0", rank=rank, seconds=20), bypassed("0/0", FLEX, rank))]
    [finding] = findings(trace_of(*made), "C408")
    assert (finding.severity, finding.ranks) == ("warning", (0, 1))
    assert "calls flex_attention, which the cache does not support" in finding.title


def test_ids_given_again_after_a_reset_are_told_apart() -> None:
    made = [
        compiled("0/0", record=10, function="first", line=1),
        compiled("0/0", record=20, function="second", line=2),
        looked_up("0/0", "bypass", "", record=15, reason=FLEX, cache="aotautograd"),
    ]
    [finding] = findings(trace_of(log(0), *made), "C408")
    assert finding.title.startswith("second cannot")
    assert finding.evidence.cost_ns == SECOND


def one_process(folder: Path, changed: dict[str, str], key: str = "new", cache: str = "fx_graph") -> Trace:
    """Two versions of `step` that one process compiled; `changed` are components of the second."""
    texts = [{"components": COMPONENTS}, {"components": [changed.get(text, text) for text in COMPONENTS]}]
    made = payload_log(folder / "0.log", 0, 0, texts)
    for number, compile_id in enumerate(("0/0", "0/1")):
        place: dict[str, Any] = {"record": number, "time_ns": START + number * SECOND, "cache": cache}
        made += [compiled(compile_id), looked_up(compile_id, "miss", key if number else "old", **place)]
    return trace_of(*made)


def test_a_miss_of_a_function_that_the_process_had_compiled_names_what_changed(tmp_path: Path) -> None:
    trace = one_process(
        tmp_path, {GRAPH: "[g2] gm: def forward(self, s, x)", COMPONENTS[1]: "[s] example_inputs[0]: s77"}
    )
    [finding] = findings(trace, "C407")
    assert finding.severity == "info"
    assert finding.title.startswith(
        "2 of 2 compile cache lookups missed, 1 compilation because the graph, example_inputs changed within "
        "this process"
    )
    assert finding.evidence.comparison
    assert finding.evidence.comparison.keys == ("step [0/1]: the graph", "step [0/1]: example_inputs[0]")
    assert [side.cells[1] for side in finding.evidence.comparison.sides] == ["shape=[8]", "s77"]


@pytest.mark.parametrize("cache", ["fx_graph", "aotautograd"])
def test_a_setting_that_the_process_changed_between_two_versions_is_named(tmp_path: Path, cache: str) -> None:
    trace = one_process(tmp_path, {COMPONENTS[2]: "[f] inductor_config[dce]: False"}, cache=cache)
    [explained, summary] = findings(trace, "C407")
    assert "because inductor_config[dce] differs from what this process compiled before" in explained.title
    assert explained.evidence.comparison
    assert [side.label for side in explained.evidence.comparison.sides] == ["[0/0]", "[0/1]"]
    assert "cold" not in summary.title
    assert not any("logs nothing about its keys" in note for note in summary.evidence.notes)


def test_a_key_that_the_process_itself_had_compiled_means_that_the_cache_was_not_kept(tmp_path: Path) -> None:
    [lost, _] = findings(one_process(tmp_path, {}, key="old"), "C407")
    assert (lost.severity, lost.certainty) == ("warning", "certain")
    assert "although the same process had already compiled it: the cache was not kept" in lost.title


def test_versions_of_different_functions_are_not_compared(tmp_path: Path) -> None:
    made = payload_log(tmp_path / "0.log", 0, 0, [{"components": COMPONENTS}, {"components": [GRAPH]}])
    for number, name in enumerate(("first", "second")):
        made += [compiled(f"{number}/0", function=name, line=number)]
        made += [looked_up(f"{number}/0", "miss", name, record=number, time_ns=START + number)]
    [finding] = findings(trace_of(*made), "C407")
    assert finding.title.startswith("the compile caches were cold: all 2 lookups missed")


def test_an_attempt_that_was_given_up_is_no_earlier_version(tmp_path: Path) -> None:
    made = payload_log(tmp_path / "0.log", 0, 0, [{"components": COMPONENTS}, {"components": [GRAPH]}])
    made.append(compiled("0/0"))
    made += [looked_up("0/0", "miss", str(n), record=n, attempt=n, time_ns=START + n) for n in range(2)]
    [finding] = findings(trace_of(*made), "C407")
    assert "cold" in finding.title
