"""Which lines of graphs and generated code belong together, and the page that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.render.compile_tree.outputs import TreeOptions, plan_outputs, plan_ranks, records_of
from rankscope.render.compile_tree.provenance import graphs_of, readable_stack_traces, write_provenance
from rankscope.render.compile_tree.provenance_lines import Graph, line_mappings
from rankscope.simulate.compile_log import LogBuilder, ids_of
from read.compile_log_reading import load_logs

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
MAPPINGS = "inductor_provenance_tracking_node_mappings"
PRE = """\
class GraphModule:
    def forward(self, x):
        y: "f32[8]" = torch.relu(x)
        z: "f32[8]" = y.sin()"""
POST = """\
class GraphModule:
    def forward(self, x_1):
        relu: "f32[8]" = torch.ops.aten.relu(x_1)
        # a comment
        sin: "f32[8]" = torch.ops.aten.sin(relu)"""
CODE = """

# AOT ID: ['0_forward']
cpp_fused_0 = async_compile.cpp()
def call(args):
    # [Provenance debug handles] cpp_fused_0:1
    del x
    cpp_fused_0(x, buf0)
    # [Provenance debug handles] cpp_fused_0:12
    cpp_fused_0(buf0, buf1)
    cpp_fused_01(buf1)
"""
FORWARD = {
    "preToPost": {"y": ["relu"], "z": ["sin"]},
    "postToPre": {"relu": ["y"], "sin": ["z"]},
    "cppCodeToPost": {"cpp_fused_0:1": ["relu"], "cpp_fused_0:12": ["sin"]},
    "postToCppCode": {"relu": ["cpp_fused_0:1"], "sin": ["cpp_fused_0:12"]},
    "version": 2.0,
}
BACKWARD_POST = """\
class GraphModule:
    def forward(self, tangents_1: "f32[8]"):
        neg: "f32[8]" = torch.ops.aten.neg(tangents_1)"""
BACKWARD_CODE = "# AOT ID: ['0_backward']\ndef call(args):\n    extern_kernels.neg(tangents_1)\n"


def logged(log: LogBuilder, post: str, code: str, mapping: Any, compile_id: str = "0/0") -> LogBuilder:
    """A graph as torch 2.13 logs it, from the passes to the code."""
    log.artifact("inductor_post_grad_graph", post, compile_id)
    log.record("inductor_output_code", {"filename": "/cache/abc.py"}, code, **ids_of(compile_id))
    return log.artifact(MAPPINGS, mapping, compile_id)


def training_step() -> LogBuilder:
    log = LogBuilder().start("0/0").artifact("before_pre_grad_graph", PRE, "0/0")
    logged(log, POST, CODE, FORWARD).metrics("0/0")
    return logged(log, BACKWARD_POST, BACKWARD_CODE, {"version": 2.0})


def graphs(trace: Trace, label: str = "[0/0]") -> list[Graph]:
    outputs = plan_outputs(trace, records_of(trace, [0]), TreeOptions())
    return graphs_of(trace, [output for output in outputs if output.label == label])


def pages(trace: Trace, folder: Path) -> dict[str, str]:
    [tree] = plan_ranks(trace, TreeOptions(provenance=True))
    names = write_provenance(trace, tree, str(folder))
    return {name: (folder / name).read_text("utf-8") for name in names}


def mappings_in(page: str) -> list[dict[str, dict[str, list[int]]]]:
    """All data blocks, the way scripts find them."""
    found = re.findall(r'<script id="lineMappings[-\d]*" type="application/json">(.*?)</script>', page, re.DOTALL)
    return [json.loads(block) for block in found]


def test_names_become_lines_of_what_is_shown(tmp_path: Path) -> None:
    forward = graphs(load_logs(tmp_path, training_step()))[0]
    assert forward.lines == {
        "preToPost": {3: [3], 4: [5]},
        "postToPre": {3: [3], 5: [4]},
        "pyCodeToPost": {6: [3], 8: [5]},
        "postToPyCode": {3: [6], 5: [8]},
        "cppCodeToPost": {},
        "postToCppCode": {},
    }


def test_tlparse_defect_5_forward_and_backward_have_their_own_mapping(tmp_path: Path) -> None:
    found = graphs(load_logs(tmp_path, training_step()))
    assert [(graph.title, graph.post, graph.python) for graph in found] == [
        ("Forward (1 of 2)", POST, CODE),
        ("Backward (2 of 2)", BACKWARD_POST, BACKWARD_CODE),
    ]
    assert [graph.pre for graph in found] == [PRE, PRE]
    assert not any(found[1].lines.values())


def test_a_backward_graph_is_shown_beside_the_graph_that_its_mapping_speaks_of(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0")
    for part, post in (("a", "relu"), ("b", "sin")):
        log.artifact("before_pre_grad_graph", f"{part}: int = 1", "0/0")
        logged(log, f"{post}: int = 2", "def call(args):\n    pass", {"preToPost": {part: [post]}})
    for part in "ba":
        logged(log, "g: int = tangents_1", "def call(args):\n    pass", {"preToPost": {part: ["g"]}})
    found = graphs(load_logs(tmp_path, log))
    assert [graph.pre[0] for graph in found] == ["a", "b", "b", "a"]
    assert [graph.lines["preToPost"] for graph in found] == [{1: [1]}] * 4


def test_a_page_per_compilation_also_where_there_is_nothing_to_show(tmp_path: Path) -> None:
    made = pages(load_logs(tmp_path, training_step().start("1/0")), tmp_path)
    assert sorted(made) == ["provenance_tracking_-_0_0_0.html", "provenance_tracking_-_1_0_0.html"]
    assert mappings_in(made["provenance_tracking_-_1_0_0.html"]) == [{}]
    assert "INDUCTOR_PROVENANCE=1" in made["provenance_tracking_-_1_0_0.html"]


def test_the_page_holds_every_graph_and_says_which_has_no_mapping(tmp_path: Path) -> None:
    page = pages(load_logs(tmp_path, training_step()), tmp_path)["provenance_tracking_-_0_0_0.html"]
    forward, backward = mappings_in(page)
    assert forward["pyCodeToPost"] == {"6": [3], "8": [5]}
    assert not any(backward.values())
    assert page.count("no mapping for this graph") == 1
    assert '<span class="line" data-n="3" tabindex="0" role="button">        y: &quot;f32[8]&quot;' in page


def test_nothing_of_a_log_runs_in_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    log = LogBuilder().start("0/0").artifact("before_pre_grad_graph", f"{evil}: int = 1", "0/0")
    logged(log, f"{evil}: int = 1", f"def call(args):\n    {evil}()", {"cppCodeToPost": {evil: [evil]}, evil: {}})
    page = pages(load_logs(tmp_path, log), tmp_path)["provenance_tracking_-_0_0_0.html"]
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page


def test_mul_1_is_not_found_in_mul_10() -> None:
    code = "def call(args):\n    mul_10(x)\n    mul_1(x)\n    call_mul_1(x)"
    nodes = {"cppCodeToPost": {"mul_1": ["n"]}, "postToCppCode": {"n": ["mul_1"]}}
    assert line_mappings(Graph(post="n = 1", python=code, nodes=nodes))["postToPyCode"] == {1: [3, 4]}


def test_kernels_with_several_colons_keep_all_but_the_handle() -> None:
    code = "def call(args):\n    # torch.ops.lib::op:7\n    other()\n    torch.ops.lib::op(x)"
    nodes = {"cppCodeToPost": {"torch.ops.lib::op:7": ["n"]}}
    assert line_mappings(Graph(post="n = 1", python=code, nodes=nodes))["pyCodeToPost"] == {4: [1]}


WRAPPER = """

