"""The words of a node in the wait graph: which ranks, in which calls, since when, at which line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np

from rankscope.model.finding import Finding, count_noun, format_duration, format_ranks
from rankscope.model.tables import MISSING, Trace
from rankscope.render.page.contents import map_link
from rankscope.render.page.wait_graph import Call, Edge, Node

# For one rank, for several.
_WHY_WORDS = {
    "absent": ("has not joined", "have not joined"),
    "mismatch": ("does not match", "do not match"),
    "unknown": ("no dump", "no dumps"),
    "behind": ("is behind", "are behind"),
    "stalled": ("all have joined", "all have joined"),
    "unpaired": ("not recorded", "not recorded"),
}
_NOBODY_WORDS = {
    -2: ("no rank", "device or network"),
    -3: ("all of them", "mismatched calls"),
    -4: ("unknown rank", "other side not recorded"),
}
_MAX_SEQ_PARTS = 3


def is_hang(finding: Finding) -> bool:
    """Whether the finding says why the job hangs; the first one that does names the cause."""
    return finding.code.startswith("H") and finding.severity == "error"


def who(node: Node) -> str:
    """`rank 31`, `56 ranks`."""
    if node.is_nobody:
        return _NOBODY_WORDS[node.ranks[0]][0]
    return f"rank {node.ranks[0]}" if len(node.ranks) == 1 else count_noun(len(node.ranks), "rank")


def which(node: Node, limit: int) -> str:
    """The ranks themselves where the number alone was said."""
    if node.is_nobody:
        return _NOBODY_WORDS[node.ranks[0]][1]
    return "" if len(node.ranks) == 1 else format_ranks(node.ranks, limit)


def why_phrase(edge: Edge, holding: Node) -> str:
    """What holds up the ranks that the others wait for."""
    return " or ".join(_WHY_WORDS[why][len(holding.ranks) > 1] for why in edge.whys)


def call_phrase(calls: Sequence[Call], ops: Sequence[str] = ()) -> str:
    """`all_reduce 48211`, `3 x all_reduce 17-19`; `ops` are those of the ranks in question, where they differ."""
    named = ", ".join(dict.fromkeys(ops or [call.op for call in calls]))
    seqs = sorted({call.seq for call in calls if call.seq != MISSING})
    times = f"{len(calls):,} x " if len(calls) > 1 else ""
    return f"{times}{named} {format_ranks(seqs, _MAX_SEQ_PARTS)}".strip()


def groups_phrase(trace: Trace, calls: Sequence[Call]) -> str:
    """`dp, group 12`, `8 groups dp`."""
    groups = trace.table("groups")
    numbers = sorted({call.group for call in calls})
    described = ", ".join(dict.fromkeys(filter(None, (groups.text("description")[number] for number in numbers))))
    if len(numbers) > 1:
        return f"{count_noun(len(numbers), 'group')} {described}".strip()
    name = f"group {groups.text('name')[numbers[0]]}"
    return f"{described}, {name}" if described else name


def since_phrase(calls: Sequence[Call]) -> str:
    """`since 14:02:14, 10 min 0 s`, as far as recorded."""
    starts = [call.since_ns for call in calls if call.since_ns > 0]
    if not starts:
        return ""
    waited = max(call.waited_ns for call in calls)
    lasted = f", {format_duration(waited)}" if waited > 0 else ""
    return f"since {datetime.fromtimestamp(min(starts) // 10**9, timezone.utc):%H:%M:%S}{lasted}"


def own_rows(trace: Trace, node: Node) -> list[int]:
    """The rows of `collectives` that show how the node's ranks wait: those of its first rank."""
    calls = trace.table("collectives")
    is_own = (calls.array("rank") == node.ranks[0]) & np.isin(
        calls.array("match_id"), [call.match for call in node.calls]
    )
    return [int(row) for row in np.flatnonzero(is_own)]


def place_on_map(node: Node) -> str:
    """The cell of the node's first rank in its first call."""
    if not node.calls:
        return map_link(rank=node.ranks[0])
    call = node.calls[0]
    return map_link(call.group, node.ranks[0], call.seq if call.seq != MISSING else None, call.is_p2p)
