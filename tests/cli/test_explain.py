from __future__ import annotations

import json

import pytest

from rankscope.analyze import RULES
from rankscope.cli import main


@pytest.mark.parametrize("wanted", ["H102", "h102", "op-mismatch", "Op_Mismatch"])
def test_code_and_name_find_the_rule(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", wanted]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("H102 op-mismatch\n")
    for section in ("What it means", "Why it happens", "What to do", "What could fool it"):
        assert section in printed


def test_without_a_code_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == sorted(RULES)
    assert lines[-1] == f"Next: rankscope explain {min(RULES)}"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "H102", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (record["code"], record["rule"]) == ("H102", "op-mismatch")
    assert record["text"].startswith(record["summary"])
    main(["explain", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == len(RULES)


def test_headings_stand_out_in_color(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "H102", "--color", "always"])
    printed = capsys.readouterr().out
    assert "\x1b[1mH102 op-mismatch\x1b[0m" in printed
    assert "\x1b[1mWhat to do" in printed


def test_an_unknown_rule_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "op-mismach"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: no rule is called op-mismach")
    assert hint.startswith("  = fix: did you mean ")
    assert "op-mismatch" in hint
    assert main(["explain", "zzz"]) == 2
    assert "rankscope explain" in capsys.readouterr().err