void call_k_0() {}
void Model::run_impl(x) {
    // handles: k_0:3
    int64_t k_0_xnumel = 8;
    call_k_0(x);
}"""


def test_the_wrapper_of_an_aot_compilation_is_searched_from_its_run_on() -> None:
    nodes = {"cppCodeToPost": {"k_0:3": ["n"]}, "postToCppCode": {"n": ["k_0:3"]}}
    lines = line_mappings(Graph(post="n = 1", cpp=WRAPPER, nodes=nodes))
    assert (lines["cppCodeToPost"], lines["postToCppCode"]) == ({5: [1]}, {1: [5]})


def test_two_kernels_on_a_line_are_told_together() -> None:
    nodes = {"cppCodeToPost": {"k_a": ["m"], "k_b": ["n"]}}
    lines = line_mappings(Graph(post="m = 1\nn = 2", python="def call(args):\n    k_a(k_b(x))", nodes=nodes))
    assert lines["pyCodeToPost"] == {2: [1, 2]}


def test_logs_with_the_halves_of_a_mapping_alone_are_understood(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0").artifact("before_pre_grad_graph", PRE, "0/0")
    log.artifact("after_post_grad_graph", POST, "0/0")
    made_of = [{"name": "mm", "from_node": [{"name": "y", "from_node": []}]}, {"name": "", "from_node": []}]
    log.artifact("inductor_post_to_pre_grad_nodes", {"relu": made_of}, "0/0")
    log.record("inductor_output_code", {}, CODE, **ids_of("0/0"))
    log.artifact("inductor_triton_kernel_to_post_grad_nodes", {"cpp_fused_0": ["relu"]}, "0/0")
    [graph] = graphs(load_logs(tmp_path, log))
    assert (graph.lines["postToPre"], graph.lines["preToPost"]) == ({3: [3]}, {3: [3]})
    assert graph.lines["pyCodeToPost"] == {4: [3], 6: [3], 7: [3], 8: [3]}


@pytest.mark.parametrize("mapping", ["", "{", "[]", '{"preToPost": 3}', '{"preToPost": {"y": "relu"}}', "[" * 100_000])
def test_mappings_that_are_none_leave_the_graphs(tmp_path: Path, mapping: str) -> None:
    log = LogBuilder().start("0/0").artifact("before_pre_grad_graph", PRE, "0/0")
    log.artifact("inductor_post_grad_graph", POST, "0/0").artifact(MAPPINGS, mapping, "0/0")
    [graph] = graphs(load_logs(tmp_path, log))
    assert graph.post == POST
    assert not any(graph.lines.values())


def test_stack_traces_have_real_lines_and_are_escaped() -> None:
    payload = json.dumps({"k<0>:1": ['  File "a.py", line 4\n    x < y\\n', 3], "k_1": []})
    page = readable_stack_traces(payload.encode()).decode()
    assert "<h3>k&lt;0&gt;:1</h3>\n<pre>  File &quot;a.py&quot;, line 4\n    x &lt; y</pre>" in page


@pytest.mark.parametrize("payload", [b"", b"[]", b"\xff", b"3"])
def test_stack_traces_that_are_no_json_give_a_page_that_says_so(payload: bytes) -> None:
    assert b"names no kernel" in readable_stack_traces(payload)


# Line -> lines, as tlparse tells them.
SAMPLE_LINES = {
    "inductor_provenance_jit_log.txt": (
        "provenance_tracking_-_0_0_0.html",
        {
            "preToPost": "11:4,5 14:8 17:11 20:14 23:17 26:20,21,22,23,24",
            "postToPre": "4:11 5:11 8:14 11:17 14:20 17:23 20:26 21:26 22:26 23:26 24:26",
            "pyCodeToPost": "132:5,17,14 138:11,8,14 142:5,17,14 147:24,20,23,22,21",
            "postToPyCode": ("5:132,142 8:138 11:138 14:138,132,142 17:132,142 20:147 21:147 22:147 23:147 24:147"),
            "cppCodeToPost": "",
            "postToCppCode": "",
        },
    ),
    "inductor_provenance_aot_cuda_log.txt": (
        "provenance_tracking_-_-_-_-.html",
        {
            "preToPost": "8:11,14,15 11:18 14:21 17:24 20:27,28 23:31,32,33,34,35",
            "postToPre": "11:8 14:8 15:8 18:11 21:14 24:17 27:20 28:20 31:23 32:23 33:23 34:23 35:23",
            "pyCodeToPost": "",
            "postToPyCode": "",
            "cppCodeToPost": "1060:14,27,24 1064:21,18,15 1071:24 1079:14,27,24 1084:35,31,28,34,33,32",
            "postToCppCode": (
                "14:1060,1079 15:1064 18:1064 21:1064 24:1071,1060,1079 27:1060,1079 "
                "28:1084 31:1084 32:1084 33:1084 34:1084 35:1084"
            ),
        },
    ),
}


def told(lines: dict[str, list[int]]) -> str:
    ordered = sorted(lines.items(), key=lambda item: int(item[0]))
    return " ".join(f"{line}:{','.join(map(str, others))}" for line, others in ordered)


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not beside the repository")
@pytest.mark.parametrize("name", SAMPLE_LINES)
def test_lines_of_the_samples_are_those_that_tlparse_gives(tmp_path: Path, name: str) -> None:
    page, expected = SAMPLE_LINES[name]
    [lines] = mappings_in(pages(load(SAMPLES / name, jobs=1), tmp_path)[page])
    assert {key: told(table) for key, table in lines.items()} == expected


def test_ranks_that_share_a_stream_have_pages_of_their_own_compilations(tmp_path: Path) -> None:
    one, other = training_step(), LogBuilder()
    logged(other.start("7/0"), POST, CODE, FORWARD, "7/0").metrics("7/0")
    streams = ((0, one.content()), (1, other.content()))
    lines = [b"[rank%d]:%b" % (rank, line) for rank, content in streams for line in content.splitlines(keepends=True)]
    (tmp_path / "job.log").write_bytes(b"".join(lines))
    trace = load([str(tmp_path / "job.log")])

    names = {}
    for tree in plan_ranks(trace, TreeOptions(provenance=True)):
        folder = tmp_path / f"rank_{tree.rank}"
        folder.mkdir()
        names[tree.rank] = write_provenance(trace, tree, str(folder))

    assert names == {0: ["provenance_tracking_-_0_0_0.html"], 1: ["provenance_tracking_-_7_0_0.html"]}
