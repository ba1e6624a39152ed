"""Tables that the analysis of a hang derives from Flight Recorder dumps and thread stacks."""

from __future__ import annotations

from rankscope.model.schema import TableSpec, spec

HANG_TABLES: tuple[TableSpec, ...] = (
    spec(
        "waits",
        "Who waits for whom in a hung job: one row per waiting call and rank that holds it up.",
        """
        match_id         int32  The collective or transfer; NULL for a transfer whose other side is not recorded.
        group_id         int32  The process group.
        seq              int64  Sequence number of the collective; for a transfer, its number within the pair.
        op               text   Operation that most of the waiting ranks called.
        is_p2p           bool   True for a transfer.
        n_waiting        int32  Ranks for which it is the oldest call that has not ended.
        waiting          text   These ranks, as JSON.
        site_id          int32  The user's line from which most of them made the call (see frames).
        since_ns         int64  When the first of them made it, with clocks aligned.
        waited_ns        int64  How long the ranks have been waiting in it, as far as recorded.
        holder           int32  Global rank that holds the call up; NULL if no rank does.
        why              text   absent, behind (in an earlier call), unknown (no dump), mismatch, stalled or unpaired.
        holder_match_id  int32  The call that the holder itself is waiting in; the first, if there are several.
        is_cause         bool   True if the holder (or the call, if there is no holder) is the root cause of the hang.
        in_cycle         bool   True when the wait is part of a cycle of ranks that wait for each other.
        """,
        "derived",
        source="ranks",
    ),
    spec(
        "standings",
        "Where each rank was at the end, as far as recorded: one row per rank with a stack.",
        """
        rank      int32  Global rank.
        source    text   Whose stack it is: thread (main thread), waiting (oldest unfinished call) or last (last call).
        time_ns   int64  When the rank was there.
        reason    text   Why the thread stacks were written.
        match_id  int32  The logical collective or transfer of the call.
        stack_id  int32  The stack.
        site_id   int32  The innermost frame of the stack that is the user's own code (see frames).
        """,
        "derived",
        source="ranks",
    ),
)
