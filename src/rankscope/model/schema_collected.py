"""Tables of what the collector adds to torch's own traces: stacks of threads, metrics, and what became of the run."""

from __future__ import annotations

from rankscope.model.schema import TableSpec, spec

COLLECTED_TABLES: tuple[TableSpec, ...] = (
    spec(
        "thread_stacks",
        "Where each thread of a rank stood when its stacks were written: one row per section and thread.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        section      int32  Which writing of the file it is, from 0; a later one tells what is newer.
        time_ns      int64  When the stacks were written.
        reason       text   Why they were written, as the file says it.
        pid          int64  The process.
        thread_id    text   The thread, as the file names it.
        thread_name  text   Its name, where that is told.
        is_main      bool   True for the thread that runs the training loop.
        is_current   bool   True for the thread that wrote the stacks.
        line         int64  Line of the file at which the thread begins, from 1.
        stack_id     int32  Its stack.
        site_id      int32  The innermost frame of the stack that is the user's own code (see frames).
        """,
    ),
    spec(
        "metrics",
        "Numbers that a rank recorded while it trained, or logged elsewhere, one row per value.",
        """
        file_id  int32    The file.
        rank     int32    Global rank.
        time_ns  int64    When it was told.
        step     int64    Training step, as the rank counts them.
        name     text     step_time_s, loss, threads_without_core, host_memory_bytes, ..., or the job's own name for it.
        value    float64  The value.
        """,
    ),
    spec(
        "metric_summary",
        "Each metric of the job at a glance: one row per name and rank.",
        """
        name                   text     Name of the metric.
        rank                   int32    Global rank; NULL where a log does not tell it.
        n_values               int64    Values that were recorded.
        first_step             int64    First training step with a value.
        last_step              int64    Last one.
        first_value            float64  The first value.
        last_value             float64  The last value.
        min_value              float64  The smallest that is a number.
        median_value           float64  The median of those that are.
        max_value              float64  The largest that is a number.
        n_not_finite           int64    Values that are NaN or infinite.
        first_not_finite_step  int64    First step with such a value.
        """,
        storage="derived",
    ),
    spec(
        "manifests",
        "What the collector was told about each rank: who ran what, where and when.",
        """
        file_id          int32  The manifest.
        rank             int32  Global rank.
        world_size       int32  Ranks of the job.
        local_rank       int32  Number of the rank on its host.
        host             text   Host.
        pid              int64  The process.
        python           text   Version of Python.
        torch            text   Version of torch.
        platform         text   Operating system.
        command          text   Command line, as JSON, what may be secret left out.
        environment      text   Variables that change how torch behaves, as JSON.
        run              text   Name of the run.
        started_ns       int64  When the process began to collect.
        ended_ns         int64  When it ended; NULL when it did not come to that.
        ending           text   How it ended: exit (by itself), exception, signal; empty if it was killed.
        exit_code        int32  Of the whole job; above 128 a signal ended it.
        clock_offset_ns  int64  What the host's clock is ahead of that of rank 0, as measured over the job's store.
        clock_error_ns   int64  Uncertainty of that measurement.
        n_steps          int64  Training steps that were seen.
        steps_by         text   By which sign how many of them were found, as JSON; the last sign is the one that held.
        asked            text   What was asked of the collector, as JSON.
        """,
    ),
    spec(
        "collected_files",
        "The files that each rank says it has written.",
        """
        file_id  int32  The manifest.
        rank     int32  Global rank.
        what     text   What the file is: kineto, execution_trace, stacks, metrics, ...
        file     text   Its name within the folder.
        n_bytes  int64  Its size.
        """,
    ),
    spec(
        "collection_problems",
        "What was asked of the collector and is not there, or not whole.",
        """
        file_id  int32  The manifest.
        rank     int32  Global rank.
        what     text   What was asked for.
        problem  text   What went wrong.
        hint     text   What to do about it.
        """,
    ),
)
