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
        "Numbers that a rank recorded while it trained, or logged elsewhere: one row per value.",
        """
        file_id  int32    The file.
        rank     int32    Global rank.
        time_ns  int64    When it was logged.
        step     int64    Training step, as the rank counts it.
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
        rank                   int32    Global rank; NULL if the log does not show it.
        n_values               int64    Recorded values.
        first_step             int64    First training step with a value.
        last_step              int64    Last training step with a value.
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
        "host_samples",
        "What the training thread of a rank was doing, about 20 times per second.",
        """
        file_id        int32  The file.
        rank           int32  Global rank.
        time_ns        int64  When it was sampled.
        step           int64  Number of training steps that had ended.
        site           text   The innermost Python frame that is the user's own code: file:line in function.
        frame          text   The innermost Python frame.
        late_ns        int64  How late the sampler ran: another thread held the GIL, or no core was free.
        state          text   State of the thread: R (running or ready to run), S (sleeping), D (waiting for the disk).
        waits_in       text   The system call that it sleeps in, with its file; else the kernel's function, if known.
        cpu_ns         int64  Its time on a core since the previous sample.
        delayed_ns     int64  Its time waiting for a core since the previous sample.
        others_cpu_ns  int64  Time on a core of all other threads of the process since the previous sample.
        """,
        missing=Missing(
            "no samples of the host in this capture: record with `rankscope record`",
            setting="host",
            none_came="no samples of the host: the job ended at once",
            record_with="rankscope record",
        ),
    ),
    spec(
        "host_marks",
        "What a rank's training thread did for 0.5 ms or longer, with exact times.",
        """
        file_id   int32  The file.
        rank      int32  Global rank.
        kind      text   gc, loading, saving, compile, optimizer, backward, evaluation, range; recording: the collector.
        name      text   The generation that was collected, the function, the optimizer, or the range's name.
        start_ns  int64  When it began.
        end_ns    int64  When it ended.
        """,
        source="host_samples",
    ),
    spec(
        "host_threads",
        "Where the other threads of a rank were when its training thread was sampled.",
        """
        file_id  int32  The file.
        rank     int32  Global rank.
        time_ns  int64  When it was sampled.
        name     text   Name of the thread.
        site     text   The innermost Python frame that is the user's own code; empty for threads without Python.
        frame    text   The innermost Python frame.
        cpu_ns   int64  Its time on a core since it was last seen.
        """,
        source="host_samples",
    ),
    spec(
        "host_seconds",
        "What a rank's process and its machine used, about once per second.",
        """
        file_id          int32    The file.
        rank             int32    Global rank.
        time_ns          int64    When it was read.
        read_bytes       int64    Bytes that the process has read, files and sockets.
        written_bytes    int64    Bytes that it has written.
        memory_bytes     int64    Its resident memory.
        n_threads        int32    Number of its threads.
        n_major_faults   int64    Number of page faults so far that had to read from a disk.
        cpu_ns           int64    Its time on cores so far, all threads together.
        available_bytes  int64    Memory that is available on the machine.
        machine_busy_ns  int64    Busy time of the machine's cores so far, for all processes together.
        load             float64  Load of the machine: threads that are ready to run, averaged over a minute.
        """,
        source="host_samples",
    ),
    spec(
        "host_workers",
        "Where the DataLoader workers of a rank were while its training thread waited for them.",
        """
        file_id  int32  The file.
        rank     int32  Global rank.
        time_ns  int64  When its stack was taken.
        pid      int64  Process number of the worker.
        site     text   The innermost Python frame that is the user's own code.
        frame    text   The innermost Python frame.
        """,
        source="host_samples",
    ),
    spec(
        "host_machine",
        "The machine that a rank runs on: one row per number.",
        """
        file_id  int32    The file.
        rank     int32    Global rank.
        name     text     n_cores, n_usable_cores, cgroup_cores, n_torch_threads, n_omp_threads, load, ...
        value    float64  Its value when the job ended, or when it began if it was killed.
        """,
        source="host_samples",
    ),
    spec(
        "manifests",
        "What the collector recorded about each rank: what ran where and when.",
        """
        file_id          int32  The manifest.
        rank             int32  Global rank.
        world_size       int32  Number of ranks in the job.
        local_rank       int32  Number of the rank on its host.
        host             text   Host.
        pid              int64  The process.
        python           text   Version of Python.
        torch            text   Version of torch.
        platform         text   Operating system.
        command          text   Command line, as JSON, without anything that could be a secret.
        environment      text   Variables that change how torch behaves, as JSON.
        run              text   Name of the run.
        started_ns       int64  When the process started collecting.
        ended_ns         int64  When it ended; NULL when it was killed.
        ending           text   exit (by itself), exception, signal, left (gone after its last group); empty if killed.
        rank_exit_code   int32  Exit code of the rank's process, as its launcher saw it; above 128 a signal ended it.
        exit_code        int32  Exit code of the whole job; above 128 a signal ended it.
        n_killed_for_memory  int64  Processes of the launcher's container that the kernel killed for lack of memory.
        clock_offset_ns  int64  How far the host's clock is ahead of rank 0's, as measured over the job's store.
        clock_error_ns   int64  Uncertainty of that measurement.
        n_steps          int64  Number of training steps detected.
        steps_by         text   How many steps each way of detecting them found, as JSON; the last one is in use.
        asked            text   What the collector was asked to record, as JSON.
        """,
        missing="no manifest in this capture: it was not made by `rankscope record`",
    ),
    spec(
        "collected_files",
        "The files that each rank reported as written.",
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
