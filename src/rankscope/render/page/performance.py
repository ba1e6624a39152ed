"""Where the time of the profiled steps goes: per rank and step, on the device, between ranks, on the critical path."""

from __future__ import annotations

import numpy as np

from rankscope.model.finding import count_noun
from rankscope.render.html import Html, joined, markup
from rankscope.render.page.chart_marks import marks_of
from rankscope.render.page.contents import Contents, View, absent, view
from rankscope.render.page.performance_device import idle_section, kernel_section, overlap_section
from rankscope.render.page.performance_path import path_section, what_if_section
from rankscope.render.page.performance_ranks import bubble_section, collective_section, straggler_section
from rankscope.render.page.performance_steps import breakdown_section, step_section

ANCHOR = "performance"
TITLE = "Performance"
_SECTIONS = (
    step_section,
    breakdown_section,
    straggler_section,
    path_section,
    what_if_section,
    overlap_section,
    collective_section,
    bubble_section,
    idle_section,
    kernel_section,
)


@view("performance", place=30)
def performance_view(contents: Contents) -> View:
    if not (contents.trace.has("profiles") and contents.trace.has("step_breakdown")):
        return absent(
            ANCHOR,
            TITLE,
            "This capture has no profiler traces.",
            "rankscope record --only kineto,metrics -o traces/ -- torchrun train.py",
        )
    marks = marks_of(contents)
    body = _what_was_measured(contents)
    if marks.all:
        body += markup(
            '<p class="faint">Findings about time: {}. Their ranks and steps are marked below.</p>', marks.all
        )
    body += joined(section(contents, marks) for section in _SECTIONS)
    return View(ANCHOR, TITLE, body)


def _what_was_measured(contents: Contents) -> Html:
    profiles = contents.trace.table("profiles")
    ranks = np.unique(profiles.array("rank"))
    has_device = profiles.array("n_kernels") > 0
    said = f"Profiler traces from {count_noun(len(ranks), 'rank')}."
    if not has_device.any():
        said += (
            " No device was traced: everything below is host time, and operators on the host count as computation."
            " Profile with ProfilerActivity.CUDA to see the device."
        )
    elif not has_device.all():
        bare = np.setdiff1d(ranks, np.unique(profiles.array("rank")[has_device]))
        if len(bare):
            said += f" {count_noun(len(bare), 'rank').capitalize()} recorded no device activity."
    return markup("<p>{}</p>", said)
