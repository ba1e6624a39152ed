"""Tables computed from profiler traces on demand: how the host kept the device busy."""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_derived = partial(spec, storage="derived", source="profiles")

HOST_TABLES: tuple[TableSpec, ...] = (
    _derived(
        "call_tree",
        "Operators with their position in the call tree of their thread, ordered by `position`.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        op_id            int64    The operator.
        parent_id        int64    The operator that called it; NULL at the top.
        aten_id          int64    The innermost aten operator that it is or is inside of.
        name             text     Name.
        tid              int64    Thread.
        depth            int32    Number of operators above it.
        position         int64    Its position when operators are listed from the outside in.
        last_position    int64    Position of the last operator inside it; its own if it has none.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        self_ns          int64    Duration without the operators inside it.
        is_recursive     bool     True when it is inside an operator of the same name.
        n_kernels        int64    Number of kernels that it launched itself.
        kernel_ns        int64    Total duration of these kernels.
        n_kernels_below  int64    Number of kernels launched by it and by all operators inside it.
        kernel_below_ns  int64    Total duration of these kernels.
        step             int64    Step in which it started.
        """,
    ),
    _derived(
        "op_breakdown",
        "Operators by name: host time, and the device time of the kernels that they launched.",
        """
        rank             int32    Global rank.
        name             text     Name.
        n                int64    How often it ran.
        total_ns         int64    Host time from start to end; a run inside a run of the same name counts once.
        self_ns          int64    Host time without the operators inside it.
        mean_ns          int64    Mean duration of a run.
        n_kernels        int64    Number of kernels that it launched itself.
        kernel_ns        int64    Total duration of these kernels.
        n_kernels_below  int64    Number of kernels launched by it and by the operators inside it.
        kernel_below_ns  int64    Total duration of these kernels.
        """,
    ),
    _derived(
        "kernel_sequences",
        "Sequences of kernels that an operator launches repeatedly.",
        """
        rank             int32    Global rank.
        operator         text     The outermost operator with this sequence.
        kernels          text     Names of its kernels in order of time, as JSON.
        n_kernels        int64    Length of the sequence.
        n                int64    How often it ran.
        kernel_ns        int64    Total duration of its kernels over all runs.
        cpu_ns           int64    Total host time of the operator over all runs.
        """,
    ),
    _derived(
        "op_kernel_delays",
        "How long an aten operator takes to launch, and its kernel to start.",
        """
        rank             int32    Global rank.
        operator         text     The innermost aten operator around the launch.
        kernels          text     Names of the kernels that one run launches, in order of time, as JSON.
        n_kernels        int64    Number of kernels.
        n                int64    How often it ran.
        to_launch_ns     int64    Mean time from its start to the start of its first launch.
        to_kernel_ns     int64    Mean time from the start of that launch to the start of the first kernel.
        """,
    ),
    _derived(
        "module_breakdown",
        "Modules (nn.Module) by name: host time, and device time of the kernels launched inside.",
        """
        rank             int32    Global rank.
        module           text     Name of the module.
        parent           text     The module that called it; empty at the top.
        depth            int32    Number of modules above it.
        source           text     stacks (Python calls) or annotations.
        n                int64    How often it ran.
        total_ns         int64    Host time from start to end.
        self_ns          int64    Host time without the modules inside it.
        n_kernels        int64    Number of kernels launched in it but outside the modules inside it.
        kernel_ns        int64    Total duration of these kernels.
        n_kernels_below  int64    Number of kernels launched in it and in the modules inside it.
        kernel_below_ns  int64    Total duration of these kernels.
        n_kernels_backward  int64  Number of kernels in the backward pass of it and of the modules inside it.
        kernel_backward_ns  int64  Total duration of these kernels.
        """,
    ),
    _derived(
        "launch_stats",
        "Calls that put work on the device.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        call_id          int64    The call.
        name             text     cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, hipMemcpyAsync, ...
        kernel           text     Name of its first kernel.
        n_kernels        int64    Kernels that it launched: many for a graph.
        stream           int64    Stream of its first kernel.
        start_ns         int64    Start of the call.
        cpu_ns           int64    Duration of the call.
        gpu_ns           int64    Total duration of its kernels.
        delay_ns         int64    From the end of the call to the start of its first kernel; 0 if it started earlier.
        step             int64    Step in which it was launched.
        """,
    ),
    _derived(
        "launch_summary",
        "Launches per rank: how many were short, slow or delayed.",
        """
        rank             int32    Global rank.
        n_launches       int64    Number of launches.
        n_kernels        int64    Number of kernels that they launched.
        n_short          int64    Launches that took longer than their kernels.
        n_slow           int64    Launches that took longer than the setting slow_us.
        n_delayed        int64    Launches whose kernel started more than the setting delay_us after the launch ended.
        cpu_ns           int64    Host time in launches.
        gpu_ns           int64    Total duration of the kernels.
        median_cpu_ns    int64    Median duration of a launch.
        median_gpu_ns    int64    Median time of a launch's kernels.
        median_delay_ns  int64    Median delay.
        max_delay_ns     int64    Longest delay.
        """,
    ),
    _derived(
        "queue_length",
        "How many launches were queued on their stream: one row per change.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        device           int32    Device.
        stream           int64    Stream.
        time_ns          int64    When it changed.
        n_queued         int64    Number of launches whose first kernel has not started yet.
        step             int64    Step of the launch or kernel that changed it.
        """,
    ),
    _derived(
        "queue_summary",
        "How many launches were queued: one row per rank and stream.",
        """
        rank             int32    Global rank.
        device           int32    Device.
        stream           int64    Stream.
        n_changes        int64    Number of changes in queue length.
        mean_queued      float64  Mean length over time.
        median_queued    float64  Median length over the changes.
        p95_queued       float64  95th percentile of the length over the changes.
        max_queued       int64    Maximum length.
        """,
    ),
    _derived(
        "queue_blocked",
        "How long the launch queue of a stream was full: the host then waits inside the launch.",
        """
        rank             int32    Global rank.
        device           int32    Device.
        stream           int64    Stream.
        n_blocked        int64    How often the queue became full.
        blocked_ns       int64    Time at or above the setting max_queue.
        longest_ns       int64    Longest time that it was full without a break.
        window_ns        int64    From the first to the last change of any queue of the rank.
        blocked_pct      float64  Share of that window.
        """,
    ),
    _derived(
        "host_waits",
        "Calls in which the host waited for the device.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        call_id          int64    The call.
        name             text     cudaStreamSynchronize, cudaMemcpy, a blocking copy, ...
        tid              int64    Thread.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        op_id            int64    The innermost operator around it.
        operator         text     Its name; empty if none.
        root_operator    text     Name of the outermost operator around it.
        annotation       text     The innermost annotation around it, other than steps.
        step             int64    Step in which it started.
        """,
    ),
    _derived(
        "sync_calls",
        "Time that the host waited for the device, by call and operator, and the idle time that followed.",
        """
        rank             int32    Global rank.
        name             text     The call.
        operator         text     The innermost operator around it; empty if none.
        root_operator    text     The outermost operator around it.
        annotation       text     The innermost annotation around it, other than steps.
        n                int64    Number of calls.
        total_ns         int64    Host time in it.
        max_ns           int64    Duration of the longest call.
        n_idle           int64    How many of them were followed by an idle device.
        idle_ns          int64    How long the device was then idle because the host had no work ready.
        """,
    ),
    _derived(
        "idle_gaps",
        "Gaps in which a device ran nothing on any stream, and what the next kernel waited for.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        device           int32    Device.
        start_ns         int64    End of the previous work.
        duration_ns      int64    Time until the next kernel started.
        cause            text     data, sync, launch, host, device, or unknown if the launch is not in the trace.
        late_ns          int64    Part of the gap before the launch of the next kernel started.
        delay_ns         int64    Part of the gap after that launch had ended.
        kernel_id        int64    The kernel that ended the gap.
        wait_call_id     int64    The host wait (host_waits) that caused it, if the cause is sync.
        step             int64    Step of the kernel that ended the gap.
        """,
    ),
    spec(
        "trace_diff",
        "Operators and kernels of two captures side by side: `rankscope metrics PATH diff --against OTHER`.",
        """
        name             text     Name.
        kind             text     op or kernel.
        n_before         int64    How often it ran before.
        n_after          int64    How often it runs now.
        total_before_ns  int64    Its time before.
        total_after_ns   int64    Its time now.
        diff_count       int64    n_after - n_before.
        diff_ns          int64    total_after_ns - total_before_ns.
        count_change     text     added, deleted, increased, decreased or unchanged: by how often it runs.
        """,
        source="profiles",
    ),
)
