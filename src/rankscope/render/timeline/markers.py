"""Findings as marks on the timeline: when each of them happened, and to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.model.finding import Finding, Location, format_ranks
from rankscope.model.tables import Trace
from rankscope.render.timeline.axis import Axis
from rankscope.render.timeline.chrome import JOIN_CLOCK, LEAD_NS, common_clock, label
from rankscope.render.timeline.drawing import TRACKS_PER_SECTION, Cut
from rankscope.render.timeline.sources import FINDINGS

_MAX_RANKS = 64  # a mark on each rank of a job of thousands would hide everything else
_TID = FINDINGS * TRACKS_PER_SECTION + 1
_RECORDED = """
SELECT coalesce(min(e.created_ns - coalesce(o.offset_ns, 0)) FILTER (list_contains($ranks, e.rank)),
                min(e.created_ns - coalesce(o.offset_ns, 0)))
FROM collectives AS e LEFT JOIN timeline_clocks AS o ON o.rank = e.rank
WHERE coalesce(e.group_name, '') = $group AND e.is_p2p = $p2p
      AND coalesce(CASE WHEN e.is_p2p THEN e.p2p_seq END, e.seq) = $seq
      AND e.created_ns > 0 AND list_contains($members, e.rank)
"""
_PROFILED = """
SELECT min(m.start_ns) FROM comm_matches AS m JOIN comm_groups AS g USING (group_key)
WHERE coalesce(g.name, '') = $group AND m.is_p2p = $p2p AND m.seq = $seq
"""
_SLOWEST_STEP = f"""
SELECT arg_max({common_clock("e.start_ns")}, (e.duration_ns, -e.step)) FROM steps AS e {JOIN_CLOCK}
WHERE list_contains($ranks, e.rank) OR $all_ranks
"""
_FIRST_COMPILATION = """
SELECT min(e.start_ns - coalesce(o.offset_ns, 0))
FROM compilations AS e LEFT JOIN timeline_clocks AS o ON o.rank = e.rank
WHERE e.file = $file AND e.line <= $line AND (list_contains($ranks, e.rank) OR $all_ranks)
"""


def finding_time(trace: Trace, finding: Finding, axis: Axis) -> int:
    """When the collective was called; else the slowest step of its ranks, or where the place was compiled first."""
    ranks, site = list(finding.ranks), finding.location
    chosen = {"ranks": ranks, "all_ranks": not ranks}
    asked: list[tuple[str, dict[str, Any]]] = []
    if finding.collective and finding.group:
        call, group = finding.collective, finding.group
        key = {"group": group.name, "p2p": call.p2p, "seq": call.seq}
        members = sorted({*group.ranks, *ranks})
        asked += [(_RECORDED, {**key, "ranks": ranks, "members": members}), (_PROFILED, key)]
    if finding.code.startswith("C") and site:
        asked.append((_FIRST_COMPILATION, {**chosen, "file": site.file, "line": site.line}))
    elif not finding.code.startswith("D") and trace.has("steps"):
        asked.append((_SLOWEST_STEP, chosen))
    for sql, values in asked:
        [(time,)] = trace.sql(sql, **values).rows()
        if time is not None and axis.low_ns <= time <= axis.high_ns:
            return max(int(time), axis.base_ns)
    return axis.base_ns


def finding_events(
    trace: Trace, findings: Sequence[Finding], cut: Cut, processes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The first one goes over all ranks, the others are on the tracks of theirs: of lost ranks on the first process."""
    named: set[int] = set()
    present = set(processes)
    for number, finding in enumerate(findings):
        time = finding_time(trace, finding, cut.axis)
        if not (cut.since_ns or time) <= time < (cut.until_ns or time + 1):
            continue
        wanted = [rank for rank in finding.ranks if rank in present] or processes
        n_marks = _MAX_RANKS if number and present & {*finding.ranks} else 1
        for rank in wanted[:n_marks]:
            if rank not in named:
                named.add(rank)
                yield label("thread_name", rank, _TID, name="findings")
                yield label("thread_sort_index", rank, _TID, sort_index=_TID)
            yield {
                "ph": "i",
                "s": "g" if number == 0 else "t",
                "pid": rank,
                "tid": _TID,
                "ts": (time - cut.axis.base_ns + LEAD_NS) / 1000,
                "cat": "finding",
                "name": f"{finding.severity}[{finding.code}] {finding.title}",
                "args": _about(finding),
            }


def _about(finding: Finding) -> dict[str, Any]:
    facts = {
        "code": finding.code,
        "rule": finding.rule,
        "certainty": finding.certainty,
        "ranks": format_ranks(finding.ranks),
        "group": finding.group and (finding.group.desc or finding.group.name),
        "location": _place(finding.location),
        "peer_location": _place(finding.peer_location),
        "help": finding.help,
    }
    return {name: value for name, value in facts.items() if value}


def _place(site: Location | None) -> str:
    return f"{site.file}:{site.line} in {site.function}" if site else ""
