from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rankscope.cli import main
from rankscope.commands import chakra as command
from rankscope.model.chakra import Attribute, ChakraNode
from rankscope.render.chakra_file import write_graph
from render.chakra_building import graph_of, small_nodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks that send to each other and join an all_reduce."""
    for rank in range(2):
        nodes = [*small_nodes()[:3], transfer(3, "send", rank), transfer(4, "recv", rank)]
        del nodes[2].attributes["pg_name"]
        write_graph(graph_of(nodes, {"rank": Attribute("int64", rank)}), tmp_path / f"job.{rank}.et")
    return tmp_path


def transfer(row: int, op: str, rank: int) -> ChakraNode:
    ends = {"comm_src": rank, "comm_dst": 1 - rank} if op == "send" else {"comm_src": 1 - rank, "comm_dst": rank}
    attributes = {name: Attribute("int32", end) for name, end in ends.items()}
    attributes |= {"comm_tag": Attribute("int32", 7), "comm_size": Attribute("int64", 64)}
    attributes["is_cpu_op"] = Attribute("bool", False)
    return ChakraNode(row, op, 5 if op == "send" else 6, [], [2], 1033, 2, attributes=attributes)


@pytest.fixture
def broken(folder: Path) -> Path:
    nodes = small_nodes()[:2]
    nodes[1].data_deps = [99]
    write_graph(graph_of(nodes), folder / "broken.0.et")
    return folder / "broken.0.et"


# validate


@pytest.mark.parametrize("how", ["folder", "prefix", "files"])
def test_all_ranks_are_judged_together(how: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / f"job.{rank}.et") for rank in range(2)]
    paths = {"folder": [str(folder)], "prefix": [str(folder / "job")], "files": files}[how]
    assert main(["chakra", "validate", *paths]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert any(line.startswith("valid: 2 files, 10 nodes; 0 errors") for line in lines)
    assert any(line.startswith("  replay        10 of 10 nodes ran; simulated ") for line in lines)
    assert [line.split(":")[0].strip() for line in lines if line.startswith("    rank ")] == ["rank 0", "rank 1"]
    assert lines[-1].startswith("Next: rankscope chakra show ")
    assert printed.err == ""


def test_a_broken_rule_is_told_with_its_node(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "validate", str(broken)]) == 1
    lines = capsys.readouterr().out.splitlines()
    (place,) = [place for place, line in enumerate(lines) if line.startswith("error[dangling-data-dep] ")]
    assert lines[place + 1] == f"  --> {broken}, node 1 gemm"
    assert "99" in lines[place + 2]
    assert any(line.startswith("not valid: 1 file, 2 nodes; 1 error, ") for line in lines)
    assert lines[-1] == f"Next: rankscope chakra show {broken} --node 1"


def test_the_verdict_as_json(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "validate", str(broken), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["valid"], record["n_nodes"]) == (False, 2)
    assert record["problems"][0]["rule"] == "dangling-data-dep"


def test_more_of_the_same_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [ChakraNode(row, "op", 4, [99], attributes={"is_cpu_op": Attribute("bool", True)}) for row in range(30)]
    write_graph(graph_of(nodes), folder / "many.0.et")
    assert main(["chakra", "validate", str(folder / "many.0.et")]) == 1
    assert "  ... 25 more\n" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_not_invalid_but_a_failure(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "job.0.et"
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["chakra", "validate", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"error: {path} is truncated: of node 5 of the file" in printed.err
    assert "  = fix: the file is incomplete" in printed.err


# show


def test_show_tells_of_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "show", str(folder), "--limit", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(": Chakra trace, schema 0.0.4") == 2
    assert printed.out.count("(1 node, 4 more with --limit N;") == 2
    assert printed.out.splitlines()[-1] == f"Next: rankscope chakra validate {folder}"


def test_show_as_json_is_one_record_or_a_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "show", str(folder / "job.0.et"), "--json", "--limit", "0"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["n_nodes"], len(record["first"])) == (5, 5)
    assert record["transfers"][0] == {"op": "all_reduce", "group": "", "n_bytes": 4096, "n_nodes": 1, "duration_us": 10}
    assert main(["chakra", "show", str(folder), "--json"]) == 0
    assert [record["n_nodes"] for record in json.loads(capsys.readouterr().out)] == [5, 5]


def test_show_a_node(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "show", str(folder / "job.1.et"), "--node", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder / 'job.1.et'}:\nnode 3: send\n")
    assert "comm_dst (int32)   0" in out
    assert main(["chakra", "show", str(folder / "job.1.et"), "--node", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["shapes"] == "[[2, 2]]"
    assert main(["chakra", "show", str(folder), "--node", "44"]) == 2
    assert "no node 44 in" in capsys.readouterr().err


# to-json, to-dot


def test_json_lines_to_stdout_and_to_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "job.0.et")
    assert main(["chakra", "to-json", path]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line).get("id") for line in printed.out.splitlines()] == [None, 0, 1, 2, 3, 4]
    assert printed.err == ""
    assert main(["chakra", "to-json", path, "-o", str(folder / "out.jsonl")]) == 0
    assert (folder / "out.jsonl").read_text() == printed.out
    assert capsys.readouterr().err == f"Wrote 5 nodes to {folder / 'out.jsonl'}\n"


def test_the_extension_chooses_the_graph(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "job.0.et")
    assert main(["chakra", "to-dot", path, "-o", str(folder / "out.graphml")]) == 0
    assert ElementTree.parse(folder / "out.graphml").getroot().tag.endswith("graphml")
    assert main(["chakra", "to-dot", path, "-o", str(folder / "out.dot")]) == 0
    assert (folder / "out.dot").read_text().startswith("digraph ")
    capsys.readouterr()
    assert main(["chakra", "to-dot", path]) == 0
    assert capsys.readouterr().out == (folder / "out.dot").read_text()


def test_a_cut_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "to-dot", str(folder / "job.0.et"), "--limit", "2"]) == 0
    assert capsys.readouterr().err == "Stopped after 2 nodes: the file has more, --limit 0 writes all\n"


def test_a_graph_that_no_program_can_lay_out_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "MANY_DRAWN", 4)
    assert main(["chakra", "to-dot", str(folder / "job.0.et")]) == 0
    assert "see --limit" in capsys.readouterr().err


def test_nothing_is_overwritten_or_left_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, path = folder / "out.jsonl", folder / "job.0.et"
    target.write_text("mine")
    assert main(["chakra", "to-json", str(path), "-o", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:-3])  # found out while it is written
    assert main(["chakra", "to-json", str(path), "-o", str(target), "--force"]) == 2
    assert target.read_text() == "mine"
    assert sorted(entry.name for entry in folder.iterdir()) == ["job.0.et", "job.1.et", "out.jsonl"]


# Usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["to-json", "FOLDER"], "to-json takes one file, not 2"),
        (["to-dot", "FOLDER", "--node", "1"], "to-dot has no option --node"),
        (["validate", "FOLDER", "--limit", "1"], "validate has no option --limit"),
        (["validate", "FOLDER", "-o", "x"], "validate has no option --output"),
        (["to-json", "FOLDER", "--json"], "to-json has no option --json"),
        (["show", "FOLDER", "--limit", "-1"], "'-1' is not a whole number"),
        (["show", "nosuch"], "nosuch: no such file or folder, and no nosuch.<rank>.et"),
        (["draw", "FOLDER"], "ACTION does not accept 'draw'"),
        (["show"], "rankscope chakra needs PATH"),
    ],
)
def test_what_makes_no_sense(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chakra", *(str(folder) if word == "FOLDER" else word for word in arguments)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "  = fix: " in printed.err
    assert printed.out == ""
