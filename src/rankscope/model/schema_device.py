"""Tables computed from profiler traces on demand: what the device did with its time.

A traced process is a file and a rank: a rank that was traced twice has two rows where a rank has one otherwise.
"""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_derived = partial(spec, storage="derived", source="profiles")

DEVICE_TABLES: tuple[TableSpec, ...] = (
    _derived(
        "temporal_breakdown",
        "Per traced process: how long its device computed, did other work, and was idle.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        n_kernels        int64    Number of kernels, copies and fills.
        kernel_ns        int64    From the start of the first to the end of the last.
        idle_ns          int64    Time when nothing ran.
        compute_ns       int64    Time when at least one compute kernel ran.
        non_compute_ns   int64    Time when only communication, copies and fills ran.
        idle_pct         float64  Share of kernel_ns.
        compute_pct      float64  Share of kernel_ns.
        non_compute_pct  float64  Share of kernel_ns.
        """,
    ),
    _derived(
        "comm_overlap",
        "Per traced process: communication, and how much of it was hidden behind computation.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        comm_ns          int64    Time when at least one communication kernel ran.
        compute_ns       int64    Time when at least one compute kernel ran.
        overlap_ns       int64    Time when both ran.
        exposed_comm_ns  int64    Time when communication ran without computation.
        overlap_pct      float64  Share of the communication that computation hid.
        """,
    ),
    _derived(
        "kernel_types",
        "Time per combination of types of work that ran at once, summed over processes.",
        """
        kernel_type      text     The types, joined by +.
        total_ns         int64    Time in which exactly these ran.
        share_pct        float64  Share of the time in which anything ran.
        """,
    ),
    _derived(
        "kernel_breakdown",
        "Per rank and name of a kernel, copy or fill: how often and how long.",
        """
        rank             int32    Global rank.
        name             text     Name.
        type             text     computation, communication, memory or other.
        n_kernels        int64    How often it ran.
        total_ns         int64    Total duration of all runs.
        min_ns           int64    The shortest run.
        max_ns           int64    The longest run.
        mean_ns          int64    Mean duration.
        std_ns           int64    Standard deviation of the duration; NULL for a single run.
        share_pct        float64  Share of the rank's kernel time.
        """,
    ),
    _derived(
        "idle_breakdown",
        "Per stream and cause: time in which the stream was idle.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        device           int32    Device.
        stream           int64    Stream.
        category         text     host_wait, kernel_wait or other.
        n_gaps           int64    Number of gaps.
        idle_ns          int64    Total duration of the gaps.
        min_ns           int64    The shortest gap.
        max_ns           int64    The longest gap.
        mean_ns          int64    Mean duration of a gap.
        share_pct        float64  Share of the stream's idle time.
        """,
    ),
    _derived(
        "step_breakdown",
        "Per traced process and step: where the time went. The eight parts add up to the duration.",
        """
        file_id           int32    The trace.
        rank              int32    Global rank.
        step              int64    Step; NULL if no steps were marked and the row is the whole trace.
        start_ns          int64    Start.
        duration_ns       int64    Duration.
        kernel_ns         int64    Time when a kernel other than communication ran.
        memcpy_ns         int64    Of the remaining time: a copy ran.
        memset_ns         int64    Of the remaining time: a fill ran.
        communication_ns  int64    Of the remaining time: a collective or transfer ran.
        runtime_ns        int64    Of the remaining time: the host was in a runtime call.
        data_loader_ns    int64    Of the remaining time: the host loaded data.
        cpu_ns            int64    Of the remaining time: an operator ran on the host.
        other_ns          int64    Time with none of these: Python, other programs, waiting.
        device_busy_ns    int64    Time when anything ran on the device.
        device_busy_pct   float64  Share of the step.
        """,
    ),
    _derived(
        "device_utilisation",
        "Per traced process: how well its steps used the device.",
        """
        file_id            int32    The trace.
        rank               int32    Global rank.
        n_kernels          int64    Number of kernels, copies and fills.
        window_ns          int64    Total of the steps; the whole trace if no steps were marked.
        busy_ns            int64    Time when anything ran on the device.
        busy_pct           float64  Share of the steps.
        sm_efficiency_pct  float64  Estimated share of the multiprocessors' time in which they had a block to run.
        occupancy_pct      float64  Estimated occupancy, weighted by duration.
        tensor_core_pct    float64  Share of compute time in kernels whose names show tensor core instructions.
        """,
    ),
    _derived(
        "memory_bandwidth",
        "Bandwidth of copies and fills over time: one row per change.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        kind             text     Kind of copy or fill, as the trace names it.
        time_ns          int64    When the bandwidth changed.
        bandwidth_gbps   float64  Combined GB/s from this time on.
        """,
    ),
    _derived(
        "bandwidth_summary",
        "Per rank and kind of copy or fill: sizes, time and bandwidth.",
        """
        rank             int32    Global rank.
        kind             text     Kind of copy or fill, as the trace names it.
        n_copies         int64    Number of copies or fills.
        total_bytes      int64    Bytes moved.
        total_ns         int64    Total duration.
        median_bytes     int64    Median size.
        min_gbps         float64  Bandwidth of the slowest one.
        median_gbps      float64  Median bandwidth.
        max_gbps         float64  Bandwidth of the fastest one.
        mean_gbps        float64  Mean bandwidth, weighted by duration.
        """,
    ),
    _derived(
        "memory_timeline",
        "Memory of a device over time: one row per allocation or free.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        device_type      text     cpu, cuda, ...
        device           int32    Device.
        time_ns          int64    When it happened.
        allocated_bytes  int64    Bytes in use afterward.
        reserved_bytes   int64    Bytes that the allocator holds afterward.
        """,
    ),
    _derived(
        "memory_peaks",
        "Per traced process and device: the most memory in use, and whether it grows from step to step.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        device_type      text     cpu, cuda, ...
        device           int32    Device.
        peak_bytes       int64    The most bytes in use.
        peak_ns          int64    When the peak was reached.
        peak_step        int64    Step in which it was reached.
        peak_op          text     Innermost operator at the peak.
        peak_top_op      text     Outermost operator at the peak.
        reserved_bytes   int64    The most bytes that the allocator held.
        n_steps          int64    Steps that were compared.
        first_bytes      int64    Bytes in use at the end of the first one.
        last_bytes       int64    Bytes in use at the end of the last one.
        growth_bytes     int64    Median growth from the end of a step to the end of the next; 0 when it shrinks.
        n_grown          int64    Steps that ended with more memory in use than the step before.
        """,
    ),
    _derived(
        "counter_ops",
        "Hardware counters of a kernel range, with the operators that launched the kernel.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        range_id         int64    Number of the range.
        name             text     Name of the range.
        counter          text     Name of the counter.
        value            float64  Its value.
        duration_ns      int64    Duration of the range.
        call_id          int64    The launch that the range probably belongs to.
        op               text     Innermost operator around the launch.
        top_op           text     Outermost operator around the launch.
        op_stack         text     All operators around the launch, outermost first, as JSON.
        """,
    ),
    _derived(
        "annotation_breakdown",
        "Per rank and annotation: count, duration, and its work on the device.",
        """
        rank             int32    Global rank.
        name             text     Name.
        kind             text     host or device.
        n_ranges         int64    Number of ranges.
        total_ns         int64    Total duration of the ranges.
        min_ns           int64    Duration of the shortest range.
        max_ns           int64    Duration of the longest range.
        mean_ns          int64    Mean duration.
        n_kernels        int64    Number of kernels launched inside; on the device, running inside.
        kernel_ns        int64    Total duration of these kernels.
        """,
    ),
)
