"""S203 and S204: data that is spread unevenly over the members of a collective, and links that move it slowly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.comm.measures import measures_of
from rankscope.analyze.comm.metrics import UNEVEN_SHARES
from rankscope.analyze.comm.stragglers import CLEARLY, exposure_of
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import (
    Evidence,
    Finding,
    GroupRef,
    Severity,
    count_noun,
    format_duration,
    format_ranks,
    ranks_phrase,
)
from rankscope.model.tables import Trace

_SIZEABLE = 0.10
_UNEVEN = 1.5  # times the mean: auxiliary losses keep expert routers within this
_SAME_RANK = 0.5  # of the excess over all calls must fall on one rank, to name it
_SLOWER = 1.5  # times: groups of one kind differ by less because of their position in the network
_REFERENCE = 0.75  # the quantile of the bandwidths of one kind that counts as usual: many can be slow at once
_MIN_CALLS = 3
_MIN_BYTES = 1 << 16  # of a call whose time depends on the link: smaller ones take as long as starting them does
_MAX_SHOWN = 4
_ALL_SLOW = 0.8  # of the links of a host: fewer, and it is not the host


class _Cost(NamedTuple):
    per_step_ns: float
    share: float

    @property
    def severity(self) -> Severity:
        return "warning" if self.share >= _SIZEABLE else "info"

    @property
    def text(self) -> str:
        return f"about {format_duration(int(self.per_step_ns))} per step ({100 * self.share:.0f}%)"


def _cost(trace: Trace, total_ns: float) -> _Cost:
    """Of something that cost a rank this much over all recorded steps."""
    steps = exposure_of(trace).step_ns
    n_steps, whole = max(len(steps), 1), float(steps.sum())
    return _Cost(total_ns / n_steps, total_ns / whole if whole > 0 else 0.0)


@rule("S203", "comm-imbalance", needs=("comms", "profiles"))
def comm_imbalance_rule(trace: Trace) -> Iterator[Finding | Effect]:
    """The members of an all_to_all send or receive very different amounts, and all wait for the one with the most.

    What it means: a collective takes as long as its most loaded member. The cost is the time the calls would save if
    every member had the mean amount, counted only where nothing else ran at the same time.

    Why it happens: experts of a mixture that attract more tokens than others, hot keys of embedding tables, uneven
    shards.

    What to do: balance the router (auxiliary loss, expert-choice routing, capacity factor), replicate hot experts,
    spread hot rows over ranks.

    What could fool it: the time is assumed to be proportional to the largest share. Small messages are limited by
    latency, not size: for them the real cost is lower.
    """
    sql = f"""
        WITH {UNEVEN_SHARES.format(where="m.is_complete")}, calls AS (
            SELECT match_id, any_value(group_key) AS group_key, any_value(op) AS op, max(exposed_ns) AS exposed_ns,
                   arg_max(rank, greatest(sent / mean_sent, received / mean_received)) AS rank,
                   max(greatest(sent / mean_sent, received / mean_received)) AS ratio
            FROM uneven WHERE mean_sent > 0 AND mean_received > 0 GROUP BY match_id
        ), usual AS (SELECT group_key, op, mode(rank) AS usual_rank FROM calls GROUP BY group_key, op)
        SELECT group_key, op, count(*), avg(ratio), sum(exposed_ns * (1 - 1 / ratio)), any_value(usual_rank),
               sum(ratio - 1) FILTER (rank = usual_rank) / sum(ratio - 1)
        FROM calls JOIN usual USING (group_key, op) WHERE ratio > 1 GROUP BY group_key, op ORDER BY 5 DESC
    """
    for group, op, n_calls, ratio, lost_ns, rank, by_rank in trace.sql(sql).rows():
        cost = _cost(trace, float(lost_ns))
        if ratio >= _UNEVEN and cost.share >= CLEARLY and n_calls >= _MIN_CALLS:
            named = rank if (by_rank or 0) >= _SAME_RANK else None
            yield _imbalance(trace, _Uneven(group, op, n_calls, ratio, named), cost)
            return


class _Uneven(NamedTuple):
    """Calls of one operation in a group, and how much more than the mean the most loaded member has."""

    group: int
    op: str
    n_calls: int
    ratio: float
    rank: int | None  # the most loaded member, if it is mostly the same one


def _imbalance(trace: Trace, uneven: _Uneven, cost: _Cost) -> Finding:
    group, op, n_calls, ratio, rank = uneven
    who = f"rank {rank} has" if rank is not None else "one rank, not always the same one, has"
    shares = [row for row in trace.table("comm_imbalance").rows() if row["group_key"] == group and row["op"] == op]
    shares.sort(key=lambda row: -max(row["received_ratio"], row["sent_ratio"]))
    return Finding(
        severity=cost.severity,
        certainty="likely",
        title=f"{who} {ratio:.1f} times the mean share of {op} in {_group_text(trace, group)}: {cost.text}",
        ranks=(rank,) if rank is not None else (),
        group=_group_ref(trace, group),
        evidence=Evidence(
            certain=(
                f"{count_noun(n_calls, 'call')} with uneven shares",
                *(
                    f"rank {row['rank']} sends {row['sent_ratio']:.2f} times and receives "
                    f"{row['received_ratio']:.2f} times the mean"
                    for row in shares[:_MAX_SHOWN]
                ),
            ),
            cost_pct=100 * cost.share,
            cost_ns=int(cost.per_step_ns),
            facts={"n_calls": n_calls, "ratio": round(ratio, 3), "cost_pct": round(100 * cost.share, 2), "op": op},
        ),
        help="balance what each member gets: `rankscope metrics PATH comm_imbalance` lists all ranks",
    )


class _Link(NamedTuple):
    """Calls of one kind between the same ranks."""

    group: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    op: str
    kind: tuple[object, ...]  # what makes links comparable
    n_calls: int
    bus_gbps: float


# Members of a group are joined once; for transfers, each pair of ranks is a separate link.
_LINKS = """
    WITH hosts AS (SELECT file_id, rank, any_value(host) AS host FROM profiles GROUP BY ALL),
    calls AS (
        SELECT m.match_id, m.group_key, m.op, m.is_p2p, floor(log2(m.n_bytes))::INTEGER AS bucket, m.bus_gbps,
               list_sort(list(DISTINCT c.rank)) AS ranks, list_sort(list(DISTINCT h.host)) AS hosts
        FROM comm_matches AS m JOIN comm_calls AS c USING (match_id) LEFT JOIN hosts AS h USING (file_id, rank)
        WHERE m.is_complete AND m.n_bytes >= $min_bytes AND m.bus_gbps > 0 GROUP BY ALL
    )
    SELECT group_key, ranks, hosts, op, bucket, count(*), median(bus_gbps) FROM calls GROUP BY ALL ORDER BY ALL
