"""The messages of torch, NCCL, gloo and other backends about collectives, the store and the start of a job.

Every expression is linear in the line's length: no nested repetition, every number bounded.
"""

from __future__ import annotations

import re

from rankscope.read.job_log_patterns import INT, Fields, Pattern, says

_ENQUEUED = (
    rf"[Ll]ast enqueued (?:NCCL )?work: {INT}, (?:last started work: {INT}(?: ?\((\w{{1,60}})\))?[,.]? )?"
    rf"last completed (?:NCCL )?work: {INT}"
)
_WORK = (
    rf"Work[A-Z]{{0,6}}CCL\(SeqNum={INT}, OpType=(\w{{1,60}})(?:, NumelIn=(\d{{1,20}}), NumelOut=(\d{{1,20}}))?"
    rf", Timeout\(ms\)={INT}\)"
)
_WORK_NAMES = ("seq", "op", "n_in", "n_out", "timeout_ms")
# Ranks that still wait print the same numbers, and then go on.
_STORE_BARRIER = (
    rf"Timed out initializing process group in store based barrier on rank:? {INT}, for key: "
    rf"store_based_barrier_key:{INT} \(world_size={INT}, "
)
_STORE_BARRIER_NAMES = ("waiting_rank", "barrier", "expected", "joined")
_SOCKET = r"(?:SocketImpl\(.{0,200}?remote=\[([^\]\s]{1,120})\])?"


def _fingerprint(rank: str, text: str) -> Fields:
    seq = re.search(r"SequenceNumber=(\d{1,18})", text)
    op = re.search(r"OpType=(\w{1,60})", text)
    shape = re.search(r"TensorShape=\[([\d, ]{0,200})\]", text)
    dtype = re.search(r"TensorDtypes=(\w{1,40})", text)
    return {
        "rank": int(rank),
        "seq": int(seq[1]) if seq else -1,
        "op": op[1] if op else "",
        "shape": shape[1].replace(" ", "") if shape else "",
        "dtype": dtype[1] if dtype else "",
    }


def _sides(match: re.Match[str]) -> Fields:
    pairs = [match.groups()[at : at + 2] for at in range(0, len(match.groups()), 2)]
    return {"sides": [_fingerprint(rank, text) for rank, text in pairs]}


_COMM = r"([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[\d{1,4}\]"

WATCHDOG: tuple[Pattern, ...] = (
    # What follows an error in the same process: it would look like a second one.
    says("cascade", "Failed to update state for entry", rf"Failed to update state for entry {INT}", "entry"),
    says("watchdog-timeout", "ran for", _WORK + rf" ran for {INT} milliseconds", *_WORK_NAMES, "ran_ms"),
    says("watchdog-timeout", "timed out in blocking wait", _WORK + r" timed out in blocking wait", *_WORK_NAMES),
    says(
        "watchdog-error",
        "watchdog thread terminated with exception",
        r"watchdog thread terminated with exception: .{0,80}?(CUDA error: [^\n.]{1,200}|HIP error: [^\n.]{1,200})",
        "text",
    ),
    says(
        "dump-signal",
        "dump signal",
        rf"dump signal due to a collective timeout from\s{{1,3}}(this local rank|rank {INT}).{{0,200}}?{_ENQUEUED}",
        *("by", "from_rank", "enqueued", "started", "started_op", "completed"),
    ),
    says(
        "watchdog-status",
        "last enqueued",
        rf"(?:at work sequence id:|at work:|Timeout at NCCL work:) {INT}\b.{{0,60}}?{_ENQUEUED}",
        *("seq", "enqueued", "started", "started_op", "completed"),
    ),
    says("dump-observed", "Observed flight recorder", "Observed flight recorder dump signal from another rank"),
    says("watchdog-fired", "First PG on this rank to signal dumping"),
    says("dump-written", "preparing to dump debug info"),
    says("taken-down", "Some NCCL operations have failed or timed out"),
    says("taken-down", "we are taking the entire process down"),
    says("taken-down", "Terminating the process after attempting to dump debug info"),
    says(
        "watchdog-error",
        "what():",
        r"what\(\):\s{1,4}(?:\[.{1,200}\] )?((?:CUDA|HIP) error: [^\n.]{1,200})",
        "text",
    ),
    says("watchdog-stuck", "watchdog got stuck", rf"watchdog got stuck for {INT} seconds", "seconds"),
    says("watchdog-stuck", "Heartbeat monitor timed out"),
    says("gil", "acquire GIL", "Could not acquire GIL within"),
)

