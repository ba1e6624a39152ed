"""What a line of a job's output says: the messages of torch, NCCL, gloo, launchers, schedulers and kernels.

Every pattern is linear in the line's length: no nested repetition, every number bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

Fields = dict[str, Any]

_MAX_TEXT = 400
_INT = r"(-?\d{1,18})"
_SIZE = r"([\d.]{1,12} ?[KMGTE]?i?B(?:ytes)?)"

PG = re.compile(
    r"\[PG (?:ID (?P<id>\d{1,9}) PG )?GUID (?P<name>[^\s()]{1,200})(?:\((?P<desc>[^)]{0,200})\))?"
    r" Rank (?P<rank>\d{1,9})\]"
    r"|\[PG (?P<old>\d{1,9})(?: \((?P<old_desc>[^)]{0,200})\))? Rank (?P<old_rank>\d{1,9})\]"
)


class Message(NamedTuple):
    kind: str
    fields: Fields


class _Pattern(NamedTuple):
    kind: str
    mark: str  # must be in the line: searched for before the expression is tried
    expression: re.Pattern[str]
    fields: Callable[[re.Match[str]], Fields]


def _names(*names: str) -> Callable[[re.Match[str]], Fields]:
    """Groups of the match by name; numbers as numbers."""

    def fields(match: re.Match[str]) -> Fields:
        values = {name: match.group(number) for number, name in enumerate(names, 1)}
        return {name: _value(value) for name, value in values.items() if value is not None}

    return fields


def _value(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= 18 else text[:_MAX_TEXT]


def _fingerprints(match: re.Match[str]) -> Fields:
    sides = []
    for rank, text in ((match[1], match[2]), (match[3], match[4])):
        seq = re.search(r"SequenceNumber=(\d{1,18})", text)
        op = re.search(r"OpType=(\w{1,60})", text)
        shape = re.search(r"TensorShape=\[([\d, ]{0,200})\]", text)
        dtype = re.search(r"TensorDtypes=(\w{1,40})", text)
        sides.append(
            {
                "rank": int(rank),
                "seq": int(seq[1]) if seq else -1,
                "op": op[1] if op else "",
                "shape": shape[1].replace(" ", "") if shape else "",
                "dtype": dtype[1] if dtype else "",
            }
        )
    return {"sides": sides}


def _is(kind: str, mark: str, expression: str, *names: str) -> _Pattern:
    return _Pattern(kind, mark, re.compile(expression), _names(*names))


_ENQUEUED = (
    rf"[Ll]ast enqueued (?:NCCL )?work: {_INT}, (?:last started work: {_INT}(?: \((\w{{1,60}})\))?,? )?"
    rf"last completed (?:NCCL )?work: {_INT}"
)
_WORK = (
    rf"Work[A-Z]{{0,6}}CCL\(SeqNum={_INT}, OpType=(\w{{1,60}})(?:, NumelIn=(\d{{1,20}}), NumelOut=(\d{{1,20}}))?"
    rf", Timeout\(ms\)={_INT}\)"
)

# The first that fits names the line: those that name a cause come before those that name what it did to others.
_PATTERNS: tuple[_Pattern, ...] = (
    _is(
        "watchdog-timeout",
        "ran for",
        _WORK + rf" ran for {_INT} milliseconds",
        "seq",
        "op",
        "n_in",
        "n_out",
        "timeout_ms",
        "ran_ms",
    ),
    _is(
        "dump-signal",
        "dump signal",
        rf"dump signal due to a collective timeout from\s{{1,3}}(this local rank|rank {_INT}).{{0,200}}?{_ENQUEUED}",
        "by",
        "from_rank",
        "enqueued",
        "started",
        "started_op",
        "completed",
    ),
    _is(
        "watchdog-status",
        "last enqueued",
        rf"(?:at work sequence id:|at work:|Timeout at NCCL work:) {_INT}\b.{{0,60}}?{_ENQUEUED}",
        "seq",
        "enqueued",
        "started",
        "started_op",
        "completed",
    ),
    _is("dump-observed", "Observed flight recorder", r"Observed flight recorder dump signal from another rank"),
    _is("watchdog-stuck", "watchdog got stuck", rf"watchdog got stuck for {_INT} seconds", "seconds"),
    _is("gil", "acquire GIL", r"Could not acquire GIL within"),
    _Pattern(
        "detail-mismatch",
        "CollectiveFingerPrint",
        re.compile(
            r"Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((.{1,2000}?)\), "
            r"but Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((.{1,2000})"
        ),
        _fingerprints,
    ),
    _is(
        "monitored-barrier",
        "failed to pass monitoredBarrier",
        rf"Ranks? ([\d, ]{{1,4000}}) failed to pass monitoredBarrier in {_INT} ms",
        "missing",
        "timeout_ms",
    ),
    _is(
        "barrier-victim",
        "monitoredBarrier",
        r"successfully reached monitoredBarrier, but received errors|timed out in monitoredBarrier",
    ),
    _is(
        "init-missing",
        "clients joined",
        rf"Timed out after {_INT} seconds waiting for clients. {_INT}/{_INT} clients joined",
        "seconds",
        "joined",
        "expected",
    ),
    _is("init-missing", "num_workers_joined", rf"world_size={_INT}, num_workers_joined={_INT}", "expected", "joined"),
    _is("init-missing", "worker_count=", rf"world_size={_INT}, worker_count={_INT}", "expected", "joined"),
    _is(
        "unique-id",
        "ncclUniqueId",
        rf"\[{_INT}\] is setting up NCCL communicator and retr\w{{0,8}} ncclUniqueId from \[0\]",
        "group_rank",
    ),
    _is("port-taken", "EADDRINUSE", rf"failed to listen on any local network address\. port: {_INT}", "port"),
    _is(
        "store-unreachable",
        "client socket has",
        r"client socket has (?:timed out|failed to connect).{0,60}?\(?\[?([\w.:-]{1,120})[\]),]",
        "where",
    ),
    _is("store-wait", "timeout", rf"[Ww]ait timeout after {_INT} ?ms, keys: ([^\n]{{1,200}})", "timeout_ms", "keys"),
    _is("store-wait", "Timeout waiting for key", r"Timeout waiting for key: ([^\n]{1,200})", "keys"),
    _is(
        "scheduler",
        "*** ",
        r"\*\*\* (JOB|STEP) (\S{1,60}) ON (\S{1,200}) CANCELL?ED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
        r"(?: DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE))?",
        "what",
        "step",
        "node",
        "at",
        "reason",
    ),
    _is("scheduler", "reempted", r"\b([Pp]reempted)\b", "reason"),
    _is("host-oom", "oom_kill", r"[Dd]etected \d{1,9} oom[_-]kill event.{0,20} in (?:StepId=)?([\w.]{1,60})", "step"),
    _is(
        "host-oom", "oom-kill event", r"[Dd]etected \d{1,9} oom[_-]kill event.{0,20} in (?:step )?([\w.]{1,60})", "step"
    ),
    _is(
        "host-oom",
        "Killed process",
        rf"((?:Memory cgroup o|O)ut of memory): Killed process {_INT} \(([^)]{{1,60}})\)"
        rf"(?:.{{0,120}}?anon-rss:{_INT}kB)?",
        "by",
        "killed_pid",
        "name",
        "rss_kb",
    ),
    _is("host-oom", "OOMKilled", r"(OOMKilled)", "by"),
    _is("host-oom", "low on memory", r"killed due to the node running low on memory"),
    _is(
        "xid", "Xid", rf"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{{4,20}})\): {_INT}(?:, pid='?{_INT})?", "bus", "xid", "xid_pid"
    ),
    _is("device-assert", "Assertion `", r"\.cu:\d{1,9}: .{0,300}?Assertion `([^`]{1,200})` failed", "condition"),
    _is(
        "device-oom",
        "out of memory",
        rf"out of memory\. Tried to allocate {_SIZE}(?:.{{0,20}}GPU (\d{{1,4}}))?"
        rf"(?:.{{0,40}}?total capacity of {_SIZE} .{{0,9}} {_SIZE} is free)?",
        "wanted",
        "device",
        "capacity",
        "free",
    ),
    _is("device-ecc", "ECC error", r"(uncorrectable ECC error)", "text"),
    _is("device-lost", "GPU is lost", r"(GPU is lost)", "text"),
    _is(
        "device-lost",
        "device",
        r"CUDA error: (no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable)",
        "text",
    ),
    _is("device-error", "CUDA error:", r"CUDA error: ([^\n.]{1,200})", "text"),
    _is("device-error", "Memory access fault by GPU", r"(Memory access fault by GPU node-\d{1,6})", "text"),
    _is(
        "loader-killed",
        "is killed by signal",
        rf"DataLoader worker \(pid {_INT}\) is killed by signal: ([\w ]{{1,40}})",
        "worker_pid",
        "signal",
    ),
    _is(
        "loader-killed",
        "exited unexpectedly",
        r"DataLoader worker \(pid\(s\) ([\d, ]{1,200})\) exited unexpectedly",
        "worker_pids",
    ),
    _is("shm-full", "insufficient shared memory", r"(bus error encountered in worker)", "text"),
    _is("shm-full", "shared memory segment", r"Error while creating shared memory segment (\S{1,200})", "path"),
    _is("disk-full", "No space left on device", r"No space left on device(?:: ?'([^'\n]{1,300})')?", "path"),
    _is("disk-full", "quota exceeded", r"[Dd]isk quota exceeded(?:: ?'([^'\n]{1,300})')?", "path"),
    _is("limit", "Too many open files", r"(Too many open files)", "text"),
    _is("limit", "can't start new thread", r"(can't start new thread)", "text"),
    _is(
        "gloo-mismatch",
        "op.preamble.length",
        rf"op\.preamble\.length <= op\.nbytes\. {_INT} vs {_INT}",
        "sent",
        "expected",
    ),
    _is(
        "gloo-timeout",
        "Timed out waiting",
        rf"Timed out waiting {_INT} ?ms for (recv|send) operation",
        "timeout_ms",
        "what",
    ),
    _is("gloo-closed", "Connection closed by peer", r"Connection closed by peer \[?([\w.:]{1,60})\]?", "peer"),
    _is("gloo-connect", "connectFullMesh", r"connectFullMesh failed with (.{1,200})", "text"),
    _is("remote-error", "remote process exited", r"(remote process exited or there was a network error)", "text"),
    _is(
        "comm-aborted",
        "communicator was aborted",
        rf"NCCL communicator was aborted(?: on rank {_INT})?"
        r"(?:.{0,10}Original reason for failure was: ([^\n]{1,300}))?",
        "group_rank",
        "reason",
    ),
    _is("nccl-error", "NCCL error", r"NCCL error (?:in: [^,\n]{1,200}, )?([^,\n]{1,120})", "text"),
    _is(
        "store-gone",
        "recvValue",
        r"(?:recvValue|recvValueWithTimeout) failed on (?:SocketImpl\(.{0,200}?remote=\[([^\]\s]{1,120})\])?",
        "where",
    ),
    _is(
        "store-gone",
        "sendBytes failed",
        r"sendBytes failed on (?:SocketImpl\(.{0,200}?remote=\[([^\]\s]{1,120})\])?",
        "where",
    ),
    _is("store-gone", "Connection was likely closed", r"(Failed to recv, got 0 bytes)", "text"),
    _is("store-gone", "should dump", r"TCPStore server has shut down too early"),
    _is("connection-reset", "Connection reset by peer", r"(Connection reset by peer)", "text"),
    _is("connection-reset", "Broken pipe", r"(Broken pipe)", "text"),
    _is("rendezvous", "Rendezvous", r"(Rendezvous(?:Connection|Timeout|Closed)Error)", "type"),
    _is(
        "exit",
        "exitcode:",
        rf"failed \(exitcode: {_INT}\) local_rank: {_INT} \(pid: {_INT}\)",
        "exit_code",
        "local_rank",
        "exit_pid",
    ),
    _is(
        "exit",
        "task",
        rf"srun: error: (\S{{1,120}}): tasks? ([\d,\[\]-]{{1,200}}): "
        rf"(Killed|Out Of Memory|Aborted|Segmentation fault|Bus error|Terminated|Exited with exit code {_INT})",
        "node",
        "tasks",
        "how",
        "exit_code",
    ),
    _is(
        "exit",
        "terminated with",
        rf"[Pp]rocess {_INT} terminated with (?:signal (\w{{1,20}})|exit code {_INT})",
        "index",
        "signal",
        "exit_code",
    ),
    _is(
        "exit",
        "with PID",
        rf"process rank {_INT} with PID {_INT} on node (\S{{1,120}}) exited on signal {_INT}",
        "exit_rank",
        "exit_pid",
        "node",
        "signal_number",
    ),
    _is("exit", "return code =", rf"exits with return code = {_INT}", "exit_code"),
    _is("told-to-stop", "closing signal", rf"Sending process {_INT} closing signal (\w{{1,20}})", "told_pid", "signal"),
    _is("told-to-stop", "forcefully exiting", rf"Unable to shutdown process {_INT} via", "told_pid"),
    _is("told-to-stop", "Received SIGTERM", r"Received (SIGTERM)", "signal"),
    _is("agent-signal", "got signal", rf"Process {_INT} got signal: {_INT}", "agent_pid", "signal_number"),
    _is("agent-signal", "death signal", r"Received (?:Signals\.)?(\w{1,20}) death signal", "signal"),
    _is(
        "restart",
        "attempts left",
        rf"Worker group FAILED\. {_INT}/{_INT} attempts left; will restart",
        "left",
        "allowed",
    ),
    _is("left-early", "without an active exception", r"terminate called without an active exception"),
    _is("fatal", "Fatal Python error", r"Fatal Python error: ([^\n]{1,200})", "text"),
    _is("segfault", "Segmentation fault", r"^(Segmentation fault)", "text"),
    _is("killed", "Killed", r"^(?:[^\s:]{1,200}: line \d{1,9}: +\d{1,9} )?(Killed)\b", "text"),
    _is(
        "nccl-init",
        "nranks",
        rf"([\w.-]{{1,120}}):(\d{{1,10}}):\d{{1,10}} \[\d{{1,4}}\] NCCL INFO .{{0,80}}?comm 0x[0-9a-f]{{1,16}} "
        rf"rank {_INT} nranks {_INT} cudaDev (\d{{1,4}}).{{0,40}}?busId (\w{{1,20}}).{{0,120}} Init (START|COMPLETE)",
        "node",
        "nccl_pid",
        "group_rank",
        "n_ranks",
        "device",
        "bus",
        "state",
    ),
    _is(
        "nccl-warn",
        "NCCL WARN",
        r"([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[\d{1,4}\] .{0,200}?NCCL WARN (.{1,300})",
        "node",
        "nccl_pid",
        "text",
    ),
    _is("left-normally", "destroy_process_group", r"destroy_process_group\(\) was not called before program exit"),
)

# A message that the terminal cut in two has its beginning, but not its end.
WRAPPED = ("Watchdog caught collective operation timeout", "failure detected by watchdog at work")


def message_of(text: str) -> Message | None:
    """The first known message in the text; None for everything else."""
    for pattern in _PATTERNS:
        if pattern.mark in text and (match := pattern.expression.search(text)):
            return Message(pattern.kind, pattern.fields(match))
    return None


def group_of(text: str) -> Fields:
    """The process group that a line of the watchdog names, and the rank inside it."""
    match = PG.search(text)
    if match is None:
        return {}
    desc = match["desc"] if match["name"] else match["old_desc"]
    return {
        "group": match["name"] or match["old"],
        "desc": desc or "",
        "group_rank": int(match["rank"] or match["old_rank"]),
    }
