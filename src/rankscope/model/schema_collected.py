"""Tables of what the collector adds to torch's own traces: stacks of threads, metrics, and how the run ended."""

from __future__ import annotations

from rankscope.model.schema import Missing, TableSpec, spec

COLLECTED_TABLES: tuple[TableSpec, ...] = (
    spec(
        "thread_stacks",
        "Where each thread of a rank was when its stacks were written: one row per section and thread.",
        """
        file_id      int32  The file.
        rank         int32  Global rank.
        section      int32  Number of the snapshot in the file, from 0; later ones are newer.
        time_ns      int64  When the stacks were written.
        reason       text   Why they were written, according to the file.
        pid          int64  The process.
        thread_id    text   The thread, as the file names it.
        thread_name  text   Its name, if recorded.
        is_main      bool   True for the thread that runs the training loop.
        is_current   bool   True for the thread that wrote the stacks.
        line         int64  Line of the file at which the thread begins, from 1.
        stack_id     int32  Its stack.
        site_id      int32  The innermost frame of the stack that is the user's own code (see frames).
        """,
        missing=Missing(
            "no thread stacks in this capture: record with `rankscope record`, or with py-spy dump",
            setting="stacks",
            none_came="no thread stacks: they are written when a job hangs or fails, or on request",
        ),
    ),
    spec(
        "metrics",
        "Numbers that a rank recorded while it trained, or logged elsewhere, one row per value.",
        """
        file_id  int32    The file.
        rank     int32    Global rank.
        time_ns  int64    When it was logged.
        step     int64    Training step, as the rank counts them.
        name     text     step_time_s, loss, threads_without_core, host_memory_bytes, ..., or the job's own name for it.
        value    float64  The value.
        """,
        missing=Missing(
            "no metrics in this capture: record with `rankscope record`",
            record_with="rankscope record, or put TensorBoard, Weights & Biases, CSV or JSON-lines logs "
            "beside the traces",
        ),
    ),
    spec(
        "metric_summary",
        "Summary of each metric: one row per name and rank.",
        """
        name                   text     Name of the metric.
        rank                   int32    Global rank; NULL where a log does not say.
        n_values               int64    Recorded values.
        first_step             int64    First training step with a value.
        last_step              int64    Last one.
        first_value            float64  The first value.
        last_value             float64  The last value.
        min_value              float64  The smallest finite value.
        median_value           float64  The median of the finite values.
        max_value              float64  The largest finite value.
        n_not_finite           int64    Values that are NaN or infinite.
        first_not_finite_step  int64    First step with such a value.
        """,
        storage="derived",
        source="metrics",
    ),
    spec(
        "manifests",
        "What the collector recorded about each rank: what ran where and when.",
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
        command          text   Command line, as JSON, without anything that may be secret.
        environment      text   Variables that change how torch behaves, as JSON.
        run              text   Name of the run.
        started_ns       int64  When the process started collecting.
        ended_ns         int64  When it ended; NULL when it was killed.
        ending           text   How it ended: exit (by itself), exception, signal; empty if it was killed.
        exit_code        int32  Exit code of the whole job; above 128 a signal ended it.
        clock_offset_ns  int64  How far the host's clock is ahead of rank 0's, as measured over the job's store.
        clock_error_ns   int64  Uncertainty of that measurement.
        n_steps          int64  Training steps seen.
        steps_by         text   How many steps each kind of sign found, as JSON; the last sign is the one in use.
        asked            text   What the collector was asked to record, as JSON.
        """,
        missing="no manifest in this capture: it was not made by `rankscope record`",
    ),
    spec(
        "collected_files",
        "The files that each rank reported to have written.",
        """
        file_id  int32  The manifest.
        rank     int32  Global rank.
        what     text   What the file is: kineto, execution_trace, stacks, metrics, ...
        file     text   Its name within the folder.
        n_bytes  int64  Its size.
        """,
        source="manifests",
    ),
    spec(
        "collection_problems",
        "What the collector was asked to record but is missing or incomplete.",
        """
        file_id  int32  The manifest.
        rank     int32  Global rank.
        what     text   What was requested.
        problem  text   What went wrong.
        hint     text   What to do about it.
        """,
        source="manifests",
    ),
)
