"""The messages of launchers, schedulers, kernels, devices and the operating system in a job's output.

Every expression is linear in the line's length: no nested repetition, every number bounded.
"""

from __future__ import annotations

from rankscope.read.job_log_patterns import INT, Pattern, says

_SIZE = r"([\d.]{1,12} ?[KMGTE]?i?B(?:ytes)?)"
_SYSLOG_HOST = r"(?:\b([A-Za-z][\w.-]{0,120}) kernel: .{0,80}?)?"
_OOM_EVENT = r"[Dd]etected \d{1,9} oom[_-]kill event.{0,20} in "
_STEP = r"(\w{1,40}(?:\.\w{1,20})?)"

OUTSIDE: tuple[Pattern, ...] = (
    says(
        "scheduler",
        "*** ",
        r"\*\*\* (JOB|STEP) (\S{1,60}) ON (\S{1,200}) CANCELL?ED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
        r"(?: DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE))?",
        *("what", "step", "node", "at", "reason"),
    ),
    says(
        "scheduler",
        "reempted",
        r"(?:^|Reason:\s{1,20}|(?:Normal|Warning)\s{1,20}"
        r"|(?:[Ii]nstance|[Nn]ode|VM|[Jj]ob)(?: \S{1,60})? (?:was|is being|has been) )([Pp]reempted)\b",
        "reason",
    ),
    says("scheduler", "NodeNotReady", r"(NodeNotReady|NODE FAILURE)", "reason"),
    says("host-oom", "low on resource: memory", r"node was low on resource: (memory)", "by"),
    says("disk-full", "low on resource: ephemeral", r"node was low on resource: (ephemeral-storage)", "path"),
    says("host-oom", "oom_kill", rf"{_OOM_EVENT}(?:StepId=)?{_STEP}", "step"),
    says("host-oom", "oom-kill event", rf"{_OOM_EVENT}(?:step )?{_STEP}", "step"),
    says(
        "host-oom",
        "Killed process",
        rf"{_SYSLOG_HOST}((?:Memory cgroup o|O)ut of memory): Killed process {INT} \(([^)]{{1,60}})\)"
        rf"(?:.{{0,120}}?anon-rss:{INT}kB)?",
        *("node", "by", "killed_pid", "name", "rss_kb"),
    ),
    says(
        "host-oom",
        "oom-kill:constraint",
        rf"oom-kill:constraint=(CONSTRAINT_\w{{1,20}})(?:(?!oom-kill:).){{0,2000}}?,pid={INT}",
        *("by", "killed_pid"),
    ),
    says("host-oom", "OOMKilled", "(OOMKilled)", "by"),
    says("host-oom", "low on memory", "killed due to the node running low on memory"),
    says(
        "host-oom",
        "due to memory pressure",
        r"[1-9]\d{0,8} Workers \(tasks / actors\) killed due to memory pressure.{0,200}? IP: ([\w.:-]{1,64})",
        "node",
    ),
)

DEVICE: tuple[Pattern, ...] = (
    says(
        "xid",
        "Xid",
        rf"{_SYSLOG_HOST}NVRM: Xid \(PCI:([0-9A-Fa-f:.]{{4,20}})\): {INT}(?:, pid='?{INT})?",
        *("node", "bus", "xid", "xid_pid"),
    ),
    says("switch", "SXid", rf"{_SYSLOG_HOST}SXid \(PCI:([0-9A-Fa-f:.]{{4,20}})\): {INT}", "node", "bus", "sxid"),
    says("device-assert", "Assertion `", r"\.cu:\d{1,9}: .{0,300}?Assertion `([^`]{1,200})` failed", "condition"),
    says(
        "device-oom",
        "out of memory",
        rf"out of memory\. Tried to allocate {_SIZE} \(GPU (\d{{1,4}}); {_SIZE} total capacity; {_SIZE} already "
        rf"allocated; {_SIZE} free",
        *("wanted", "device", "capacity", "allocated", "free"),
    ),
    says(
        "device-oom",
        "out of memory",
        rf"out of memory\. Tried to allocate {_SIZE}(?:.{{0,20}}GPU (\d{{1,4}}))?"
        rf"(?:.{{0,40}}?total capacity of {_SIZE} .{{0,9}} {_SIZE} is free)?"
        rf"(?:.{{0,40}}?\bProcess (\d{{1,10}}) has {_SIZE} memory in use)?"
        rf"(?:.{{0,400}}?and {_SIZE} is reserved by PyTorch but unallocated)?",
        *("wanted", "device", "capacity", "free", "other_pid", "other", "unused"),
    ),
    says("device-oom", "out of memory", r"(?:CUDA|HIP) error: out of memory"),
    says("device-ecc", "ECC error", r"(uncorrectable ECC error)", "text"),
    says("device-ecc", "NVLink error", r"(uncorrectable NVLink error)", "text"),
    says("device-lost", "GPU is lost", r"(GPU is lost)", "text"),
    says("device-lost", "fallen off the bus", r"(fallen off the bus)", "text"),
    says(
        "device-lost",
        "device",
        r"CUDA error: (no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable)",
        "text",
    ),
    says("device-error", "CUDA error:", r"CUDA error: ([^\n.]{1,200})", "text"),
    says("device-error", "HIP error:", r"HIP error: ([^\n.]{1,200})", "text"),
    says("device-error", "Cuda failure", r"NCCL WARN Cuda failure (?:\d{1,5} )?'([^'\n]{1,200})'", "text"),
    says("device-fault", "Memory access fault by GPU", r"(Memory access fault by GPU node-\d{1,6})", "text"),
    says("device-fault", "HW Exception by GPU", r"(HW Exception by GPU node-\d{1,6}.{0,80})", "text"),
)