REPORTS: tuple[Pattern, ...] = (
    says("nan", "found NaN", rf"[Rr]ank {INT}: found NaN", "named_rank"),
    says("nan", "stopping training", r"[Ll]oss is (nan|-?inf)\b.{0,20}stopping training", "text"),
    Pattern(
        "detail-mismatch",
        "CollectiveFingerPrint",
        re.compile(
            r"Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((.{1,2000}?)\), "
            r"but Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((.{1,2000})"
        ),
        _sides,
    ),
    Pattern(
        "detail-mismatch",
        "is running inconsistent collective",
        re.compile(r"Rank (\d{1,9}) is running inconsistent collective: CollectiveFingerPrint\((.{1,2000})"),
        _sides,
    ),
    says(
        "monitored-barrier",
        "failed to pass monitoredBarrier",
        rf"Ranks? ([\d, ]{{1,4000}}) failed to pass monitoredBarrier in {INT} ms",
        *("missing", "timeout_ms"),
    ),
    says(
        "barrier-victim",
        "monitoredBarrier",
        r"successfully reached monitoredBarrier, but received errors|timed out in monitoredBarrier",
    ),
    says("desync", "are the lagging ranks", r"ranks \[([\d, ]{1,4000})\] are the lagging ranks", "missing"),
    says(
        "desync",
        "but didn't join collective",
        rf"\[([\d, ]{{1,4000}})\] finished collective #{INT}, but didn't join collective #{INT}",
        *("missing", "finished", "seq"),
    ),
)

START: tuple[Pattern, ...] = (
    says(
        "init-missing",
        "clients joined",
        rf"Timed out after {INT} seconds waiting for clients. {INT}/{INT} clients joined",
        *("seconds", "joined", "expected"),
    ),
    says("init-missing", "num_workers_joined", _STORE_BARRIER + rf"num_workers_joined={INT}", *_STORE_BARRIER_NAMES),
    says("init-missing", "worker_count=", _STORE_BARRIER + rf"worker_count={INT}", *_STORE_BARRIER_NAMES),
    says(
        "unique-id",
        "ncclUniqueId",
        rf"\[{INT}\] is setting up NCCL communicator and retr\w{{0,8}} ncclUniqueId from \[0\]",
        "group_rank",
    ),
    says("port-taken", "EADDRINUSE", rf"failed to listen on any local network address\. port: {INT}", "port"),
    says("port-taken", "ddress already in use", r"(?:EADDRINUSE|[Aa]ddress already in use)"),
    says(
        "store-unreachable",
        "client socket has",
        r"client socket has (?:timed out|failed to connect).{0,60}?\(?\[?([\w.:-]{1,120})[\]),]",
        "where",
    ),
    says("store-wait", "timeout", rf"[Ww]ait timeout after {INT} ?ms, keys: ([^\n]{{1,200}})", "timeout_ms", "keys"),
    says("store-wait", "Timeout waiting for key", r"Timeout waiting for key: ([^\n]{1,200})", "keys"),
    says("store-wait", "Socket Timeout"),
)

