"""Tables of execution traces, and of their links to profiler traces of the same steps.

A node is named by the file_id of its execution trace and its node_id; a kernel by the file_id of the profiler's trace
and its kernel_id.
"""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_spec = partial(spec, source="et_traces")

EXECUTION_TABLES: tuple[TableSpec, ...] = (
    spec(
        "et_traces",
        "Execution traces: what the observer of one process recorded.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        schema           text     Version of its layout.
        pid              int64    Process.
        recorded         text     When it was started, in local time, as recorded.
        start_ms         int64    Start on the process's own steady clock, which no other trace shares.
        finish_ms        int64    End on that clock; NULL when the file is truncated.
        n_nodes          int64    Number of nodes.
        n_threads        int32    Number of threads.
        has_record_ids   bool     True when operators have the ids that profilers also record.
        is_cut           bool     True when the file is truncated.
        extra            text     All other fields of the file, as JSON.
        """,
        missing="no execution traces in this capture",
    ),
    _spec(
        "et_groups",
        "Process groups as execution traces describe them.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        name             text     Name of the group.
        desc             text     Description of the group.
        backend          text     Backends by device.
        ranks            text     Global ranks of the group, as JSON; an empty list means all ranks of the job.
        size             int32    Number of members of the group.
        """,
    ),
    _spec(
        "et_nodes",
        "Nodes of execution traces: operators, annotations, and the roots that hold them.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        node_id          int64    Number of the node in its file.
        position         int64    Position in the file, which is the order in which nodes ended.
        name             text     Name.
        kind             text     process, thread, groups (the description of all process groups) or op.
        parent_id        int64    The node that called it; NULL at the top.
        fw_parent_id     int64    The operator that was open on the forward thread; NULL if none.
        record_id        int64    Record function id, which profilers also record; NULL if none.
        seq_id           int64    Autograd's sequence number; NULL if none.
        scope            int32    Scope of the record function: 0 function, 1 backward, 7 user.
        thread           int64    Number of the thread in the file, from 1.
        fw_thread        int64    Thread of the forward operator; NULL if none.
        op_schema        text     Signature of the operator.
        inputs           text     Values, as JSON; a tensor is [tensor, storage, offset, elements, bytes each, device].
        input_shapes     text     Shapes, as JSON.
        input_types      text     Types, as JSON.
        input_strides    text     Strides, as JSON, where recorded.
        outputs          text     Values, as JSON.
        output_shapes    text     Shapes, as JSON.
        output_types     text     Types, as JSON.
        output_strides   text     Strides, as JSON, where recorded.
        kernel_backend   text     What compiled the kernel (triton).
        kernel_file      text     Where its code is.
        collective       text     Name of the collective as recorded (NCCL only).
        dtype            text     Type of its elements.
        n_in             int64    Elements of its input.
        n_out            int64    Elements of its output.
        group_name       text     Process group.
        group_desc       text     Description of the group.
        group_size       int32    Number of members of the group.
        extra            text     All other fields and attributes, as JSON.
        """,
        "parts",
    ),
    _spec(
        "et_tensors",
        "Input and output tensors of the nodes of execution traces.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        node_id          int64    The node.
        is_output        bool     True for an output.
        argument         int32    Position among the arguments, from 0.
        element          int32    Position in the list, if the argument is a list of tensors; else 0.
        tensor_id        int64    Number of the tensor; reused once it is freed.
        storage_id       int64    Number of the memory behind it; reused once it is freed.
        storage_offset   int64    Where in that memory it starts, in elements.
        n_elements       int64    Elements.
        n_item_bytes     int64    Bytes of an element.
        dtype            text     Type of the elements, as C++ names it; empty when unknown.
        device           text     Device.
        """,
        "parts",
    ),
    _spec(
        "et_pairs",
        "Which profiler trace belongs to each execution trace, and how many of its nodes were found there.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        profile_id       int32    File of the profiler trace of the same steps; NULL when none matches.
        method           text     id (both recorded the same ids), alignment (the same sequence of names) or none.
        n_nodes          int64    Number of nodes.
        n_operators      int64    Operators: nodes that are neither roots nor annotations such as steps.
        n_linkable       int64    Nodes that a profiler can see: neither the roots nor the description of the groups.
        n_linked         int64    Nodes that were found there.
        n_wrong_names    int64    Nodes whose id has a different name there; they are not linked.
        n_outside        int64    Nodes from before or after the profiler's recording.
        link_pct         float64  n_linked as a percentage of n_linkable; nodes outside the recording cannot be linked.
        covered_pct      float64  Share of the profiler trace's operators and annotations that were found.
        why              text     different-run, no-overlap, no-observer, no-ids or partial, if nodes are missing.
        """,
        "derived",
    ),
    _spec(
        "et_links",
        "For each node of an execution trace: its event in the profiler trace, and how long it took.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        node_id          int64    The node.
        profile_id       int32    File of the profiler trace; NULL when the node was not found.
        op_id            int64    The operator there (see ops); NULL if none.
        annotation_id    int64    The annotation there (see annotations); NULL if none.
        how              text     id, alignment, or none.
        tid              int64    Thread that ran it, as the profiler numbers threads.
        start_ns         int64    When it began.
        duration_ns      int64    How long it took, including everything that it called.
        own_ns           int64    How long it took, without what it called on its thread.
        is_inflated      bool     True when the observer was running, which makes short operators slower.
        duration_from    int32    File that the durations are from; not profile_id if they were transplanted.
        step             int64    Step in which it began.
        """,
        "derived",
    ),
    _spec(
        "et_edges",
        "Dependencies in a linked trace: what has to happen before what.",
        """
        kind             text     call, thread, launch, stream, sync, backward, data, handover or collective.
        rank             int32    Global rank of the later event.
        file_id          int32    Its execution trace, or profiler trace if it is a kernel.
        target           text     What the later event is: node or kernel.
        target_id        int64    Its node_id or kernel_id.
        from_rank        int32    Global rank of the earlier event.
        from_file_id     int32    Its execution trace, or profiler trace if it is a kernel.
        source           text     What the earlier event is: node or kernel.
        source_id        int64    Its node_id or kernel_id.
        """,
        "derived",
    ),
    _spec(
        "et_collectives",
        "Collectives and transfers of execution traces: one row per rank and call.",
        """
        file_id          int32    The execution trace.
        rank             int32    Global rank.
        node_id          int64    The node that called it: record_param_comms, or c10d::...
        runner           text     What ran it: node (gloo, on a thread) or kernel (NCCL).
        runner_id        int64    Its node_id or kernel_id; the caller's node_id if nothing else is known.
        runner_file_id   int32    The file that this id belongs to.
        comm_id          int64    The same call in comms, if a profiler recorded it.
        match_id         int64    The logical call of all ranks in comm_matches.
        op               text     all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, ...
        is_p2p           bool     True for sends and receives.
        group_name       text     Process group; empty when unknown.
        group_ranks      text     Global ranks of the group, as JSON; an empty list when unknown.
        group_size       int32    Number of members of the group.
        is_inferred      bool     True when no source recorded the group.
        dtype            text     Type of the elements, as in comms.
        n_in             int64    Elements that the rank sends.
        n_out            int64    Elements that the rank receives.
        n_bytes          int64    Bytes that the rank sends (for a recv: receives): what simulators call the size.
        root             int32    Global rank of the root of a broadcast, reduce, gather or scatter.
        src              int32    Sender of a transfer.
        dst              int32    Receiver of a transfer.
        tag              int64    Tag of a transfer.
        seq              int64    Sequence number in the group, where recorded.
        place            int64    Position among the calls of its group: seq, else counted per rank (and peer and tag).
        group_id         int32    Its group in groups, if a Flight Recorder has the call.
        recorder_file_id int32    The Flight Recorder dump that has it; NULL when several of its calls are possible.
        record_id        int64    The same call in collectives; NULL when several are possible.
        """,
        "derived",
        missing="no collectives in the execution traces",
    ),
)
