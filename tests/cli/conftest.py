from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

import rankscope
from rankscope.model.finding import Report

GivesReport = Callable[[Report], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RANKSCOPE_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gives(monkeypatch: pytest.MonkeyPatch) -> GivesReport:
    """Makes the pipeline answer with a given report; returns the list of what it was asked for."""

    def use(report: Report) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def load(paths: Sequence[str], **options: Any) -> Report:
            asked.append({"paths": list(paths), **options})
            return report

        pipeline = ModuleType("rankscope.pipeline")
        pipeline.load = load  # type: ignore[attr-defined]
        pipeline.diagnose = lambda trace, progress=None: trace  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "rankscope.pipeline", pipeline)
        monkeypatch.setattr(rankscope, "pipeline", pipeline, raising=False)
        return asked

    return use
