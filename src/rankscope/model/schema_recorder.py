"""Tables from Flight Recorder dumps, and those that describe the capture as a whole."""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import Missing, TableSpec, spec

EARLIER_MOMENT = "is from an earlier time"  # so begins files.problem of a stale dump that is from this very run
# So ends files.problem of an archive or a folder of which not all could be looked into.
MAY_HOLD_MORE = "what else is in it is unknown"
_spec = partial(spec, source="ranks")
_NO_DUMPS = Missing(
    "no Flight Recorder dumps in this capture",
    setting="recorder",
    none_came="the Flight Recorder was on, but the job made no call that it records",
)

RECORDER_TABLES: tuple[TableSpec, ...] = (
    spec(
        "files",
        "Every file that was looked at, and whether it was read.",
        """
        file_id   int32  Number of the file in this capture.
        path      text   Path of the file (archive members after "!").
        source    text   Reader that parsed the file; empty if no reader recognizes the format.
        rank      int32  Global rank, taken from the name or the content.
        host      text   Host, if the name shows it.
        n_bytes   int64  Size on disk.
        status    text   read, damaged, duplicate, stale, other-run, other-capture, other-world or ignored.
        problem   text   What is wrong with it, in one sentence.
        hint      text   What to do about it.
        """,
    ),
    spec(
        "ranks",
        "Every rank that left a readable trace.",
        """
        rank             int32  Global rank.
        host             text   Host, if the file names show it.
        file_id          int32  The Flight Recorder dump of the rank.
        recorder         text   Who wrote it: torch, torchcomms, rankscope, or both if two dumps were merged.
        version          text   Version of the dump's layout.
        comm_version     text   Version of the communication library.
        n_calls          int64  Calls kept in the dump.
        n_dropped        int64  Calls that the ring buffer had already overwritten.
        last_created_ns  int64  When the rank enqueued its newest call.
        written_ns       int64  When the dump was written, if recorded.
        clock_offset_ns  int64  Estimated offset of the host's clock from the job's median clock.
        clock_error_ns   int64  Uncertainty of that estimate; NULL if the clock was used as it is.
        """,
        missing=_NO_DUMPS,
    ),
    _spec(
        "group_config",
        "Process groups as each rank's dump describes them.",
        """
        file_id  int32  The dump.
        rank     int32  Global rank that wrote it.
        name     text   Name of the group.
        description  text   Description of the group.
        members  text   Global ranks in group order, as JSON.
        """,
        missing=_NO_DUMPS,
    ),
    _spec(
        "group_status",
        "The progress counters that each rank keeps per process group; they never wrap.",
        """
        file_id         int32  The dump.
        rank            int32  Global rank that wrote it.
        pg_id           int32  The group's number in that process.
        group_name      text   Its name, from the calls in the same dump; empty if none are left.
        last_enqueued   int64  Sequence number of the newest collective enqueued.
        last_started    int64  Newest collective seen to start.
        last_completed  int64  Newest collective seen to complete.
        """,
    ),
    _spec(
        "groups",
        "Process groups, merged over all ranks; a group is identified by its name and its members in order.",
        """
        group_id  int32  Number of the group in this capture.
        name      text   Name that torch gave it.
        description  text   What the group is for (default_pg, dp, tp, ...).
        size      int32  Number of members.
        origin    text   Where the members are known from: config, world, name-hash or use.
        inferred  bool   True if the members were inferred from the ranks that use the name.
        generation  int32  How often a group of this name had been destroyed and recreated, as far as recorded.
        """,
        missing=_NO_DUMPS,
    ),
    _spec(
        "group_members",
        "The members of each group in group order.",
        """
        group_id    int32  The group.
        group_rank  int32  Position in the group.
        rank        int32  Global rank.
        """,
    ),
    _spec(
        "group_progress",
        "Each member's collectives in each group: overwritten before first_seq, not joined after last_seq.",
        """
        group_id        int32  The group.
        rank            int32  Global rank.
        first_seq       int64  Oldest sequence number kept; NULL if none.
        last_seq        int64  Newest sequence number enqueued; NULL when unknown.
        last_completed  int64  Newest sequence number known to be complete.
        n_kept          int64  Number of calls kept.
        known           bool   False when the rank left no readable dump, or its ring buffer has no call of the group.
        """,
    ),
    _spec(
        "collectives",
        "One row per rank and call, as the Flight Recorder recorded it.",
        """
        file_id         int32  The dump.
        rank            int32  Global rank.
        record_id       int64  The rank's own counter over all groups; not comparable between ranks.
        group_id        int32  The process group.
        match_id        int32  The logical collective or transfer that this call is part of.
        group_name      text   Name of the group.
        group_desc      text   Description of the group.
        pg_id           int32  The group's number in the rank's process.
        seq             int64  Sequence number of the collective in its group.
        p2p_seq         int64  Sequence number among the rank's sends and receives in the group.
        op_id           int64  Counter of logical operations in the group.
        op              text   Operation: all_reduce, all_gather, send, recv, barrier, ...
        backend         text   nccl, gloo, ...
        name            text   The name as recorded.
        is_p2p          bool   True for sends, receives and their batches.
        role            text   call, member (of a coalesced group) or batch (the trailer that carries its state).
        peer            int32  Global rank of the other side of a send or receive.
        state           text   scheduled, started or completed, as recorded.
        status          text   done, waiting, aborted (completed only by the abort after its timeout) or failed.
        status_inferred bool   True when the status comes from peers or later calls, not from the rank's own record.
        retired         bool   True when the watchdog retired it.
        created_ns      int64  When the CPU enqueued it.
        started_ns      int64  When its start was detected.
        completed_ns    int64  When its end was detected.
        duration_ns     int64  Time on the device, if recorded.
        timeout_ns      int64  Its timeout.
        input_sizes     text   Shapes of the inputs, as JSON.
        output_sizes    text   Shapes of the outputs, as JSON.
        input_dtypes    text   Types of the inputs, as JSON.
        output_dtypes   text   Types of the outputs, as JSON.
        n_input_bytes   int64  Bytes of the inputs; NULL when a type is unknown.
        n_output_bytes  int64  Bytes of the outputs; NULL when a type is unknown.
        stack_id        int32  The call stack.
        site_id         int32  The frame of the stack that is the user's code (see frames).
        thread          text   Name of the thread that made the call.
        """,
        missing=_NO_DUMPS,
    ),
    _spec(
        "matches",
        "One row per logical collective (all ranks of the group) or transfer (one send with one receive).",
        """
        match_id          int32  Number of the match.
        group_id          int32  The process group.
        is_p2p            bool   True for a transfer.
        seq               int64  Sequence number of the collective; for a transfer, its number within the pair.
        op                text   Operation that most ranks called.
        src               int32  Global rank of the sender of a transfer.
        dst               int32  Global rank of the receiver of a transfer.
        n_members         int32  Ranks that have to join.
        n_joined          int32  Ranks whose dump has the call.
        n_evicted         int32  Ranks whose ring buffer had overwritten it: no evidence either way.
        n_missing         int32  Ranks that have certainly not joined.
        n_unknown         int32  Ranks without a readable dump.
        n_done            int32  Ranks that finished it.
        n_signatures      int32  How many combinations of operation, sizes and types the joined ranks called it with.
        state             text   done, waiting, missing (a rank has not joined) or mismatch.
        first_created_ns  int64  When the first rank joined (that rank's clock).
        last_created_ns   int64  When the last rank joined (that rank's clock).
        last_rank         int32  The rank that joined last, with clocks aligned.
        """,
        missing=_NO_DUMPS,
    ),
    _spec(
        "stacks",
        "Call stacks, innermost frame first; equal stacks are stored once.",
        """
        stack_id  int32  The stack.
        depth     int32  Position; 0 is the innermost frame.
        frame_id  int32  The frame.
        """,
    ),
    _spec(
        "frames",
        "Source locations that appear in stacks.",
        """
        frame_id  int32  The frame.
        file      text   Source file.
        line      int32  Line.
        function  text   Function.
        is_user   bool   False for frames of torch, of Python itself and of launchers.
        language  text   python or c++, if the file shows it; library frames have no line.
        """,
    ),
)
