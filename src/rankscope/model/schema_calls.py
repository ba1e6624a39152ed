"""Collectives of all sources in one place: calls, which of them are one and the same, and the time between them."""

from __future__ import annotations

from functools import partial

from rankscope.model.schema import TableSpec, spec

_derived = partial(spec, storage="derived", source="calls")

CALL_TABLES: tuple[TableSpec, ...] = (
    spec(
        "calls",
        "Collectives and transfers of every source: one row per source, rank and call.",
        """
        source        text   Reader of the file: flight_recorder, kineto, nsys, execution_trace or desync.
        file_id       int32  The file.
        row_id        int64  Its record_id in collectives, comm_id in comms or node_id in et_collectives.
        rank          int32  Global rank.
        group_name    text   Process group; empty when unknown.
        group_ranks   text   Global ranks of the group in group order, as JSON; empty when unknown.
        generation    int32  How often a group of this name had been destroyed and recreated, as far as recorded.
        position      int64  Number of the call in its group on this rank: its seq, else counted in this file.
        op            text   all_reduce, all_gather, send, recv, barrier, ...
        is_p2p        bool   True for sends and receives; they are counted separately from collectives.
        role          text   call, member (of a coalesced group) or batch (the trailer that carries its state).
        sizes         text   Shapes of the inputs, as JSON; the number of elements, if only that is known.
        dtype         text   Type of the first input.
        n_bytes       int64  The larger of input and output, as far as the source records it.
        peer          int32  Global rank of the other side of a send or receive; NULL when unknown.
        start_ns      int64  When the rank joined, on its own clock; NULL when the source has no times.
        end_ns        int64  When it was done; NULL when unknown or still open.
        status        text   done, waiting, aborted or failed; empty when the source does not say.
        site          text   Where the user's code called it: `file:line in function`.
        record_id     int64  The same call in collectives; NULL if no Flight Recorder kept it or it is not certain.
        match_id      int64  The logical collective in call_matches; NULL when unknown.
        """,
        "derived",
        missing="no collectives in this capture",
    ),
    _derived(
        "call_matches",
        "One row per logical collective or transfer, over all ranks and all sources that saw it.",
        """
        match_id      int64  Its number, as in calls; where the Flight Recorder has it, as in matches.
        group_name    text   Process group; empty when unknown.
        group_ranks   text   Global ranks of the group in group order, as JSON; empty when unknown.
        generation    int32  How often a group of this name had been destroyed and recreated, as far as recorded.
        position      int64  Number of the collective in its group; NULL for a transfer.
        op            text   Operation that most calls have; send for a transfer that has both ends.
        is_p2p        bool   True for a transfer.
        src           int32  Global rank of the sender of a transfer.
        dst           int32  Global rank of the receiver of a transfer.
        n_members     int32  Ranks that have to take part; NULL when unknown.
        n_ranks       int32  Ranks that any source saw take part.
        n_calls       int64  Rows in calls: each rank counts once per source that saw it.
        sources       text   Sources that saw it, separated by commas.
        is_mixed      bool   True when ranks called different operations.
        duration_ns   int64  The longest time that a profiler saw a rank spend in it.
        site          text   Where the user's code called it, as far as any source knows.
        """,
    ),
    spec(
        "clocks",
        "How far each rank's clock is from the common one: one clock per host, estimated from all sources together.",
        """
        rank          int32  Global rank.
        host          text   Host of the clock, if known.
        offset_ns     int64  How far its times are ahead of the common clock.
        error_ns      int64  How far off the offset may be; 0 on a single host; NULL if the clock was used as it is.
        origin        text   Source of the offset: profiler, recorder or collector.
        """,
        "derived",
        missing="no source with clocks in this capture",
    ),
    _derived(
        "call_twins",
        "Calls in profiler traces: what was called, and the same call in a Flight Recorder dump, if that is certain.",
        """
        file_id           int32  The profiler trace.
        rank              int32  Global rank.
        row_id            int64  The call: comm_id in comms.
        op                text   Operation that was called; gloo runs reduce_scatter as an all_reduce.
        partner           int32  Position of the root or of the other side in the group, if the caller was recorded.
        group_id          int32  Its process group in groups; NULL when no Flight Recorder shows it.
        peer              int32  Global rank of the other side of a send or receive.
        recorder_file_id  int32  The Flight Recorder dump; NULL if several calls are possible, all in this group.
        record_id         int64  The call in collectives; NULL if several are possible, all in this group.
        """,
    ),
    _derived(
        "segments",
        "Time between two consecutive calls, per rank and source: what the rank did before it joined the next one.",
        """
        segment_key   int64  Equal on all ranks that made the same two calls at the same place in the program.
        source        text   Where the two calls come from, as in calls.
        file_id       int32  The file.
        rank          int32  Global rank.
        group_name    text   Process group of the next call.
        group_ranks   text   Global ranks of that group, as JSON; empty when unknown.
        generation    int32  Generation of that group.
        position      int64  Position of the next call in its group.
        before_op     text   Operation of the previous call.
        after_op      text   Operation of the next call; empty after a rank's last call.
        before_site   text   Where the previous call was made.
        after_site    text   Where the next call was made.
        before_row_id int64  The previous call, by its row_id in calls.
        after_row_id  int64  The next call, by its row_id in calls; NULL after a rank's last call.
        start_ns      int64  End of the previous call; its start, if it was still running when the next one began.
        end_ns        int64  Start of the next call; NULL after a rank's last call.
        is_overlapped bool   True if the previous call was still running when the next one began.
        """,
    ),
)