RESOURCES: tuple[Pattern, ...] = (
    says(
        "loader-killed",
        "is killed by signal",
        rf"DataLoader worker \(pid {INT}\) is killed by signal: ([\w ]{{1,40}})",
        *("worker_pid", "signal"),
    ),
    says(
        "loader-killed",
        "exited unexpectedly",
        r"DataLoader worker \(pid\(s\) ([\d, ]{1,200})\) exited unexpectedly",
        "worker_pids",
    ),
    says("loader-timeout", "DataLoader timed out", rf"DataLoader timed out after {INT} seconds", "seconds"),
    says("shm-full", "insufficient shared memory", r"(bus error encountered in worker)", "text"),
    says("shm-full", "shared memory segment", r"Error while creating shared memory segment (\S{1,200})", "path"),
    says("shm-full", "Caught signal 7", r"(Caught signal 7 \(Bus error)", "text"),
    says("disk-full", "No space left on device", r"No space left on device(?:: ?'([^'\n]{1,300})')?", "path"),
    says("disk-full", "quota exceeded", r"[Dd]isk quota exceeded(?:: ?'([^'\n]{1,300})')?", "path"),
    says("disk-full", "File too large", r"\[Errno 27\] File too large(?:: ?'([^'\n]{1,300})')?", "path"),
    says("limit", "Too many open files", r"(Too many open files)", "text"),
    says("limit", "can't start new thread", r"(can't start new thread)", "text"),
    says("limit", "Resource temporarily unavailable", r"(Resource temporarily unavailable)", "text"),
)

LINKS: tuple[Pattern, ...] = (
    says("connection-reset", "Connection reset by peer", "(Connection reset by peer)", "text"),
    says("connection-reset", "Broken pipe", "(Broken pipe)", "text"),
    says("rendezvous", "Rendezvous", r"(Rendezvous(?:Connection|Timeout|Closed)Error)", "type"),
    says(
        "rendezvous", "has failed to", r"The node '([^'\n]{1,200})' has failed to .{1,60} the rendezvous", "node_name"
    ),
)

ENDS: tuple[Pattern, ...] = (
    says(
        "exit",
        "exitcode:",
        rf"failed \(exitcode: {INT}\) local_rank: {INT} \(pid: {INT}\)",
        *("exit_code", "local_rank", "exit_pid"),
    ),
    says(
        "exit",
        "task",
        rf"srun: error: (\S{{1,120}}): tasks? ([\d,\[\]-]{{1,200}}): "
        rf"(Killed|Out Of Memory|Aborted|Segmentation fault|Bus error|Terminated|Exited with exit code {INT})",
        *("node", "tasks", "how", "exit_code"),
    ),
    says(
        "exit",
        "terminated with",
        rf"[Pp]rocess {INT} terminated with (?:signal (\w{{1,20}})|exit code {INT})",
        *("index", "signal", "exit_code"),
    ),
    says(
        "exit",
        "with PID",
        rf"process rank {INT} with PID {INT} on node (\S{{1,120}}) exited on signal {INT}",
        *("exit_rank", "exit_pid", "node", "signal_number"),
    ),
    says("exit", "died with <Signals", r"died with <Signals\.(\w{1,20}): \d{1,3}>", "signal"),
    says("exit", "non-zero exit status", rf"returned non-zero exit status {INT}", "exit_code"),
    says(
        "exit",
        "Child process with PID",
        rf"Child process with PID {INT} terminated with code {INT}",
        *("exit_pid", "exit_code"),
    ),
    says(
        "died",
        "SYSTEM_ERROR",
        rf"(?:Worker IP address: ([\w.:-]{{1,64}}) .{{0,80}}?Worker PID: {INT} )?Worker exit type: SYSTEM_ERROR",
        *("node", "exit_pid"),
    ),
    says("exit", "Process finished", rf"^Process finished with exit code {INT}", "exit_code"),
    says("exit", "return code =", rf"exits with return code = {INT}", "exit_code"),
    says("exit", "EXIT CODE:", rf"EXIT CODE: {INT}", "exit_code"),
    says("exit", "Exit Code:", rf"^\s{{0,20}}Exit Code:\s{{1,12}}{INT}$", "exit_code"),
    says("told-to-stop", "closing signal", rf"Sending process {INT} closing signal (\w{{1,20}})", "told_pid", "signal"),
    says(
        "told-to-stop", "forcefully exiting", rf"Unable to shutdown process {INT} via (\w{{1,20}})", "told_pid", "hung"
    ),
    says("told-to-stop", "Received SIGTERM", r"Received (SIGTERM)", "signal"),
    says("unkillable", "uninterruptible sleep", rf"Worker pid={INT} stuck in uninterruptible sleep", "stuck_pid"),
    says("unkillable", "did not exit after SIGKILL", rf"Process {INT} did not exit after SIGKILL", "stuck_pid"),
    says("agent-signal", "got signal", rf"Process {INT} got signal: {INT}", "agent_pid", "signal_number"),
    says("agent-signal", "death signal", r"Received (?:Signals\.)?(\w{1,20}) death signal", "signal"),
    says(
        "restart",
        "attempts left",
        rf"Worker group FAILED\. {INT}/{INT} attempts left; will restart",
        *("left", "allowed"),
    ),
    says("restart", "will restart", rf"Detected {INT} new nodes from group_rank=\d{{1,9}}; will restart", "n_new"),
    says("left-early", "without an active exception", "terminate called without an active exception"),
    says("fatal", "Fatal Python error", r"Fatal Python error: ([^\n]{1,200})", "text"),
    says("segfault", "Segmentation fault", r"^(Segmentation fault)", "text"),
    says("killed", "Killed", r"^(?:[^\s:]{1,200}: line \d{1,9}: +\d{1,9} )?(Killed)\b(?! *:)", "text"),
)
