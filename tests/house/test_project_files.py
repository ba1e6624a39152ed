"""The files around the code agree with each other: one version, one ruff, one list of Pythons."""

from __future__ import annotations

import re

from source_tree import ROOT

from rankscope import __version__


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def matches(pattern: str, name: str) -> list[str]:
    return re.findall(pattern, text_of(name), re.MULTILINE)


def test_one_version() -> None:
    assert matches(r"^version: (\S+)$", "CITATION.cff") == [__version__]
    assert matches(r"^## \[(\d[^\]]*)\]", "CHANGELOG.md")[0] == __version__


def test_commits_are_checked_by_the_same_ruff() -> None:
    (pinned,) = matches(r'"ruff==([\d.]+)"', "pyproject.toml")
    assert matches(r"ruff-pre-commit\n\s+rev: v([\d.]+)$", ".pre-commit-config.yaml") == [pinned]


def test_every_supported_python_is_tested() -> None:
    supported = matches(r'^  "Programming Language :: Python :: (3\.\d+)",$', "pyproject.toml")
    (matrix,) = matches(r"^\s+python: \[(.*)\]$", ".github/workflows/check.yml")
    assert re.findall(r'"(3\.\d+)"', matrix) == supported
    assert matches(r'^requires-python = ">=(3\.\d+)"$', "pyproject.toml") == supported[:1]


def test_reports_of_bugs_ask_for_what_is_needed() -> None:
    for name in ("ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/wrong_verdict.yml", "pull_request_template.md"):
        page = text_of(f".github/{name}")
        assert "rankscope --version" in page
        assert "--json" in page
