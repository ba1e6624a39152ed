"""What the matched calls add up to: waiting versus moving data, bandwidth, uneven shares, who arrives last."""

from __future__ import annotations

from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace

_OF_MATCHES = "comm_matches AS m JOIN comm_groups AS g USING (group_key)"

# What each member of a logical call sends and receives, where not all have the same share.
UNEVEN_SHARES = f"""
        shares AS (
            SELECT m.group_key, m.match_id, m.op, g.name AS group_name, c.rank, c.exposed_ns,
                   r.n_in * r.n_bytes / greatest(r.n_in, r.n_out, 1) AS sent,
                   r.n_out * r.n_bytes / greatest(r.n_in, r.n_out, 1) AS received
            FROM {_OF_MATCHES} JOIN comm_calls AS c USING (match_id) JOIN comms AS r USING (file_id, rank, comm_id)
            WHERE NOT m.is_p2p AND {{where}}
        ), means AS (
            SELECT match_id, avg(sent) AS mean_sent, avg(received) AS mean_received FROM shares GROUP BY match_id
            HAVING min(sent) < max(sent) OR min(received) < max(received)
        ), uneven AS (SELECT * FROM shares JOIN means USING (match_id))
"""


@metric("comm_waits", "comm_waits", needs=("comms",))
def comm_waits(trace: Trace, selection: Selection) -> Table:
    """One row per rank, group and operation: how long its calls waited for others, and how long they moved data.

    wait_ns runs from the rank's own arrival to the last member's, transfer_ns from there to the rank's own end, both
    summed over the calls whose partners were found. exposed_ns is the part of both when the rank did nothing else.
    """
    return trace.sql(f"""
        SELECT c.rank, m.group_key, g.name AS group_name, m.op, count(*) AS n_calls,
               sum(c.end_ns - c.start_ns) AS total_ns, sum(c.wait_ns) AS wait_ns,
               sum(c.transfer_ns) AS transfer_ns, sum(c.exposed_ns) AS exposed_ns,
               100.0 * sum(c.wait_ns) / nullif(sum(c.end_ns - c.start_ns), 0) AS wait_pct
        FROM {_OF_MATCHES} JOIN comm_calls AS c USING (match_id)
        WHERE c.wait_ns IS NOT NULL AND {selection.where(alias="c")}
        GROUP BY ALL ORDER BY wait_ns DESC, c.rank, m.group_key, m.op
        """).table("comm_waits")


@metric("comm_bandwidth", "comm_bandwidth", needs=("comms",))
def comm_bandwidth(trace: Trace, selection: Selection) -> Table:
    """One row per group, operation and size (in powers of two): how fast data moved once all members had joined.

    Only calls for which all members were found are counted: if one were missing, waiting for it would look like moving
    data. The bandwidths are defined in comm_matches.
    """
    return trace.sql(f"""
        SELECT m.group_key, g.name AS group_name, g.size AS group_size, g.n_hosts, m.op,
               (1::BIGINT << floor(log2(m.n_bytes))::INTEGER) AS bucket_bytes, count(*) AS n_matches,
               median(m.n_bytes)::BIGINT AS n_bytes, median(m.transfer_ns)::BIGINT AS transfer_ns,
               median(m.algorithm_gbps) AS algorithm_gbps, median(m.bus_gbps) AS bus_gbps,
               min(m.bus_gbps) AS slowest_gbps, max(m.bus_gbps) AS fastest_gbps
        FROM {_OF_MATCHES}
        WHERE m.is_complete AND m.n_bytes > 0 AND m.algorithm_gbps IS NOT NULL
          AND {_without_rank(selection).where(alias="m")}
        GROUP BY ALL ORDER BY m.group_key, m.op, bucket_bytes
        """).table("comm_bandwidth")


def _without_rank(selection: Selection) -> Selection:
    """Logical calls are of many ranks."""
    return Selection(None, selection.steps, selection.since_ns, selection.until_ns)


@metric("comm_imbalance", "comm_imbalance", needs=("comms",))
def comm_imbalance(trace: Trace, selection: Selection) -> Table:
    """One row per rank and group: how much more or less it sends and receives than the other members.

    Only calls in which the members' shares differ are counted: all_to_all with uneven splits, above all in
    mixture-of-experts layers, and uneven gathers. A ratio of 2 means twice the mean of the members.
    """
    return trace.sql(f"""
        WITH {UNEVEN_SHARES.format(where=selection.where(alias="c"))}
        SELECT group_key, group_name, op, rank, count(*) AS n_calls, sum(sent)::BIGINT AS sent_bytes,
               sum(received)::BIGINT AS received_bytes, sum(mean_sent) AS mean_sent_bytes,
               sum(mean_received) AS mean_received_bytes, sum(sent) / nullif(sum(mean_sent), 0) AS sent_ratio,
               sum(received) / nullif(sum(mean_received), 0) AS received_ratio
        FROM uneven GROUP BY group_key, group_name, op, rank
        ORDER BY greatest(sent_ratio, received_ratio) DESC, group_key, rank
        """).table("comm_imbalance")


@metric("arrivals", "arrivals", needs=("comms",))
def arrivals(trace: Trace, selection: Selection) -> Table:
    """One row per rank and group: how often it arrived last, how late, and how long all others together waited for it.

    Lateness is counted from the median arrival of the members (for two members, from the other's arrival). The rank
    that arrives last is where to look, not necessarily the cause: it may have been held up in another group. See
    stragglers for that.
    """
    return trace.sql(f"""
        WITH waits AS (
            SELECT match_id, sum(wait_ns) AS wait_ns FROM comm_calls WHERE match_id IS NOT NULL GROUP BY match_id
        )
        SELECT c.rank, m.group_key, g.name AS group_name, count(*) AS n_matches, count(*) FILTER (c.is_last) AS n_last,
               100.0 * n_last / n_matches AS last_pct,
               avg(c.lateness_ns) FILTER (c.is_last)::BIGINT AS mean_lateness_ns,
               max(c.lateness_ns) FILTER (c.is_last) AS max_lateness_ns,
               coalesce(sum(w.wait_ns) FILTER (c.is_last), 0) AS caused_wait_ns
        FROM {_OF_MATCHES} JOIN comm_calls AS c USING (match_id) JOIN waits AS w USING (match_id)
        WHERE c.wait_ns IS NOT NULL AND {selection.where(alias="c")}
        GROUP BY c.rank, m.group_key, g.name ORDER BY caused_wait_ns DESC, c.rank, m.group_key
        """).table("arrivals")
