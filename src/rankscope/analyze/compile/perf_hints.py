"""C416: what Inductor says would run faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.compile.sites import NOWHERE, Site, sites_of
from rankscope.analyze.compile.wording import listed, ranks_of, shortened, times
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun
from rankscope.model.tables import Table, Trace

Row = dict[str, Any]
_MAX_SHOWN = 5
_NOT_GENERATED = (
    "rewrite it with operators that Inductor generates code for, or accept that the operators around it are not fused"
)


class Hint(NamedTuple):
    """A hint of torch: how to recognize it, what it says in a few words, and what to do."""

    pattern: re.Pattern[str]
    title: str
    help: str


def _hint(pattern: str, title: str, help_: str) -> Hint:
    return Hint(re.compile(pattern, re.DOTALL), title, help_)


_HINTS = (
    _hint(r"Using FallbackKernel: (?P<subject>\S+)", "Inductor generates no code for {subjects}", _NOT_GENERATED),
    _hint(
        r"Reduction over non-contiguous dims",
        "a reduction reads non-contiguous memory",
        "set torch._inductor.config.triton.tile_reductions = True, or make the reduced dimension contiguous",
    ),
    _hint(
        r"Found optimal tiling with (?P<subject>\d+) tiles",
        "the best tiling of a kernel needs {subjects} tiles, which the settings do not allow",
        "raise torch._inductor.config.triton.max_tiles to that number",
    ),
    _hint(
        r"possibly bad tiling",
        "Inductor found no tiling that fits all memory accesses of a kernel",
        "give its tensors the same layout (contiguous(), channels_last), or split the expression",
    ),
    _hint(
        r"Grad tensors (?P<subject>\[.*?\]) will be copied during cudagraphs",
        "gradients are copied for CUDA graphs on every step",
        "keep them at one address (zero_grad(set_to_none=False)) and call torch._dynamo.mark_static_address on them",
    ),
    _hint(
        r"Not enough SMs to use max_autotune_gemm",
        "the device is too small for max-autotune: its matrix multiplications are not tuned",
        "do not use mode='max-autotune' on this device: it costs compile time and gains little",
    ),
)
# Logged for every graph on a CPU, where padding would not help; skipped CUDA graphs have their own rule.
_NO_NEWS = re.compile(r"Skip comprehensive padding|skipping cudagraphs")


@rule("C416", "perf-hint", needs=("log_lines",))
def perf_hint(trace: Trace) -> Iterator[Finding | Effect]:
    """Inductor says that the code could run faster, and how.

    What it means: while compiling, torch logged a hint about the speed of the generated code: an operator it cannot
    generate code for, a tiling that a setting forbids, copies that CUDA graphs need. Equal hints are listed once, with
    the compiled functions they are about.

    Why it happens: the operator has no lowering, the layout of the tensors does not suit the kernel, or an Inductor
    setting is more conservative than this code needs.

    What to do: do what the finding says. Measure before and after: a hint is not a promise.

    What could fool it: torch logs hints only on request (TORCH_LOGS="perf_hints"), and only for graphs it compiles: a
    graph taken from a cache logs none. The log does not show how much time a hint would save. Hints that ask for
    nothing, such as padding on a CPU, are left out.
    """
    rows = list(_hint_rows(trace.table("log_lines")))
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        kind = next((number for number, hint in enumerate(_HINTS) if hint.pattern.search(row["message"])), len(_HINTS))
        groups.setdefault((kind, shortened(row["message"]) if kind == len(_HINTS) else ""), []).append(row)
    for (kind, text), group in sorted(groups.items()):
        hint = _HINTS[kind] if kind < len(_HINTS) else Hint(re.compile(""), f"torch's hint: {text}", "follow the hint")
        yield _finding(trace, hint, group)


def _hint_rows(lines: Table) -> Iterator[Row]:
    is_hint = lines.text("channel").equals("perf_hints")
    messages = lines.text("message")
    known = np.fromiter((_is_known(text) for text in messages.values), bool, len(messages.values))
    is_warning = lines.text("level").equals("warning") & known[messages.codes]
    for row in lines.take(np.flatnonzero(is_hint | is_warning)).rows():
        if row["message"].strip() and not _NO_NEWS.search(row["message"]):
            yield row


def _is_known(text: str) -> bool:
    return any(hint.pattern.search(text) for hint in _HINTS)


def _finding(trace: Trace, hint: Hint, group: list[Row]) -> Finding:
    sites = sites_of(trace)
    matches = [hint.pattern.search(row["message"]) for row in group]
    named = [match.groupdict().get("subject", "") for match in matches if match]
    subjects = [*dict.fromkeys(subject for subject in named if subject)]
    by_site: dict[Site, int] = {}
    for row in group:
        site = sites.find(row)
        by_site[site] = by_site.get(site, 0) + 1
    places = [site for site in sorted(by_site, key=lambda site: (-by_site[site], site)) if site != NOWHERE]
    texts = dict.fromkeys(shortened(row["message"]) for row in group)
    compilations = {(row["file_id"], row["rank"], row["compile_id"]) for row in group}
    return Finding(
        severity="info",
        certainty="certain",
        title=hint.title.format(subjects=listed(subjects)) if subjects else hint.title,
        ranks=ranks_of(row["rank"] for row in group),
        location=places[0].location if places else None,
        evidence=Evidence(
            certain=(
                f"logged {times(len(group))}, in {count_noun(len(compilations), 'compilation')}"
                + (f" of {listed(f'{site.name} ({site.place})' for site in places)}" if places else ""),
            ),
            notes=tuple(f"torch: {text}" for text in list(texts)[:_MAX_SHOWN]),
            facts={
                "n": len(group),
                "subjects": subjects,
                "compile_ids": sorted({row["compile_id"] for row in group if row["compile_id"]}),
                "messages": list(texts),
            },
        ),
        help=hint.help,
    )
