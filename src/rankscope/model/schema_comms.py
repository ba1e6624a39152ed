"""Tables computed from profiler traces on demand: collectives matched across ranks, clocks, waits and stragglers.

Times in these tables are on one common clock: those of the traces less the offsets in `profile_clocks`.
"""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_derived = partial(spec, storage="derived", source="profiles")

COMM_TABLES: tuple[TableSpec, ...] = (
    _derived(
        "comm_groups",
        "Groups of ranks that communicate with each other, as named in profiler traces or inferred from traffic.",
        """
        group_key        int32    Number of the group in this capture.
        name             text     Process group; empty if the traces do not name it.
        desc             text     Description of the group.
        ranks            text     Global ranks of the group, as JSON.
        size             int32    Number of members of the group.
        is_inferred      bool     True when the members were inferred, not recorded.
        n_hosts          int32    Number of hosts the members are on, as far as known.
        n_calls          int64    Number of calls of all members together.
        """,
    ),
    _derived(
        "comm_matches",
        "Logical collectives and transfers: what the calls of several ranks did together.",
        """
        match_id            int64    Number of the logical call, in order of its end.
        group_key           int32    Its group in comm_groups.
        op                  text     all_reduce, all_gather, ...; transfer for a send and its recv.
        is_p2p              bool     True for a transfer.
        seq                 int64    Sequence number in the group, where it was recorded.
        step                int64    Step in which it was launched.
        dtype               text     Type of the elements.
        n_bytes             int64    Message size as nccl-tests defines it; the largest of all members.
        n_members           int32    Number of ranks that take part.
        n_seen              int32    Number of ranks whose call was found.
        is_complete         bool     True when the calls of all members were found.
        method              text     How the calls were matched: comms-id, seq, order or time.
        confidence          float64  Confidence in the match, from 0 to 1.
        start_ns            int64    When the first member joined.
        last_arrival_ns     int64    When the last member joined.
        end_ns              int64    When half of the members were done.
        last_rank           int32    The member that joined last.
        last_file_id        int32    Its trace.
        wait_ns             int64    From the first to the last arrival.
        transfer_ns         int64    From the last arrival to the end.
        end_spread_ns       int64    From the first to the last end.
        algorithm_gbps      float64  Bytes divided by transfer time, in GB/s.
        bus_gbps            float64  Bus bandwidth in GB/s, as nccl-tests defines it: comparable between group sizes.
        """,
    ),
    _derived(
        "comm_calls",
        "For each row of comms: the logical call it was part of, and where its time went.",
        """
        file_id             int32    The trace.
        rank                int32    Global rank.
        comm_id             int64    The call in comms.
        match_id            int64    The logical call in comm_matches; NULL when the calls of its peers were not found.
        group_key           int32    Its group in comm_groups; NULL when unknown.
        step                int64    Step in which it was launched.
        start_ns            int64    When the rank joined.
        end_ns              int64    When it was done.
        wait_ns             int64    From its arrival to the last member's.
        transfer_ns         int64    From the last arrival to its end.
        lateness_ns         int64    From the median arrival of the members to its own; 0 if it was earlier.
        exposed_ns          int64    The part of its time in which the rank did nothing else.
        is_last             bool     True for the member that joined last.
        """,
    ),
    _derived(
        "profile_clocks",
        "How far off each trace's clock is, estimated from the ends of the collectives that ranks share.",
        """
        file_id             int32    The trace.
        rank                int32    Global rank.
        host                text     Host of the clock; empty if unknown, and then each rank counts as a separate host.
        offset_ns           int64    How far its times are ahead of the common clock at at_ns.
        drift_ppb           float64  How much faster its clock runs, in parts per billion.
        at_ns               int64    The time at which the offset holds, on its own clock.
        error_ns            int64    How far off the offset may be; NULL when the clock could not be aligned.
        residual_ns         int64    How far apart the ends of shared calls still are: 90th percentile.
        n_shared            int64    Calls shared with other clocks.
        is_aligned          bool     True when the offset is known, or when there is no other clock.
        """,
    ),
    _derived(
        "comm_waits",
        "Per rank, group and operation: how much communication time was waiting for peers and how much moving data.",
        """
        rank                int32    Global rank.
        group_key           int32    The group in comm_groups.
        group_name          text     Its name.
        op                  text     The operation.
        n_calls             int64    Number of calls whose peers were found.
        total_ns            int64    Total duration of these calls.
        wait_ns             int64    Part of it before the last member had joined.
        transfer_ns         int64    Part of it after the last member had joined.
        exposed_ns          int64    The part of their time in which the rank did nothing else.
        wait_pct            float64  wait_ns as a percentage of total_ns.
        """,
    ),
    _derived(
        "comm_bandwidth",
        "Per group, operation and size: how fast data moved once all members had joined.",
        """
        group_key           int32    The group in comm_groups.
        group_name          text     Its name.
        group_size          int32    Number of its members.
        n_hosts             int32    Number of hosts they are on.
        op                  text     The operation.
        bucket_bytes        int64    Message sizes from this one up to twice as many bytes.
        n_matches           int64    Number of logical calls.
        n_bytes             int64    Their median size.
        transfer_ns         int64    Their median transfer time.
        algorithm_gbps      float64  Median of bytes divided by transfer time, in GB/s.
        bus_gbps            float64  Median of the bus bandwidth, in GB/s.
        slowest_gbps        float64  The lowest bus bandwidth.
        fastest_gbps        float64  The highest bus bandwidth.
        """,
    ),
    _derived(
        "comm_imbalance",
        "Per rank: how much more or less it sends and receives than the other members of the same calls.",
        """
        group_key           int32    The group in comm_groups.
        group_name          text     Its name.
        op                  text     The operation.
        rank                int32    Global rank.
        n_calls             int64    Calls in which members sent or received different amounts.
        sent_bytes          int64    Bytes it sent.
        received_bytes      int64    Bytes it received.
        mean_sent_bytes     int64    Bytes a member sent on average.
        mean_received_bytes int64    Bytes a member received on average.
        sent_ratio          float64  sent_bytes divided by the mean.
        received_ratio      float64  received_bytes divided by the mean.
        """,
    ),
    _derived(
        "arrivals",
        "Per rank and group: how often it joined last, and what that cost the others.",
        """
        rank                int32    Global rank.
        group_key           int32    The group in comm_groups.
        group_name          text     Its name.
        n_matches           int64    Number of logical calls that it took part in.
        n_last              int64    How many of them it joined last.
        last_pct            float64  n_last as a percentage of n_matches.
        mean_lateness_ns    int64    How long after the median member it joined, when it was last.
        max_lateness_ns     int64    The longest such delay.
        caused_wait_ns      int64    Total time that all others waited for it.
        """,
    ),
    _derived(
        "stragglers",
        "Per rank: how much less it communicates than its peers; the others wait for the rank with the least.",
        """
        rank                int32    Global rank.
        group_key           int32    The group whose members are its peers.
        n_peers             int32    Peers that were traced.
        n_steps             int64    Steps that were compared.
        n_late_steps        int64    Steps in which its peers spent clearly more time in communication.
        n_last              int64    Logical calls that it joined last.
        exposed_ns          int64    Its exposed communication per step, on average.
        peers_exposed_ns    int64    The same for the median peer.
        cost_ns             int64    Extra communication time of the median peer because of it, per step on average.
        step_ns             int64    Mean duration of a step.
        cost_pct            float64  cost_ns as a percentage of step_ns.
        """,
    ),
    _derived(
        "late_causes",
        "Per rank that others wait for: what it spends more time on than its peers, per step in which it is late.",
        """
        rank                int32    Global rank.
        part                text     Part of the step: computation, copies, device idle; data loading, compiling, ...
        cause               text     Why the rank is late: slow-kernels, more-work, host-bound, data-loading, ...
        is_main             bool     True for the part that explains the delay.
        own_ns              int64    Time that the rank spends on it per step.
        peers_ns            int64    Time that the median peer spends on it.
        excess_ns           int64    The difference.
        late_ns             int64    The delay to explain, per step.
        """,
    ),
)
