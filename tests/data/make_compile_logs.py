"""Writes the small files in tests/data/compile_log: `PYTHONPATH=src:tests python tests/data/make_compile_logs.py`.

Two ranks of one job, one of them packed, and a log of one process in the layout of 2024. Equal code gives equal bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site, ids_of, log_name

FOLDER = Path(__file__).parent / "compile_log"
SIZE_CHANGED = "tensor 'x' size mismatch at index 0. expected 8, actual 12"
MODE_CHANGED = "mode == 'train'    # if mode == 'train':  # /job/train.py:33 in forward"


def distributed_log(rank: int) -> LogBuilder:
    """Breaks a graph, compiles it again, misses the cache and then hits it."""
    log = LogBuilder(rank, at="2026-03-29 23:59:58", zone=2, pid=4711 + rank)
    log.chromium("dynamo").torch_version().start()
    log.record("describe_storage", {"id": 0, "describer_id": 0, "size": 256}, **ids_of("0/0"))
    log.graph_break("0/0", TRAIN, 34, "Tensor.item()").start("0/0", attempt=1).graph()
    log.cache_miss("0/0", "fkey0", {"gm": "def forward(self, x)", "deterministic_algorithms_settings": "(False,)"})
    log.record("compilation_unheard_of", {"answer": 42}, "kept\n\nall the same", **ids_of("0/0", 1))
    log.chromium("dynamo", "E").metrics("0/0", 0.5, restart_reasons=["Tensor.item()"])
    log.wait(2).recompile("0/1", [f"0/0: {SIZE_CHANGED}", f"0/0: {MODE_CHANGED}"]).start("0/1")
    symbol = {"symbol": "s48", "val": "12", "vr": "[2, int_oo]", "source": "L['x'].size()[0]"}
    log.record("create_symbol", {**symbol, "user_stack": [], "stack": []}, **ids_of("0/1"))
    asked = log.frames([Site(TRAIN, 35, "forward", "if len(x) == 12:")])
    log.record("guard_added_fast", {"expr": "Eq(s48, 12)", "user_stack": asked, "stack": []}, **ids_of("0/1"))
    log.cache_event("0/1", "fx_graph_cache_hit", key="fkey1", time_saved_ns=300_000_000)
    log.metrics("0/1", 0.25, cache_size=1, recompile_reason=f"0/0: {SIZE_CHANGED}")
    return log.metrics("0/0", 0.125, "bwd_compilation_metrics", is_forward=False, graph_op_count=None)


def early_log() -> LogBuilder:
    """Seconds instead of microseconds, no version, no events, an error, a payload with the line ends of Windows."""
    log = LogBuilder(at="2024-02-29 12:00:00", pid=139838746735424)
    log.start("0/0", [Site("/job/eval.py", 7, "main", "model(x)"), Site("/job/eval.py", 3, "model")])
    log.artifact("fx_graph_cache_hash", "[k]\r\nkey: f00\r\n", "0/0")
    log.artifact(
        "dynamo_error", 'Traceback (most recent call last):\n  File "/job/eval.py", line 4\nValueError: no', "0/0"
    )
    early: dict[str, Any] = {"duration_us": None, "start_time_us": None, "end_time_us": None, "co_name": "model"}
    failed: dict[str, Any] = {"fail_type": "ValueError", "fail_reason": "no", "graph_op_count": None}
    return log.metrics("0/0", 0.75, co_filename="/job/eval.py", co_firstlineno=3, **early, **failed)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    distributed_log(0).write(FOLDER, log_name(0, "qwertyui"))
    packed = gzip.compress(distributed_log(1).content(), mtime=0)
    (FOLDER / f"{log_name(1, 'q_ertyui')}.gz").write_bytes(packed)
    early_log().write(FOLDER, log_name(None, "asdfghjk"))


if __name__ == "__main__":
    main()
