"""Tables computed from profiler traces on demand: the critical path, and how fast the job would be without slow parts.

Times in these tables are on the common clock of `profile_clocks`.
"""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_derived = partial(spec, storage="derived", source="profiles")

PATH_TABLES: tuple[TableSpec, ...] = (
    _derived(
        "critical_path",
        "The critical path through all ranks: what determined how long the job took, piece by piece in order of time.",
        """
        rank             int32    Global rank on which it happened.
        file_id          int32    The trace.
        kind             text     host, data-loading, launch, kernel, copy, communication, kernel-gap or sync.
        name             text     The operator, call or kernel; empty if the host was outside any operator.
        start_ns         int64    Start.
        duration_ns      int64    Duration: the pieces of a window add up to it.
        step             int64    Step of the job in which it ended.
        stream           int64    Stream; NULL on the host.
        waited_for       text     What had to end before it could start.
        """,
    ),
    _derived(
        "path_summary",
        "What the critical path consists of, by kind and rank.",
        """
        rank             int32    Global rank.
        kind             text     As in critical_path.
        n_pieces         int64    Number of pieces of the path.
        duration_ns      int64    Total duration of these pieces.
        share_pct        float64  Share of the whole path.
        main_name        text     The name with the most time.
        main_ns          int64    Time spent under that name.
        """,
    ),
    _derived(
        "pipeline_bubbles",
        "Per rank of a pipeline and step: how long it waited for neighboring stages.",
        """
        rank             int32    Global rank.
        stage            int32    Its stage, from 0.
        step             int64    Number of the step.
        start_ns         int64    End of the rank's previous step, or start of the first.
        step_ns          int64    From there to the end of this step on host and device.
        compute_ns       int64    Time in computation, copies and fills.
        bubble_ns        int64    Time when the compute stream waits for a neighboring stage.
        wait_ns          int64    Time when it waits for another member of a collective.
        transfer_ns      int64    Time when it is idle while data moves.
        idle_ns          int64    Rest of the time: launches, gaps between kernels, the host.
        bubble_pct       float64  bubble_ns as a percentage of step_ns.
        """,
    ),
    _derived(
        "what_if",
        "How long a step would take if ranks, operations, stages or transfers were as fast as their peers.",
        """
        kind             text     recorded, replayed, all, ranks, balance, rank, stage, last-stage, worst-ranks or type.
        what             text     What is assumed to be different.
        rank             int32    The rank, if the assumption is about a single rank.
        stage            int32    The pipeline stage, if the assumption is about a single stage.
        step_ns          int64    Mean duration of a step if this were as fast as its peers.
        saved_ns         int64    How much shorter that is than the replayed step.
        slowdown         float64  How many times as long a step is if only this is slower than its peers.
        share_pct        float64  saved_ns as a share of what would be saved if everything were as fast as its peers.
        """,
    ),
)
