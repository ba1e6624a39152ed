"""H130 to H133: the cause of a job's end, from what its ranks printed."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.logs.events import Event, exit_code
from rankscope.analyze.logs.verdicts import Verdict
from rankscope.analyze.logs.wording import finding, hosts_of, last_lines, of_cause, quoted, signal_name, who
from rankscope.analyze.logs.xid import xid_of
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import rule
from rankscope.model.finding import Action, Finding, count_noun
from rankscope.model.tables import Trace


@rule("H130", "log-failure", needs=("log_events",))
def log_failure(trace: Trace) -> Iterator[Finding]:
    """A rank raised an exception or crashed, and the log shows that it was the first.

    What it means: the log shows a traceback or a fatal error that is not a consequence of another rank's failure.
    Timeouts, closed connections, aborted communicators and SIGTERM are consequences: ranks that print them are victims.

    Why it happens: an error in the program or its data on that rank: a bad sample, a missing file, out of memory, a
    full disk, too many open files.

    What to do: fix the line that the finding names. If all ranks raised the same exception, look for a common cause.

    What could fool it: a traceback that was caught and printed counts only if the process failed afterwards and printed
    nothing else. Logs of several hosts are ordered by time only if their timestamps differ by more than two seconds. If
    the log of the rank that failed first is missing, a later failure is named.
    """
    for verdict in of_cause(trace, "failed"):
        first = verdict.events[0]
        if first.fields.get("in_thread") and ended_well(trace):
            continue  # the job did without that thread
        said = _said(first)
        several = len(verdict.ranks) > 1
        order = f"{count_noun(len(verdict.ranks), 'rank')} reported it" if several else "no earlier failure in this log"
        yield finding(
            verdict,
            f"{who(verdict.ranks, 'a process of unknown rank')} {said}",
            certain=(order,),
            likely=_memory_hint(first, several),
            advice=_failure_advice(_failure_kind(first), several),
            action="fix-first",
        )


def _said(event: Event) -> str:
    if event.kind not in ("traceback", "fatal"):
        return f"reported: {quoted(event.text)}"
    kind, message = event.fields.get("type") or "a fatal error", event.fields.get("message") or ""
    return "raised " + quoted(str(kind) if message in ("", kind) else f"{kind}: {message}")


def _memory_hint(event: Event, several: bool) -> tuple[str, ...]:
    if event.says != "device-oom":
        return ()
    if event.detail("other_pid") is not None:
        return (f"process {event.detail('other_pid')} uses {event.detail('other')} of the same device",)
    return () if several else ("one rank only: its batch is larger than those of the others",)


def _failure_kind(event: Event) -> str:
    return "host-memory" if str(event.fields.get("type")) == "MemoryError" else event.says


def _failure_advice(says: str, several: bool) -> str:
    cures = {
        "device-oom": "lower the batch size or sequence length; if only one rank fails, even out the batches",
        "host-memory": "give the process more host memory (ulimit -v, the job's limit), or load less at once",
        "disk-full": "free space on the file system, or write checkpoints elsewhere",
        "limit": "raise the limit (ulimit -n, ulimit -u), or open fewer files and threads",
        "loader-killed": "give the job more host memory or use fewer DataLoader workers",
        "shm-full": "enlarge /dev/shm (docker --shm-size=16g), or use fewer DataLoader workers",
        "loader-timeout": "find out why a worker takes so long (storage, a lock), or raise the DataLoader's timeout",
        "duplicate-device": "bind each rank to its own device: torch.cuda.set_device(LOCAL_RANK)",
        "hccl-start": "stop the processes of the last run, wait 10 seconds, and start the job again",
        "no-interface": "set NCCL_SOCKET_IFNAME to an interface that all hosts have (ip addr)",
        "nan": "check the data and the learning rate of this rank's step: the NaN spreads from there to all ranks",
        "port-taken": "stop the stale process that holds the port, or choose another --master-port",
    }
    return cures.get(says, "fix the line that raised it" + (": all these ranks raise it" if several else ""))


@rule("H131", "log-killed", needs=("log_events",))
def log_killed(trace: Trace) -> Iterator[Finding]:
    """A rank was killed: by the kernel because memory ran out, or by a signal without a message.

    What it means: a signal ended the process, and its peers lost their connection to it. The kernel, SLURM or
    Kubernetes may say in the log that memory ran out; otherwise the log shows only the signal.

    Why it happens: SIGKILL: host or cgroup memory ran out, or someone killed it. SIGBUS: /dev/shm or a mapped file is
    full. SIGSEGV: a crash in a native library. SIGABRT: a C++ error.

    What to do: after SIGKILL, look for an out-of-memory kill in dmesg on the host. Give the job more memory, or use
    fewer DataLoader workers. After SIGBUS, enlarge /dev/shm.

    What could fool it: a SIGKILL alone suggests an out-of-memory kill but does not prove it. Processes that the
    launcher stopped itself are ignored, if the log has its messages about that.
    """
    for verdict in of_cause(trace, "killed"):
        first = verdict.events[0]
        if first.kind == "host-oom":
            is_group = (
                "cgroup" in str(first.fields.get("by", ""))
                or "step" in first.fields
                or first.fields.get("by") == "OOMKilled"
            )
            limit = "the job's memory limit (cgroup)" if is_group else "the host's memory"
            where = f" on {first.host}" if first.host else ""
            yield finding(
                verdict,
                f"{who(verdict.ranks, f'a process{where}')} was killed because {limit} ran out",
                certain=("the kernel or the scheduler reports the kill",),
                advice="give the job more host memory, or use fewer DataLoader workers and smaller prefetch buffers",
                action="fix-first",
            )
            continue
        yield _ended(verdict)


def _ended(verdict: Verdict) -> Finding:
    first = verdict.events[0]
    code = exit_code(first)
    last = last_lines(verdict)
    subject = who(verdict.ranks, _process(first))
    if code is not None and 0 < code < 128:
        several = len(verdict.ranks) > 1
        return finding(
            verdict,
            f"{subject} exited with code {code} and printed no error",
            certain=("the launcher reports the exit code",),
            likely=(
                f"{'they' if several else 'it'} called sys.exit or os._exit, or the output is missing from this log",
            ),
            notes=last,
            advice="find out what ends the process (sys.exit, os._exit), and keep its stderr next time",
            action="collect-more",
        )
    if first.kind == "died":
        return finding(
            verdict,
            f"{subject} died without a message",
            certain=("Ray lost its connection to the process",),
            likely=("Ray does not know why: it lists what could have happened",),
            notes=last,
            advice="look at its worker-*.err file, and for a kill: `dmesg -T | grep -i 'killed process'` on its host",
            action="collect-more",
        )
    return finding(
        verdict,
        f"{subject} was killed by {signal_name(first)} without a message",
        certain=("the launcher reports the signal",) if first.kind == "exit" else (),
        likely=_left_early(verdict) or _signal_hint(code),
        notes=last,
        advice=_signal_advice(code),
        action="fix-first" if code in (-7, 135) else "collect-more",
    )


def _process(event: Event) -> str:
    """What is known of a process whose rank is not."""
    pid = event.fields.get("exit_pid")
    place = event.host or str(event.fields.get("node") or "")
    name = f"process {pid}" if pid is not None else "a process of unknown rank"
    return f"{name} on {place}" if place else name


def _left_early(verdict: Verdict) -> tuple[str, ...]:
    """C++ says so of a process that ends while its threads, those of gloo for example, still run."""
    is_left = exit_code(verdict.events[0]) in (-6, 134) and verdict.attempt.of("left-early")
    return ("it reached the end of its program while its peers were still in a collective",) if is_left else ()


def _signal_hint(code: int | None) -> tuple[str, ...]:
    if code in (-9, 137, None):
        return ("the kernel killed it because memory ran out, or someone killed it: the log does not show which",)
    if code in (-7, 135):
        return ("/dev/shm or a memory-mapped file is full",)
    return ("a native library crashed",)


def _signal_advice(code: int | None) -> str:
    if code in (-9, 137, None):
        return "look for an out-of-memory kill: `dmesg -T | grep -i 'killed process'` on its host"
    if code in (-7, 135):
        return "enlarge /dev/shm (docker --shm-size=16g), or use fewer DataLoader workers"
    return "run it with PYTHONFAULTHANDLER=1 to get the stack of the crash"


@rule("H132", "log-stopped", needs=("log_events",))
def log_stopped(trace: Trace) -> Iterator[Finding]:
    """The job was stopped from outside: time limit, preemption, node failure, or a signal to the launcher.

    What it means: the scheduler or a user ended the job; no rank failed before that.

    Why it happens: the time limit is too short, a job of higher priority needed the nodes, a node was lost, or someone
    canceled the job or closed the terminal.

    What to do: restart it from the last checkpoint, with a longer time limit if the limit ended it.

    What could fool it: someone may cancel a job because it hangs. Then no rank has failed, and the log shows only the
    cancellation. Look at the last progress of each rank.
    """
    for verdict in of_cause(trace, "scheduler"):
        first = verdict.events[0]
        reason = str(first.fields.get("reason") or "").upper()
        nodes = [event.host for event in verdict.events if event.host]
        title, advice, action = (
            "a signal to the launcher stopped the job",
            "restart it, unless it was stopped on purpose",
            "restart",
        )
        if reason == "TIME LIMIT":
            title, advice = (
                "the job reached its time limit",
                "restart it from its last checkpoint, or ask for more time",
            )
        elif reason == "JOB REQUEUE":
            title, advice = "the scheduler put the job back into its queue", "wait: it will start again on its own"
        elif reason in ("PREEMPTION", "PREEMPTED"):
            title, advice = "the scheduler preempted the job", "restart it from its last checkpoint"
        elif reason in ("NODE FAILURE", "NODENOTREADY"):
            title, advice, action = (
                "a node failed",
                "restart it without that node",
                "restart-without" if nodes else "restart",
            )
        elif first.kind == "scheduler":
            title = "someone canceled the job"
        chosen: Action = "restart-without" if action == "restart-without" else "restart"
        yield finding(
            verdict,
            f"{title}: {nodes[0]}" if nodes and reason == "NODE FAILURE" else title,
            certain=("no rank reports a failure before it",),
            advice=advice,
            action=chosen,
            hosts=nodes if chosen == "restart-without" else (),
            severity="error" if reason else "warning",
        )


@rule("H133", "log-device", needs=("log_events",))
def log_device(trace: Trace) -> Iterator[Finding]:
    """A device failed: an Xid from the driver, an ECC error, or a CUDA error on one rank.

    What it means: the driver or CUDA reported an error, and no rank had failed before. The Xid number says whether
    the hardware or one of the program's kernels is to blame.

    Why it happens: hardware: memory, NVLink or the bus. Software: a kernel that reads or writes out of bounds, an index
    out of range (device-side assert).

    What to do: drain the node if the Xid means hardware. For CUDA errors, run with CUDA_LAUNCH_BLOCKING=1: errors are
    reported later than they happen, so the line in the traceback may be the wrong one.

    What could fool it: CUDA errors after a timeout are consequences of it and are ignored, if the order is known.
    """
    for verdict in of_cause(trace, "device"):
        first, hosts = verdict.events[0], hosts_of(verdict)
        number = first.fields.get("xid")
        meaning = xid_of(int(number)) if number is not None else None
        is_hardware = meaning.is_hardware if meaning else _is_hardware(first)
        what = f"Xid {number}: {meaning.meaning}" if meaning else quoted(str(first.detail("text") or first.text))
        owner = who(verdict.ranks, "") or (f"host {hosts[0]}" if hosts else "")
        action: Action = "fix-first" if not is_hardware else "restart-without" if hosts else "restart"
        yield finding(
            verdict,
            f"a device{f' of {owner}' if owner else ''} failed: {what}",
            certain=("this is a hardware fault: drain the node",) if is_hardware else (),
            likely=() if is_hardware else ("one of the program's kernels caused it",),
            advice=f"drain {hosts[0] if hosts else 'the node'} and run its diagnostics (dcgmi diag -r 3)"
            if is_hardware
            else "run with CUDA_LAUNCH_BLOCKING=1 to get the line, and check indices and labels",
            action=action,
            hosts=hosts if action == "restart-without" else (),
        )


def _is_hardware(event: Event) -> bool:
    """Also where a watchdog quotes what its device said."""
    if event.kind == "switch" or event.says in ("device-ecc", "device-lost"):
        return True
    text = str(event.detail("text") or "")
    return any(sign in text for sign in ("ECC error", "NVLink error", "GPU is lost", "no CUDA-capable device"))
