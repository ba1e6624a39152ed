"""TraceUtils.h: what torch writes into the job's key-value store, and the report on a desync."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "Desync records in the store (TraceUtils.h)"
INTRO = (
    "What torch's tracker writes into the job's key-value store, and the report that it prints on a timeout. The "
    "helpers are in `rankscope.desync`, which needs no torch."
)

_IMPORT = ">>> from rankscope import desync; "
_STATES = 'states = {0: (5, "ALLREDUCE", False), 1: (4, "ALLREDUCE", True), 2: (4, "BROADCAST", False)}; '
_STORE = ">>> import torch.distributed as dist; from rankscope import desync; s = dist.HashStore(); "
_SERVER = (
    '>>> import torch.distributed as dist; from rankscope import cli, desync; s = dist.TCPStore("127.0.0.1", 0, '
    "is_master=True, wait_for_workers=False); "
)
_JOB = (
    ">>> import rankscope, torch, torch.distributed as dist; "
    'run = rankscope.collect("traces", desync=True, kineto=False, execution_trace=False); '
    'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1); '
    "dist.all_reduce(torch.ones(4)); "
)

BEHAVIORS = (
    Behavior(
        there="get the key under which a rank records what it has started (getTraceStartKey)",
        commands=(_IMPORT + 'print(desync.start_key("0", 3))',),
        shows=r"^0_3_trace_start$",
    ),
    Behavior(
        there="get the key under which a rank records what it has finished (getTraceEndKey)",
        commands=(_IMPORT + 'print(desync.end_key("NCCL", 3))',),
        shows=r"^NCCL_3_trace_end$",
    ),
    Behavior(
        there="write a collective's sequence number and name into the store: 8 little-endian bytes, the name, one "
        "zero byte (traceUpdate)",
        commands=(
            _STORE + 'print(desync.write_state(s, "0_3_trace_start", 258, "ALLREDUCE"), s.get("0_3_trace_start"))',
        ),
        shows=r"^True b'\\x02\\x01\\x00\\x00\\x00\\x00\\x00\\x00ALLREDUCE\\x00'$",
        needs_torch=True,
    ),
    Behavior(
        there="log that the store is down, and continue (traceUpdate)",
        commands=(_IMPORT + 'print(desync.write_state(None, "0_3_trace_start", 7, "ALLREDUCE"))',),
        shows=r"Store is down while updating #7 with key 0_3_trace_start\n(.*\n)*False",
    ),
    Behavior(
        there="read such a value back (parseTraceValue)",
        commands=(_IMPORT + r'print(desync.decode_state(b"\x02\x01\0\0\0\0\0\0ALLREDUCE\0"))',),
        shows=r"^State\(seq=258, op='ALLREDUCE'\)$",
    ),
    Behavior(
        there="list ranks as text (ranksToString, ranksFromTrace)",
        commands=(_IMPORT + _STATES + "print(desync.join_ranks([0, 1]), desync.join_ranks(states))",),
        shows=r"^0, 1 0, 1, 2$",
    ),
    Behavior(
        there="list ranks as text in brackets (ranks_str)",
        commands=(_IMPORT + "print(desync.bracket_ranks([0, 1]))",),
        shows=r"^\[0, 1\]$",
    ),
    Behavior(
        there="say which ranks never joined any collective (analyzeMissingRanks)",
        commands=(_IMPORT + "print(desync.missing([2, 3]))",),
        shows=r"^\t - To our best knowledge, ranks \[2, 3\] are the lagging ranks",
    ),
    Behavior(
        there="say which ranks lag: those that joined and did not finish, those that did not join the next one "
        "(analyzeLaggingRanks)",
        commands=(_IMPORT + _STATES + "print(desync.lagging(states))",),
        shows=r"^\t   - \[2\] joined but didn't finish collective #4 \(count from 1\)\n"
        r"\t     \[1\] finished collective #4, but didn't join collective #5 \(count from 1\)$",
    ),
    Behavior(
        there="list the latest state of every rank, by sequence number and collective (dumpSnapshot)",
        commands=(_IMPORT + _STATES + "print(desync.snapshot(states))",),
        shows=r"^\t   #4 finished ranks:\n\t     \[1\] finished ALLREDUCE\n\t   #5 started ranks:$",
    ),
    Behavior(
        there="make the full report of the rank that timed out, from the store (retrieveDesyncReport)",
        commands=(
            _STORE + 'desync.write_state(s, desync.start_key("0", 0), 5, "ALLREDUCE"); '
            'print(desync.report_from_store(s, "0", own_rank=0, world_size=2))',
        ),
        shows=r"^\t - \[0\] Timeout at collective: ALLREDUCE, #5\n\t - To our best knowledge, ranks \[1\] are",
        needs_torch=True,
    ),
    Behavior(
        there="make the same report without a store, from states that you have, in torch's words or in rankscope's",
        commands=(
            _IMPORT + _STATES + 'print(desync.report(states, own_rank=0, style="torch"))',
            _IMPORT + _STATES + "print(desync.report(states, own_rank=0))",
        ),
        shows=r"^ - Lagging ranks:$",
    ),
    Behavior(
        there="get the report of a job that hangs now, from outside (torch prints it only after a timeout)",
        commands=(
            _SERVER + 'g = dist.PrefixStore("default_pg/0//cuda/", s); '
            'w = [desync.write_state(g, desync.start_key("NCCL", rank), 5 - rank, "ALLREDUCE") for rank in (0, 1)]; '
            's.num_keys(); cli.main(["desync", f"127.0.0.1:{s.port}", "--world-size", "2"])',
        ),
        shows=r"^   - \[1\] joined but did not finish collective #4 \(counted from 1\)$",
        needs_torch=True,
    ),
    Behavior(
        there="warn that ranks may be missing if nothing shows how many there are",
        commands=(
            _SERVER + 'g = dist.PrefixStore("default_pg/0//cuda/", s); '
            'desync.write_state(g, desync.start_key("NCCL", 0), 5, "ALLREDUCE"); '
            's.num_keys(); cli.main(["desync", f"127.0.0.1:{s.port}"])',
        ),
        shows=r"^the store does not say how many ranks group 0 has; one after rank 0",
        needs_torch=True,
    ),
    Behavior(
        there="pickle the recorder's state into bytes, made of plain dictionaries and lists, while the job runs "
        "(pickle_str, new_dict, new_list)",
        commands=(
            _JOB + "print([path.name for path in rankscope.dump()])",
            '>>> import pickle; d = pickle.load(open("traces/rankscope_trace_rank_0", "rb")); '
            'print(type(d).__name__, d["entries"][0]["profiling_name"], d["entries"][0]["state"])',
        ),
        shows=r"^dict gloo:all_reduce completed$",
        needs_torch=True,
    ),
    Behavior(
        there="have every rank of a running job dump, from outside",
        commands=(
            _JOB + "import subprocess, sys; "
            'subprocess.run([sys.executable, "-m", "rankscope", "snapshot", "traces", "--watch", "1"])',
        ),
        shows=r"^Read 2 Flight Recorder dumps, 1 manifest, 1 stack file from traces:",
        needs_torch=True,
    ),
    Behavior(
        there="print the stack of the calling thread, Python and C++ together, as `#0 func from file:line` "
        "(get_python_cpp_trace)",
        commands=(">>> import torch; from rankscope import desync; print(desync.python_cpp_trace())",),
        shows=r"^#0 torch::unwind::unwind\(\) from .*\n(#\d+ .*\n)*#\d+ <module> from <string>:1$",
        needs_torch=True,
    ),
    Behavior(
        there="get the same for a thread that is stuck in C++, and read it",
        commands=(
            ">>> import rankscope, threading, torch, torch.distributed as dist; "
            'run = rankscope.collect("traces", cpp_stacks=True, kineto=False, execution_trace=False); '
            's = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False); '
            't = threading.Thread(target=s.get, args=("nothing",), daemon=True); t.start(); t.join(1); '
            "rankscope.dump(); run.stop(); import os; os._exit(0)",
            "rankscope query traces \"select function from frames where language = 'c++'\"",
        ),
        shows=r"c10d::TCPStore::get",
        needs_torch=True,
    ),
)
