"""The conditions under which two captures were made: ranks, hosts, devices, versions, environment."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rankscope.model.changes import SetupChange
from rankscope.model.finding import Capture
from rankscope.model.tables import Trace

_MANIFEST_COLUMNS = {"torch": "torch", "python": "Python", "platform": "platform", "command": "command"}
_ABSENT = "(not set)"


def setup_changes(old: Trace, new: Trace, captures: tuple[Capture, Capture]) -> Iterator[SetupChange]:
    before, after = (_of_capture(trace, capture) for trace, capture in zip((old, new), captures, strict=True))
    both_told = old.has("manifests") and new.has("manifests")
    if both_told:
        before, after = before | _of_manifests(old), after | _of_manifests(new)
    for name in dict.fromkeys((*before, *after)):
        values = before.get(name, ""), after.get(name, "")
        is_variable = name.startswith("$")
        if values[0] != values[1] and (all(values) or is_variable):
            yield SetupChange(name, *(value or _ABSENT for value in values))


def _of_capture(trace: Trace, capture: Capture) -> dict[str, str]:
    ranks, profiles = trace.table("ranks"), trace.table("profiles")
    return {
        "ranks": str(capture.world_size) if capture.world_size else "",
        "hosts": str(len(capture.hosts)) if capture.hosts else "",
        "devices": ", ".join(capture.devices),
        "backend": _distinct(profiles.text("backend").tolist()),
        "communication library": _distinct(ranks.text("comm_version").tolist()),
    }


def _of_manifests(trace: Trace) -> dict[str, str]:
    manifests = trace.table("manifests")
    settings = {name: _distinct(manifests.text(column).tolist()) for column, name in _MANIFEST_COLUMNS.items()}
    return settings | {
        f"${name}": value for name, value in _environment(manifests.text("environment").tolist()).items()
    }


def _environment(texts: list[str]) -> dict[str, str]:
    """Variables that are the same on all ranks: others (RANK, ...) say nothing about the job."""
    everywhere: dict[str, set[str]] = {}
    for text in dict.fromkeys(texts):
        try:
            variables = json.loads(text or "{}")
        except ValueError:
            continue
        for name, value in variables.items() if isinstance(variables, dict) else ():
            everywhere.setdefault(name, set()).add(str(value))
    return {name: next(iter(values)) for name, values in sorted(everywhere.items()) if len(values) == 1}


def _distinct(values: list[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))