"""


@rule("S204", "slow-link", needs=("comms", "profiles"))
def slow_link(trace: Trace) -> Iterator[Finding | Effect]:
    """Data moves much more slowly between some ranks than between others, although all joined in time.

    What it means: once the last member has joined, calls of the same operation, size and number of members take longer
    here than in other groups of the job. Waiting for late ranks is not counted. If all links of a host are slow, the
    host is named.

    Why it happens: a network card that is down or runs at a lower rate, a cable with errors, a congested switch, a
    fallback from GPUDirect or NVLink to a copy through the host, a wrong NUMA or network card binding, wrong NCCL
    settings on one node.

    What to do: run nccl-tests between the named hosts, check the network card counters and `nvidia-smi nvlink -e`,
    compare NCCL_DEBUG=INFO output of a slow and a fast rank.

    What could fool it: groups whose members are farther apart by design; only groups that are all within one host, or
    all across hosts, are compared. If the job has a single group, there is nothing to compare it with, and nothing is
    reported. Calls of less than 64 KiB are not compared: their time says little about a link.
    """
    links = [
        _Link(group, tuple(ranks), tuple(hosts), op, (op, bucket, len(ranks), len(hosts) > 1), n, bus)
        for group, ranks, hosts, op, bucket, n, bus in trace.sql(_LINKS, min_bytes=_MIN_BYTES).rows()
    ]
    usual = _usual_bandwidth(links)
    slow = [
        link for link in links if link.n_calls >= _MIN_CALLS and link.bus_gbps * _SLOWER < usual.get(link.kind, 0.0)
    ]
    if slow:
        cost = _cost(trace, _lost_ns(trace, slow, usual))
        if cost.share >= CLEARLY:
            yield _slow_finding(trace, slow, _Network(links, usual), cost)


class _Network(NamedTuple):
    links: Sequence[_Link]
    usual: dict[tuple[object, ...], float]  # bandwidth by kind of link


def _usual_bandwidth(links: Sequence[_Link]) -> dict[tuple[object, ...], float]:
    of_kind: dict[tuple[object, ...], list[float]] = {}
    for link in links:
        of_kind.setdefault(link.kind, []).append(link.bus_gbps)
    return {
        kind: sorted(speeds)[int(_REFERENCE * (len(speeds) - 1) + 0.5)]
        for kind, speeds in of_kind.items()
        if len(speeds) > 1
    }


def _lost_ns(trace: Trace, slow: Sequence[_Link], usual: dict[tuple[object, ...], float]) -> float:
    """How much longer the most affected rank waited because of the slow links, over all steps."""
    measures = measures_of(trace)
    rows, match = measures.matching.rows, measures.matching.match
    excess = {(link.group, link.ranks): 1 - link.bus_gbps / usual[link.kind] for link in slow}
    lost: dict[int, float] = {}
    for (group, ranks), share in excess.items():
        calls = np.flatnonzero((measures.matching.group == group) & np.isin(rows.rank, ranks) & (match >= 0))
        duration = np.maximum(rows.end_ns[calls] - rows.start_ns[calls], 1)
        moving = measures.matches.transfer_ns[match[calls]]
        waiting = moving * np.minimum(measures.exposed_ns[calls] / duration, 1.0) * share
        for rank in ranks:
            lost[rank] = lost.get(rank, 0.0) + float(waiting[rows.rank[calls] == rank].sum())
    return max(lost.values(), default=0.0)


def _slow_hosts(slow: Sequence[_Link], links: Sequence[_Link]) -> tuple[str, ...]:
    """The fewest hosts with nearly all links slow that together explain every slow link; empty if none do."""
    left, fast = set(slow), {link for link in links if link not in slow}
    kinds = {link.kind for link in left} & {link.kind for link in fast}
    n_links = Counter(host for link in links if link.kind in kinds for host in link.hosts)
    n_slow = Counter(host for link in left if link.kind in kinds for host in link.hosts)
    blamed: list[str] = []
    for host in sorted(n_slow, key=lambda host: (-n_slow[host] / n_links[host], -n_slow[host], host)):
        explained = {link for link in left if host in link.hosts}
        if explained and n_slow[host] >= _ALL_SLOW * n_links[host]:
            blamed.append(host)
            left -= explained
    return tuple(sorted(blamed)) if not left and len(blamed) < len(n_links) else ()


def _slow_finding(trace: Trace, slow: Sequence[_Link], network: _Network, cost: _Cost) -> Finding:
    links, usual = network
    worst = min(slow, key=lambda link: link.bus_gbps / usual[link.kind])
    times = usual[worst.kind] / worst.bus_gbps
    hosts = _slow_hosts(slow, links)
    ranks = _ranks_behind(slow, hosts, trace)
    where = f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts)}" if hosts else _links_text(trace, slow)
    return Finding(
        severity=cost.severity,
        certainty="likely" if len(slow) > 1 or worst.n_calls > _MIN_CALLS else "possible",
        title=f"the links of {where} are {times:.1f} times slower than the others: {cost.text}",
        ranks=ranks,
        group=_group_ref(trace, worst.group) if len({link.group for link in slow}) == 1 else None,
        evidence=Evidence(
            certain=tuple(
                f"{link.op} between {ranks_phrase(link.ranks)} ({_group_text(trace, link.group)}): "
                f"{link.bus_gbps:.1f} GB/s instead of {usual[link.kind]:.1f} in {count_noun(link.n_calls, 'call')}"
                for link in sorted(slow, key=lambda link: link.bus_gbps / usual[link.kind])[:_MAX_SHOWN]
            ),
            notes=(_n_slow_text(len(slow), len(links)),),
            cost_pct=100 * cost.share,
            cost_ns=int(cost.per_step_ns),
            facts={
                "hosts": list(hosts),
                "groups": sorted({_group_ref(trace, link.group).name for link in slow}),
                "slowdown": round(times, 2),
                "cost_pct": round(100 * cost.share, 2),
            },
        ),
        help="test the network between these ranks alone (nccl-tests); check its error counters and NCCL_DEBUG=INFO",
    )


def _n_slow_text(n_slow: int, n_links: int) -> str:
    return (
        f"{n_slow} of {count_noun(n_links, 'link')} {'is' if n_slow == 1 else 'are'} slow, by ranks, operation and size"
    )


def _ranks_behind(slow: Sequence[_Link], hosts: tuple[str, ...], trace: Trace) -> tuple[int, ...]:
    profiles = trace.table("profiles")
    named = zip(profiles.array("rank").tolist(), profiles.text("host").tolist(), strict=True)
    on_hosts = {rank for rank, host in named if host in hosts}
    return tuple(sorted(on_hosts or {rank for link in slow for rank in link.ranks}))


def _links_text(trace: Trace, slow: Sequence[_Link]) -> str:
    groups = sorted({link.group for link in slow})
    if len(groups) == 1:
        return _group_text(trace, groups[0])
    return f"{count_noun(len(groups), 'group')} (ranks {format_ranks({r for link in slow for r in link.ranks}, 6)})"


def _group_ref(trace: Trace, number: int) -> GroupRef:
    group = measures_of(trace).matching.groups[number]
    return GroupRef(group.name, group.desc, group.ranks, group.is_inferred)


def _group_text(trace: Trace, number: int) -> str:
    group = measures_of(trace).matching.groups[number]
    name = f"group {group.name}" if group.name else f"the group of {ranks_phrase(group.ranks)}"
    return f'{name} "{group.desc}"' if group.desc else name
