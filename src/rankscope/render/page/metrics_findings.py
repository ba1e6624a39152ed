"""At which step of a metric a finding belongs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.model.finding import Finding, finding_anchors
from rankscope.render.page.chart_marks import steps_of
from rankscope.render.page.charts import Flag
from rankscope.render.page.contents import Contents
from rankscope.render.page.metrics_data import Series

_MAX_FLAGS = 8  # of a chart


def finding_flags(contents: Contents, series: Series) -> list[Flag]:
    """The first step that each finding names, else the step at whose time its collective was called."""
    flags = []
    findings = contents.report.findings
    for anchor, finding in zip(finding_anchors(findings), findings, strict=True):
        step = next(_steps(contents, finding, series), None)
        if step is not None and series.steps[0] <= step <= series.last_step:
            flags.append(Flag(float(step), finding.code, f"{finding.code}: {finding.title}", anchor))
    return flags[:_MAX_FLAGS]


def _steps(contents: Contents, finding: Finding, series: Series) -> Iterator[int]:
    if series.has_steps:
        yield from steps_of(finding)[:1]
    called = _called_ns(contents, finding)
    known = np.flatnonzero(series.times > 0)
    if called and len(known):
        after = int(np.searchsorted(np.maximum.accumulate(series.times[known]), called))
        # A metric is told when its step ends: the call belongs to the first step that was told after it.
        yield int(series.steps[known[after]]) if after < len(known) else series.last_step


def _called_ns(contents: Contents, finding: Finding) -> int:
    """When the first rank made the call; 0 when no recorder says."""
    if not (finding.group and finding.collective):
        return 0
    group_id = contents.group_id(finding.group)
    calls = contents.trace.table("collectives")
    if group_id is None or not len(calls):
        return 0
    sequence = calls.array("p2p_seq" if finding.collective.p2p else "seq")
    created = calls.array("created_ns")
    rows = (calls.array("group_id") == group_id) & (sequence == finding.collective.seq) & (created > 0)
    return int(created[rows].min()) if rows.any() else 0
