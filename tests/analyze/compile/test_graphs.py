"""Fingerprints of graphs: equal for ranks that compile the same, different for any operator, shape or argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.analyze.compile.graphs import normalised_graph
from rankscope.simulate.compile_log import TRAIN, LogBuilder, ids_of
from read.compile_log_reading import load_logs, rows_of

GRAPH = """\
class GraphModule(torch.nn.Module):
    def forward(self, L_self_parameters_weight_: "f32[8, 8][8, 1]cuda:0", L_x_: "f32[8][1]cuda:0"):
        l_x_ = L_x_

        # File: /home/one/train.py:30 in forward, code: y = dist.all_reduce(x + 1)
        add: "f32[8][1]cuda:0" = l_x_ + 1;  l_x_ = None
        tensor: "f32[8][1]cuda:0" = torch.ops._c10d_functional.all_reduce(add, 'sum', '0');  add = None
        made = torch.zeros([8], device = device(type='cuda', index=0))
        held = call(<object at 0x7f01aa>)
        return (tensor,)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cuda:0", "cuda:3"),
        ("index=0", "index=3"),
        ("/home/one/train.py:30", "/scratch/node7/train.py:30"),
        ("0x7f01aa", "0x55aa10"),
        ("'sum', '0')", "'sum', '17')"),
        ("\n\n", "\n \n\n"),
    ],
)
def test_what_may_differ_by_rank_makes_no_difference(old: str, new: str) -> None:
    assert old in GRAPH
    assert normalised_graph(GRAPH.replace(old, new).encode()) == normalised_graph(GRAPH.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("l_x_ + 1", "l_x_ + 2"),
        ("f32[8][1]", "f32[12][1]"),
        ("f32[8, 8]", "bf16[8, 8]"),
        ("'sum'", "'max'"),
        ("all_reduce(add", "all_gather(add"),
        ("L_self_parameters_weight_", "L_self_parameters_bias_"),
        ("cuda:0", "cpu"),
    ],
)
def test_what_the_graph_does_makes_a_difference(old: str, new: str) -> None:
    assert old in GRAPH
    assert normalised_graph(GRAPH.replace(old, new).encode()) != normalised_graph(GRAPH.encode())


def test_graphs_of_a_rank_are_counted_and_placed(tmp_path: Path) -> None:
    first = (
        LogBuilder(rank=0).start("0/0").graph("0/0", GRAPH).metrics("0/0").graph("1/0", "def forward(self):\n    pass")
    )
    second = LogBuilder(rank=1).start("0/0").graph("0/0", GRAPH.replace("cuda:0", "cuda:1"))
    rows = rows_of(load_logs(tmp_path, first, second), "compile_graphs")
    assert [(row["rank"], row["position"], row["compile_id"], row["n_ops"]) for row in rows] == [
        (0, 0, "0/0", 4),
        (0, 1, "1/0", 0),
        (1, 0, "0/0", 4),
    ]
    assert rows[0]["fingerprint"] == rows[2]["fingerprint"] != rows[1]["fingerprint"]
    assert (rows[0]["file"], rows[0]["line"], rows[0]["function"]) == (TRAIN, 30, "forward")
    assert (rows[2]["file"], rows[2]["line"]) == (TRAIN, 30)  # told by the stack: no metrics were logged


def test_lowered_graphs_stand_in_where_none_was_captured(tmp_path: Path) -> None:
    both = LogBuilder(rank=0).graph("0/0", GRAPH).record("aot_forward_graph", {}, GRAPH, **ids_of("0/0"))
    lowered = LogBuilder(rank=1).record("aot_forward_graph", {}, GRAPH, **ids_of("0/0"))
    rows = rows_of(load_logs(tmp_path, both, lowered), "compile_graphs")
    assert [(row["rank"], row["record"]) for row in rows] == [(0, 0), (1, 0)]


def test_a_wrong_checksum_costs_no_graph(tmp_path: Path) -> None:
    log = LogBuilder(rank=0)
    for text in (GRAPH, GRAPH.replace("+ 1", "+ 2")):
        log.record("dynamo_output_graph", {"sizes": {}}, text, has_payload="", **ids_of("0/0"))
    first, second = rows_of(load_logs(tmp_path, log), "compile_graphs")
    assert first["fingerprint"] != second["fingerprint"]