BROKEN: tuple[Pattern, ...] = (
    says(
        "gloo-mismatch",
        "op.preamble.length",
        rf"op\.preamble\.length <= op\.nbytes\. {INT} vs {INT}",
        *("sent", "expected"),
    ),
    says(
        "gloo-timeout",
        "Timed out waiting",
        rf"Timed out waiting {INT} ?ms for (recv|send) operation",
        *("timeout_ms", "what"),
    ),
    says("gloo-closed", "Application timeout caused pair closure"),
    says("gloo-closed", "Connection closed by peer", r"Connection closed by peer \[?([\w.:]{1,60})\]?", "peer"),
    says("gloo-closed", "gloo/transport", r"gloo/transport.{0,200}?Connection reset by peer"),
    says("gloo-connect", "connectFullMesh", r"connectFullMesh failed with (.{1,200})", "text"),
    says("remote-error", "remote process exited", "(remote process exited or there was a network error)", "text"),
    says(
        "comm-aborted",
        "communicator was aborted",
        rf"NCCL communicator was aborted(?: on rank {INT})?"
        r"(?:.{0,10}Original reason for failure was: ([^\n]{1,300}))?",
        *("group_rank", "reason"),
    ),
    says("duplicate-device", "Duplicate GPU detected", rf"rank {INT} and rank {INT} both on CUDA device", "a", "b"),
    says(
        "nccl-error",
        "NCCL ",
        r"NCCL [Ee]rror(?: in: [^,\n]{1,200}, |: | \d{1,2}: )([^,\n]{1,120})(?:, NCCL version ([\d.]{1,20}))?",
        *("text", "version"),
    ),
    says("store-gone", "recvValue", r"(?:recvValue|recvValueWithTimeout) failed on " + _SOCKET, "where"),
    says("store-gone", "sendBytes failed", r"sendBytes failed on " + _SOCKET, "where"),
    says("store-gone", "Connection was likely closed", r"(Failed to recv, got 0 bytes)", "text"),
    says("store-gone", "should dump", r"TCPStore server has shut down too early"),
    says("hccl-wait", "EI0002", r"\b(EI0002)\b", "code"),
    says("hccl-connect", "EI0006", r"\b(EI0006)\b", "code"),
    says("hccl-start", "EJ0001", r"\b(EJ0001)\b", "code"),
    says("hccl-error", "error code is", r"(Hccl\w{1,60}, error code is \d{1,6})", "text"),
    says("hccl-error", "HCCL error in", "(HCCL error in)", "text"),
)

NCCL: tuple[Pattern, ...] = (
    says(
        "nccl-init",
        "nranks",
        rf"{_COMM} NCCL INFO .{{0,80}}?comm 0x[0-9a-f]{{1,16}} "
        rf"rank {INT} nranks {INT} cudaDev (\d{{1,4}}).{{0,40}}?busId (\w{{1,20}}).{{0,120}} Init (START|COMPLETE)",
        *("node", "nccl_pid", "group_rank", "n_ranks", "device", "bus", "state"),
    ),
    says(
        "nccl-closed",
        "Connection closed by localRank",
        rf"{_COMM} .{{0,120}}?Connection closed by localRank {INT}",
        *("node", "nccl_pid", "closed_local"),
    ),
    says(
        "network",
        "Got completion",
        rf"{_COMM} .{{0,200}}?Got completion from peer ([\w.:%-]{{1,120}}?)(?:<\d{{1,6}}>)? with "
        r"(?:error |status=)(?:\w{1,40}\()?(\d{1,4})",
        *("node", "nccl_pid", "peer", "status"),
    ),
    says(
        "network",
        "async fatal event",
        rf"{_COMM} .{{0,200}}?async fatal event: ([^\n]{{1,200}})",
        "node",
        "nccl_pid",
        "text",
    ),
    says(
        "network-peer",
        "NCCL WARN",
        rf"{_COMM} .{{0,200}}?(?:Connection closed by remote peer|Call to (?:recv from|send to)|[Cc]onnect to) "
        r"([\w.:-]{1,120}?)(?:<\d{1,6}>)?(?: failed|\s|$)",
        *("node", "nccl_pid", "peer"),
    ),
    says("no-interface", "no socket interface found"),
    says("nccl-warn", "NCCL WARN", rf"{_COMM} .{{0,200}}?NCCL WARN (.{{1,300}})", "node", "nccl_pid", "text"),
    says("left-normally", "destroy_process_group", r"destroy_process_group\(\) was not called before program exit"),
)
