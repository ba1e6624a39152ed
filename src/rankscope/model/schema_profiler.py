"""Tables from profiler traces: torch.profiler (Kineto) and Nsight Systems (nsys), in the same columns.

`profiles` and `devices` are small. The others are Parquet parts, one per traced process. All times are nanoseconds
since the epoch on the clock of the process's host; `profile_clocks` has the estimated offsets of these clocks.
"""

from __future__ import annotations

from rankscope.model.schema import Missing, TableSpec, spec

_KEYS = """
    file_id          int32    The trace.
    rank             int32    Global rank.
"""


_NO_DEVICE = Missing(
    "no device events: profile with ProfilerActivity.CUDA",
    record_with="torch.profiler and ProfilerActivity.CUDA (or XPU)",
    to_record="no device events: the job used no device, or one that torch's profiler does not see",
)


def _part(name: str, doc: str, columns: str, missing: Missing | str = "") -> TableSpec:
    return spec(name, doc, _KEYS.strip("\n") + columns, "parts", source="profiles", missing=missing)


PROFILER_TABLES: tuple[TableSpec, ...] = (
    spec(
        "profiles",
        "One row per traced process; a rank may have several, one per recorded window.",
        """
        file_id          int32    The trace.
        rank             int32    Global rank.
        host             text     Host, from the trace or the file name.
        source           text     kineto or nsys.
        device_type      text     cuda, rocm, xpu, mtia, hpu, or cpu when no device was traced.
        backend          text     Communication backend that the job was set up with.
        world_size       int32    Number of ranks in the job, according to the trace.
        groups           text     The process groups as the trace lists them, as JSON.
        start_ns         int64    Start of the first event.
        end_ns           int64    End of the last event.
        n_ops            int64    Number of operators.
        n_kernels        int64    Number of kernels, copies and fills on the device.
        n_calls          int64    Number of calls into the device's runtime.
        n_steps          int64    Number of steps that were marked.
        n_comms          int64    Number of collectives and transfers.
        has_shapes       bool     True when operators have the shapes of their inputs.
        has_stacks       bool     True when Python functions were traced.
        has_memory       bool     True when allocations were traced.
        has_syncs        bool     True when synchronizations were traced as separate events.
        """,
        missing=Missing("no profiler traces in this capture", record_with="torch.profiler or Nsight Systems"),
    ),
    spec(
        "devices",
        "The devices that a trace describes.",
        """
        file_id           int32  The trace.
        rank              int32  Global rank.
        device            int32  Number of the device.
        name              text   Name of the device.
        n_sms             int32  Number of multiprocessors.
        n_bytes           int64  Memory of the device.
        max_threads       int32  Maximum number of threads per multiprocessor.
        n_warp            int32  Threads per warp.
        """,
        source="profiles",
    ),
    _part(
        "steps",
        "Training steps, as the profiler's schedule or an annotation marks them.",
        """
        step             int64    Number of the step.
        name             text     The mark as recorded.
        tid              int64    Thread that made the mark.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        """,
        missing=Missing(
            "no steps: call profiler.step() after each one",
            record_with="schedule=torch.profiler.schedule(...), and call prof.step() after every step",
            to_record="no training step was profiled",
        ),
    ),
    _part(
        "ops",
        "Operators on the host.",
        """
        op_id            int64    Number of the operator in its trace.
        name             text     Name: aten::mm, autograd::engine::evaluate_function: ..., record_param_comms, ...
        pid              int64    Process.
        tid              int64    Thread.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        external_id      int64    Number that links kernels and runtime calls to it.
        record_id        int64    Record function id, as execution traces (rf_id) and NVTX ranges (op_id) have it.
        sequence_number  int64    Links a backward operator to its forward operator.
        forward_tid      int64    Thread number of the forward operator.
        input_dims       text     Shapes of the inputs, as JSON.
        input_types      text     Types of the inputs, as JSON.
        concrete_inputs  text     Values of the scalar inputs, as JSON.
        step             int64    Step in which it started.
        """,
        missing=Missing("no ops in the traces", record_with="torch.profiler and ProfilerActivity.CPU"),
    ),
    _part(
        "runtime_calls",
        "Calls into the device's runtime and driver (launches, copies, synchronizations).",
        """
        call_id          int64    Number of the call in its trace.
        name             text     cudaLaunchKernel, hipMemcpyAsync, cudaStreamSynchronize, ...
        kind             text     runtime or driver.
        pid              int64    Process.
        tid              int64    Thread.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        correlation      int64    Links the call to the work that it put on the device.
        external_id      int64    The operator that made it.
        step             int64    Step in which it started.
        """,
        missing=_NO_DEVICE,
    ),
    _part(
        "kernels",
        "Work on the device: kernels, copies and fills.",
        """
        kernel_id        int64    Number in its trace.
        name             text     Name.
        kind             text     kernel, memcpy or memset.
        type             text     computation, communication, memory or other.
        device           int32    Device.
        context          int64    Context.
        stream           int64    Stream.
        correlation      int64    Links it to the call that launched it.
        external_id      int64    The operator that launched it, as recorded.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        n_bytes          int64    Bytes that a copy or fill moved.
        bandwidth_gbps   float64  Its bandwidth in GB/s, as recorded.
        grid             text     Blocks in the grid, as JSON.
        block            text     Threads per block, as JSON.
        registers        int32    Registers per thread.
        shared_bytes     int64    Shared memory per block.
        blocks_per_sm    float64  Blocks per multiprocessor.
        warps_per_sm     float64  Warps per multiprocessor.
        occupancy_pct    float64  Estimated occupancy in percent.
        graph_id         int64    CUDA graph that it belongs to.
        graph_node_id    int64    Its node in that graph.
        call_id          int64    The runtime call that launched it.
        launch_tid       int64    Thread of that call.
        launch_start_ns  int64    Start of that call.
        launch_end_ns    int64    End of that call.
        op_id            int64    The innermost operator that launched it.
        step             int64    Step in which it was launched (in which it started, if the launch is unknown).
        """,
        missing=_NO_DEVICE,
    ),
    _part(
        "comms",
        "Collectives and transfers as a profiler saw them: one row per rank and call.",
        """
        comm_id          int64    Number in its trace.
        kernel_id        int64    The kernel that ran it; NULL on the host (gloo).
        op               text     all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, ...
        name             text     Name of the kernel or annotation.
        is_p2p           bool     True for sends and receives.
        group_name       text     Process group; empty if the trace does not name it.
        group_desc       text     Description of the group.
        group_ranks      text     Global ranks of the group, as JSON.
        group_size       int32    Number of members of the group.
        seq              int64    Sequence number in the group.
        comms_id         text     Number of the logical collective, equal on all ranks, if torch recorded it.
        src              int32    Sender of a transfer.
        dst              int32    Receiver of a transfer.
        dtype            text     Type of the elements.
        n_in             int64    Elements of the input.
        n_out            int64    Elements of the output.
        n_bytes          int64    Message size as nccl-tests defines it: the larger of input and output.
        in_split         text     Elements sent to each member (all_to_all), as JSON.
        out_split        text     Elements received from each member, as JSON.
        device           int32    Device.
        stream           int64    Stream.
        tid              int64    Thread, if it ran on the host.
        start_ns         int64    When the rank joined.
        duration_ns      int64    From joining to the end.
        step             int64    Step in which it was launched.
        """,
        missing=Missing(
            "no collectives in the traces",
            record_with="torch.profiler in a job with collectives; record_shapes=True adds their sizes",
        ),
    ),
    _part(
        "syncs",
        "Synchronizations: what waited for which stream or event.",
        """
        kind             text     stream, event, context or stream-wait (a stream waits for an event).
        device           int32    Device.
        stream           int64    The stream that waits or is waited for.
        correlation      int64    Links it to its runtime call.
        wait_on_stream   int64    Stream whose event is waited for.
        wait_on_call     int64    Correlation of the call that recorded the event.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        """,
        missing=Missing(
            "no syncs in the traces",
            record_with="experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
        ),
    ),
    _part(
        "annotations",
        "Named ranges: record_function, NVTX, and their projections onto the device.",
        """
        annotation_id    int64    Number of the annotation in its trace.
        name             text     Name.
        kind             text     host or device.
        pid              int64    Process.
        tid              int64    Thread; NULL on the device.
        stream           int64    Stream; NULL on the host.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        external_id      int64    Number that links kernels to it.
        record_id        int64    Record function id, as execution traces have it (rf_id).
        step             int64    Step in which it started.
        """,
        missing=Missing(
            "no annotations in the traces",
            record_with="torch.profiler.record_function around the code you want to measure",
        ),
    ),
    _part(
        "memory",
        "Allocations and frees, as the profiler recorded them.",
        """
        time_ns          int64    When it happened.
        device_type      text     cpu, cuda, ... as torch numbers them.
        device           int32    Device.
        tid              int64    Thread.
        address          text     Address, in hexadecimal.
        n_bytes          int64    Bytes allocated; negative when freed.
        allocated_bytes  int64    Bytes in use afterward.
        reserved_bytes   int64    Bytes that the allocator holds afterward.
        """,
        missing=Missing(
            "no allocations: profile with profile_memory=True",
            record_with="profile_memory=True",
            to_record="no allocations: record with `rankscope record --memory`",
        ),
    ),
    _part(
        "counters",
        "Hardware counters per kernel range, as CUPTI's range profiler measured them.",
        """
        range_id         int64    Number of the range, in order of time.
        name             text     Name of the range.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        counter          text     Name of the counter.
        value            float64  Its value.
        """,
        missing=Missing(
            "no counters in the traces", record_with="experimental_config=_ExperimentalConfig(profiler_metrics=[...])"
        ),
    ),
    _part(
        "flows",
        "The two ends of links from forward to backward operators.",
        """
        flow_id          int64    Number of the link.
        is_start         bool     True at the forward operator.
        pid              int64    Process.
        tid              int64    Thread.
        time_ns          int64    Start of the operator at this end.
        """,
        missing=Missing("no flows in the traces", record_with="a backward pass in the recorded steps"),
    ),
    _part(
        "python_calls",
        "Python function calls, read only with --stacks because they make up most of a trace that has them.",
        """
        python_id        int64    Number in its trace.
        parent_id        int64    The caller.
        name             text     file(line): function, or nn.Module: ...
        tid              int64    Thread.
        start_ns         int64    Start.
        duration_ns      int64    Duration.
        """,
        missing=Missing(
            "no Python calls: profile with with_stack=True, and read with --stacks",
            record_with="with_stack=True, and read with --stacks",
            to_record="no Python calls: record with `rankscope record --with-stack`, and read with --stacks",
        ),
    ),
)
