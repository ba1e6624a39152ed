"""The table of what a job printed about how it went wrong."""

from __future__ import annotations

from rankscope.model.schema import Missing, TableSpec, spec

LOG_TABLES: tuple[TableSpec, ...] = (
    spec(
        "log_events",
        "Messages in a job's output that show what went wrong, and the last line of each rank.",
        """
        file_id     int32  The log.
        line        int64  Line of the file, from 1.
        rank        int32  Global rank that the line is about; NULL if the log does not show it.
        rank_from   text   How the rank is known: prefix, task, local, process, table, file, name, message or watchdog.
        local_rank  int32  Number of the rank on its node, if the launcher prints it.
        host        text   Host, if the line, its file or the launcher's table names it.
        pid         int64  Process, if the line names it.
        time_ns     int64  When the line was written; a timestamp without a time zone is taken as UTC.
        near_ns     int64  The last timestamp before the line, if the line itself has none.
        attempt     int32  How many restarts of the job came before the line.
        kind        text   watchdog-timeout, watchdog-status, traceback, exit, host-oom, xid, last-output, ...
        text        text   The message, shortened.
        fields      text   What the message says, as JSON: seq, op, n_in, enqueued, type, place, exit_code, ...
        """,
        missing=Missing("no output of the job in this capture", record_with="the job's output: rankscope job.log"),
    ),
)
