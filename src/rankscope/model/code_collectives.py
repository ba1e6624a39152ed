"""Collectives in the code that inductor generated, and whether they are those that its scheduler meant to run."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace

_PREFIX = b"_c10d_functional"
_CALL = re.compile(rb"\b(torch\.ops\._?c10d_functional\.\w+\.default)\s*\(")
_COMMENT = re.compile(rb"#[^\n]*")
# Code that calls the operators from C++ names them in another way: nothing can be told by counting.
_CPP_WRAPPER = re.compile(rb"\bcpp_wrapper_src\b|\baoti_torch_\w*c10d_functional")
_WAIT = "wait_tensor"
Place = tuple[int, int]  # file_id and record, as in compile_records


class Parity(NamedTuple):
    """The collectives of one compilation: how many its scheduler listed, and what the generated code calls."""

    file_id: int
    rank: int
    run: int
    compile_id: str
    record: int  # of its first generated code
    n_scheduled: int
    n_called: int
    n_waits: int
    offset: int  # calls of any kind that only one of the two has

    @property
    def missing_waits(self) -> int:
        return max(0, self.n_called - self.n_waits)


def op_name(op: str) -> str:
    """`torch.ops._c10d_functional.all_reduce_.default` -> `all_reduce`: in place or not is the compiler's choice."""
    return op.removesuffix(".default").rpartition(".")[2].rstrip("_")


def code_calls(trace: Trace) -> dict[Place, tuple[str, ...]]:
    """The collectives and waits that generated code calls, in its order. Code that cannot be judged is left out."""
    if code_calls not in trace.derived:
        records = trace.table("compile_records")
        chosen = records.take(records.text("kind").equals("inductor_output_code").nonzero()[0])
        calls_by_code: dict[Place, tuple[str, ...]] = {}
        for row in chosen.rows():
            log = mapped_log(trace, row["file_id"])
            end = row["payload_start"] + row["n_payload_bytes"]
            # Most code has no collective: it is searched where it lies, and not copied.
            has_calls = log.data.find(_PREFIX, row["payload_start"], end) >= 0
            code = log.payload(row) if has_calls else b""
            if not _CPP_WRAPPER.search(code):
                calls = _CALL.findall(_COMMENT.sub(b"", code))
                calls_by_code[row["file_id"], row["record"]] = tuple(call.decode() for call in calls)
        trace.derived[code_calls] = calls_by_code
    calls_by_place: dict[Place, tuple[str, ...]] = trace.derived[code_calls]
    return calls_by_place


def collectives_parity(trace: Trace) -> list[Parity]:
    """One per compilation that has a schedule and code of its own; all of its schedules and all of its code count."""
    logs = trace.table("compile_logs")
    runs = dict(zip(logs.array("file_id").tolist(), logs.array("run").tolist(), strict=True))
    scheduled = _scheduled(trace)
    called: dict[tuple[int, str], list[str]] = {}
    first: dict[tuple[int, str], tuple[int, int]] = {}
    records = trace.table("compile_records")
    for row in records.take(records.text("kind").equals("inductor_output_code").nonzero()[0]).rows():
        key = (row["file_id"], row["compile_id"])
        calls = code_calls(trace).get((row["file_id"], row["record"]))
        if key in scheduled and calls is not None:
            called.setdefault(key, []).extend(map(op_name, calls))
            first.setdefault(key, (row["rank"], row["record"]))
    parities = []
    for key, calls_of_all in called.items():
        planned, made = Counter(scheduled[key]), Counter(calls_of_all)
        n_waits = made.pop(_WAIT, 0)
        planned.pop(_WAIT, None)
        offset = (planned - made).total() + (made - planned).total()
        rank, record = first[key]
        parities.append(
            Parity(key[0], rank, runs[key[0]], key[1], record, planned.total(), made.total(), n_waits, offset)
        )
    return parities


def _scheduled(trace: Trace) -> dict[tuple[int, str], list[str]]:
    """The operations that schedules list, by file and compile id; lists taken from the code itself prove nothing."""
    rows = trace.table("compile_collectives")
    from_code = code_calls(trace)
    scheduled: dict[tuple[int, str], list[str]] = {}
    for row in rows.rows():
        if (row["file_id"], row["record"]) not in from_code:
            scheduled.setdefault((row["file_id"], row["compile_id"]), []).append(op_name(row["op"]))
    return scheduled
