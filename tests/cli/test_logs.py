from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.collect.launching.log_names import as_torch_has_them, ask_torch, is_well_formed, split_names

REGISTRY = """
class log_registry:
    log_alias_to_log_qnames = {"dynamo": ["torch._dynamo", "torch.fx"], "inductor": ["torch._inductor"]}
    artifact_names = {"recompiles", "graph_breaks"}
    artifact_descriptions = {"recompiles": "Why it was\\n compiled again", "graph_breaks": ""}
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch that has the registry and nothing else."""
    package = tmp_path / "torch"
    (package / "_logging").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '2.99'\nprint('hello from torch')\n")
    (package / "_logging" / "__init__.py").write_text("")
    (package / "_logging" / "_internal.py").write_text(REGISTRY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package


@pytest.mark.usefixtures("torch")
def test_all_names_with_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Logs of torch 2.99: name for its messages, +name adds debug messages, -name errors only",
        "  dynamo        messages of torch._dynamo, torch.fx",
        "  inductor      messages of torch._inductor",
        "",
        "Artifacts: on or off",
        "  graph_breaks  no description",
        "  recompiles    Why it was compiled again",
        "",
        "Next: rankscope record --logs graph_breaks -- torchrun ... train.py",
    ]


@pytest.mark.usefixtures("torch")
def test_a_word_picks_names_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "Compiled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "torch": "2.99",
        "logs": [{"name": "recompiles", "kind": "artifact", "text": "Why it was compiled again"}],
    }


@pytest.mark.usefixtures("torch")
def test_a_word_that_nothing_contains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "recompyles"]) == 2
    assert "did you mean recompiles?" in capsys.readouterr().err


def test_without_torch_it_says_what_to_do(torch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (torch / "__init__.py").write_text("raise ImportError('No module named torch')")
    assert main(["logs"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.endswith("could not list torch's logs: ImportError: No module named torch")
    assert "rankscope logs --python PATH" in hint
    assert main(["logs", "--python", "/no/python"]) == 2
    assert "could not run /no/python" in capsys.readouterr().err


@pytest.mark.usefixtures("torch")
def test_wrong_names_end_it_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("open('started', 'w')")
    job = ["--", sys.executable, "job.py"]
    assert main(["record", "--logs", "+dynamo,recompile", *job]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: torch 2.99 has no log called 'recompile'",
        "  = fix: did you mean recompiles?",
    ]
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "traces").exists()
    assert main(["record", "--logs", "+dynamo,recompiles,json.decoder,all", *job]) == 0
    assert (tmp_path / "started").exists()


@pytest.mark.usefixtures("torch")
def test_modules_are_names_too() -> None:
    import sys

    known = ask_torch(sys.executable, ["json", "no.such.module"])
    assert known.modules == {"json"}
    assert known.wrong(["dynamo", "json", "all", "no.such.module"]) == ["no.such.module"]


def test_names_are_split_as_torch_does() -> None:
    assert split_names("+dynamo, -inductor,recompiles") == ["dynamo", "inductor", "recompiles"]
    assert is_well_formed("+dynamo,-torch._inductor,recompiles")
    assert not any(map(is_well_formed, ("", "a,,b", "a b", "++a", "help!", "a,")))


def test_names_of_torchs_guide_are_taken(torch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = REGISTRY.replace('"recompiles", "graph_breaks"}', '"aot_joint_graph"}').replace('"dynamo":', '"torch":')
    (torch / "_logging" / "_internal.py").write_text(registry)
    assert main(["logs", "aot_joint_graphs"]) == 0
    assert "aot_joint_graph  no description (also called aot_joint_graphs)" in capsys.readouterr().out
    assert main(["logs"]) == 0
    assert "  all              messages of all components" in capsys.readouterr().out
    assert as_torch_has_them("+all,-aot_joint_graphs,aot_graphs") == "+all,-aot_joint_graph,aot_graphs"
