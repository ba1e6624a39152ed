"""Single records of a TORCH_TRACE file -> rows of the tables about compilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from rankscope.model.artifact_names import other_spelling
from rankscope.model.numbers import whole
from rankscope.model.payloads import untabbed
from rankscope.model.tables import MISSING
from rankscope.read.compile_headers import Frame, Metrics, ShapeRecord, StackRecord, decode_kind, lenient, load_json
from rankscope.read.compile_text import (
    TextFrame,
    located,
    parse_graph_break,
    parse_recompile_reasons,
    traceback_frames,
    user_frame,
)
from rankscope.read.recorder_shapes import is_user_frame

Row = dict[str, Any]
_MAX_INT = 1 << 62
CACHE_OUTCOMES = ("hit", "miss", "bypass")


class Record(NamedTuple):
    """One record while its file is read."""

    key: Row  # file_id, rank, record, compile_id, attempt, time_ns, frame_id, frame_compile_id, autograd_id
    kind: str
    name: str
    header: bytes
    tabbed: Callable[[], bytes]  # reads the payload; tabs before its lines do not matter where it is JSON

    def text(self) -> str:
        return untabbed(self.tabbed()).decode("utf-8", "replace")


class RowMaker:
    """Collects the rows of all tables of one file, but for the index itself."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.strings: dict[int, str] = {}
        self.n_unresolved = 0
        self.n_broken = 0
        self.torch_version = ""

    def add(self, record: Record) -> None:
        try:
            _HANDLERS[record.kind](self, record)
        except ValueError:  # its JSON is broken where only this record's own content is
            self.n_broken += 1

    def finish(self) -> None:
        """What only the whole file shows: compilations that never ended, and the location of unnamed ones."""
        compilations = self.rows.setdefault("compilations", [])
        ended = {row["compile_id"] for row in compilations}
        sites: dict[int, Row] = {}
        unfinished: dict[str, Row] = {}
        for row in self.rows.get("compile_stacks", ()):
            sites[row["frame_id"]] = _site(row)  # the last frame of a stack is the compiled one
            if row["compile_id"] not in ended:
                unfinished[row["compile_id"]] = {**row, "phase": "forward", "status": "unfinished"}
        compilations += unfinished.values()
        for row in compilations:
            if row["file"] and row["status"] != "unfinished":
                sites[row["frame_id"]] = _site(row)
        for row in compilations:
            if not row["file"] or row["status"] == "unfinished":
                row.update(sites.get(row["frame_id"], {}))

    def _put(self, table: str, record: Record, values: Row) -> None:
        self.rows.setdefault(table, []).append({**record.key, **values})

    def string(self, record: Record) -> None:
        value = load_json(record.header)["str"]
        if isinstance(value, list) and len(value) == 2 and isinstance(value[1], int):
            self.strings[value[1]] = str(value[0])

    def _file(self, filename: int | str | None) -> str:
        if isinstance(filename, str):
            return filename
        if filename is None or filename < 0:
            return ""
        if filename not in self.strings:
            self.n_unresolved += 1
            return unresolved_name(filename)
        return self.strings[filename]

    def frames(self, stack: list[Frame] | None) -> list[TextFrame]:
        return [
            TextFrame(self._file(frame.filename), _bounded(frame.line), frame.name or "", frame.loc or "")
            for frame in stack or ()
        ]

    def stack(self, record: Record) -> None:
        start = decode_kind(record.header, record.kind, StackRecord)
        for depth, frame in enumerate(self.frames(start.stack)):
            self._put(
                "compile_stacks", record, {"depth": depth, **located(frame), "is_user": is_user_frame(frame.file)}
            )

    def metrics(self, record: Record) -> None:
        metrics = decode_kind(record.header, record.kind, Metrics)
        self._put("compilations", record, compilation_columns(metrics, record.kind))

    def shape(self, record: Record) -> None:
        shape: ShapeRecord = decode_kind(record.header, record.kind, ShapeRecord)
        value = next((str(value) for value in (shape.value, shape.val, shape.result) if value is not None), "")
        row: Row = {
            "kind": _SHAPE_KINDS[record.kind],
            "symbol": shape.symbol or "",
            "expression": shape.expr or shape.vr or "",
            "value": value,
            "source": shape.source or ", ".join(shape.sources or ()),
            "reason": shape.reason or "",
        }
        self._put("guards", record, {**row, **located(self._own_frame(record, shape))})

    def problem(self, record: Record) -> None:
        shape: ShapeRecord = decode_kind(record.header, record.kind, ShapeRecord)
        message = ": ".join(filter(None, (shape.op, shape.reason, shape.expr)))
        row = {"kind": record.kind, "type": record.kind, "message": message}
        self._put("compile_errors", record, {**row, **located(self._own_frame(record, shape))})

    def _own_frame(self, record: Record, shape: ShapeRecord) -> TextFrame | None:
        frame = user_frame(self.frames(shape.user_stack))
        if frame is not None:
            return frame
        return user_frame(self.frames(decode_kind(record.header, record.kind, StackRecord).stack))

    def artifact(self, record: Record) -> None:
        if record.name == "recompile_reasons":
            text = record.text()
            for row in parse_recompile_reasons(text, _strings_of(text)):
                self._put("recompiles", record, row)
        elif record.name == "dynamo_graph_break_reason":
            self._put("graph_breaks", record, parse_graph_break(record.text()))
        elif record.name == "dynamo_error":
            self._put("compile_errors", record, error_columns(record.text()))
        elif record.name == "torch_version":
            version = _decoded(record.tabbed(), _Version)
            self.torch_version = version.pytorch_version or self.torch_version
        else:
            cache, _, outcome = record.name.rpartition("_")
            if outcome in CACHE_OUTCOMES and cache.endswith("_cache"):
                names = {"artifact": record.name, "also_named": other_spelling(record.name)}
                self._put("cache_events", record, cache_columns(record.tabbed(), cache, outcome) | names)


def _site(row: Row) -> Row:
    return {name: row[name] for name in ("function", "file", "line")}


def unresolved_name(string_id: int) -> str:
    """Placeholder for a file name until the log of the parent process is read."""
    return f"<string {string_id}>"


_SHAPE_KINDS = {
    "create_symbol": "symbol",
    "create_unbacked_symbol": "symbol",
    "guard_added": "guard",
    "guard_added_fast": "guard",
    "propagate_real_tensors": "guard",
    "propagate_real_tensors_provenance": "guard",
    "symbolic_shape_specialization": "specialization",
}
_HANDLERS: dict[str, Callable[[RowMaker, Record], None]] = {
    "str": RowMaker.string,
    "artifact": RowMaker.artifact,
    "dynamo_start": RowMaker.stack,
    **dict.fromkeys(
        (
            "compilation_metrics",
            "bwd_compilation_metrics",
            "compilation_metrics_runtime",
            "bwd_compilation_metrics_runtime",
            "aot_autograd_backward_compilation_metrics",
        ),
        RowMaker.metrics,
    ),
    **dict.fromkeys(_SHAPE_KINDS, RowMaker.shape),
    **dict.fromkeys(
        ("guard_on_data_dependent_error", "missing_fake_kernel", "mismatched_fake_kernel"), RowMaker.problem
    ),
}
WANTED_KINDS = frozenset(_HANDLERS)


class _Version(msgspec.Struct):
    pytorch_version: str | None = None


class _CacheEvent(msgspec.Struct):
    key: str | None = None
    cache_state: str | None = None
    cache_status_detailed: str | None = None
    cache_event_time: int | None = None
    time_taken_ns: int | None = None
    time_saved_ns: int | None = None
    time_saved_ms: float | None = None
    cache_bypass_reason: str | None = None
    cache_bypass_exception_type: str | None = None


def _decoded(payload: bytes, type_: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.json.decode(payload, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return lenient(load_json(payload), type_)
        except ValueError:
            return type_()


def cache_columns(payload: bytes, cache: str, outcome: str) -> Row:
    event: _CacheEvent = _decoded(payload, _CacheEvent)
    taken = event.time_saved_ns if event.time_saved_ns is not None else event.time_taken_ns
    if taken is None and event.time_saved_ms is not None:
        taken = whole(event.time_saved_ms * 1e6)
    name = cache.removesuffix("_cache").replace("aot_autograd", "aotautograd")  # one name for both spellings
    row: Row = {"cache": name, "outcome": outcome, "key": event.key or ""}
    row.update(detail=event.cache_status_detailed or event.cache_state or "", taken_ns=_bounded(taken, _MAX_INT))
    row["reason"] = event.cache_bypass_reason or event.cache_bypass_exception_type or ""
    if event.cache_event_time is not None and 0 < event.cache_event_time < _MAX_INT:
        row["time_ns"] = event.cache_event_time
    return row


def error_columns(text: str) -> Row:
    """The exception of a traceback and the user's line: below `from user code`, else the innermost user line."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if line.strip() == "from user code:"), default=None)
    frames = traceback_frames(lines if last is None else lines[last + 1 :])
    frame = user_frame(frames) or (frames[-1] if frames and last is not None else None)
    message = _exception_text(lines[:last])
    exception = message.partition("\n")[0]
    return {"kind": "dynamo_error", "type": exception.partition(":")[0].strip(), "message": message, **located(frame)}


def _exception_text(lines: list[str]) -> str:
    """What follows the frames of the last traceback: its first line is not indented, others may be."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    rest = lines[starts[-1] + 1 :] if starts else lines
    begin = next((number for number, line in enumerate(rest) if line and not line.startswith(" ")), 0)
    return "\n".join(rest[begin:]).strip()


def _strings_of(text: str) -> list[str]:
    """The reasons, where the payload is what its encoding says it is: a list of texts."""
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    if isinstance(values, str):
        return [values]
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def compilation_columns(metrics: Metrics, kind: str) -> Row:
    is_runtime = kind.endswith("_runtime") or bool(metrics.is_runtime)
    is_backward = kind.startswith(("bwd_", "aot_autograd_backward")) or metrics.is_forward is False
    started = _ns_of(metrics.start_time_us, metrics.start_time)
    duration = _ns_of(metrics.duration_us, metrics.entire_frame_compile_time_s)
    passes = (metrics.pre_grad_pass_time_us, metrics.joint_graph_pass_time_us, metrics.post_grad_pass_time_us)
    remote = (
        metrics.remote_fx_graph_cache_get_time_us,
        metrics.remote_fx_graph_cache_put_time_us,
        metrics.pgo_get_remote_code_state_time_us,
        metrics.pgo_put_remote_code_state_time_us,
    )
    tuning = (metrics.runtime_triton_autotune_time_us, metrics.compile_time_autotune_time_us)
    return {
        "phase": "runtime" if is_runtime else "backward" if is_backward else "forward",
        "status": _status(metrics, is_runtime or is_backward),
        "function": metrics.co_name or "",
        "file": metrics.co_filename or "",
        "line": _bounded(metrics.co_firstlineno),
        "start_ns": started,
        "duration_ns": duration,
        "dynamo_ns": _ns_of(metrics.dynamo_cumulative_compile_time_us, metrics.entire_frame_compile_time_s),
        "backend_ns": _ns_of(None, metrics.backend_compile_time_s),
        "aot_ns": _ns_of(metrics.aot_autograd_cumulative_compile_time_us, None),
        "inductor_ns": _ns_of(metrics.inductor_cumulative_compile_time_us, metrics.inductor_compile_time_s),
        "code_gen_ns": _ns_of(metrics.inductor_code_gen_cumulative_compile_time_us, metrics.code_gen_time_s),
        "triton_ns": _ns_of(metrics.triton_compile_time_us, None),
        "autotune_ns": _sum_ns(tuning),
        "cudagraph_ns": _ns_of(metrics.runtime_cudagraphify_time_us, None),
        "pass_ns": _sum_ns(passes),
        "gc_ns": _ns_of(metrics.gc_time_us, None),
        "cache_ns": _sum_ns(remote),
        "logging_ns": _ns_of(metrics.structured_logging_overhead_us, None),
        "lost_ns": _ns_of(metrics.dynamo_compile_time_before_restart_us, metrics.dynamo_time_before_restart_s),
        "n_ops": _bounded(metrics.graph_op_count, _MAX_INT),
        "n_nodes": _bounded(metrics.graph_node_count, _MAX_INT),
        "n_inputs": _bounded(metrics.graph_input_count, _MAX_INT),
        "n_guards": _bounded(metrics.guard_count, _MAX_INT),
        "n_shape_guards": _bounded(metrics.shape_env_guard_count, _MAX_INT),
        "guard_latency_ns": _ns_of(metrics.guard_latency_us, None),
        "cache_size": _bounded(metrics.cache_size, _MAX_INT),
        "n_graph_breaks": _bounded(metrics.num_graph_breaks, _MAX_INT),
        "restart_reasons": msgspec.json.encode(metrics.restart_reasons).decode() if metrics.restart_reasons else "",
        "fail_type": metrics.fail_type or "",
        "fail_reason": metrics.fail_reason or "",
        "fail_file": metrics.fail_user_frame_filename or "",
        "fail_line": _bounded(metrics.fail_user_frame_lineno),
        "recompile_reason": metrics.recompile_reason or "",
        "cudagraph_skip": metrics.cudagraph_skip_reason or "",
        "n_fx_hits": _sum(metrics.inductor_fx_local_cache_hit_count, metrics.inductor_fx_remote_cache_hit_count),
        "n_fx_misses": _sum(metrics.inductor_fx_local_cache_miss_count, metrics.inductor_fx_remote_cache_miss_count),
        "n_aot_hits": _sum(metrics.aotautograd_local_cache_hit_count, metrics.aotautograd_remote_cache_hit_count),
        "n_aot_misses": _sum(metrics.aotautograd_local_cache_miss_count, metrics.aotautograd_remote_cache_miss_count),
    }


def _status(metrics: Metrics, is_later_phase: bool) -> str:
    if metrics.fail_type:
        return "failed"
    if is_later_phase or metrics.graph_op_count is None:
        return "ok"
    return "ok" if metrics.graph_op_count > 0 else "empty"


def _ns_of(microseconds: int | None, seconds: float | None) -> int:
    if microseconds is not None:
        return _bounded(microseconds * 1000, _MAX_INT)
    return MISSING if seconds is None or not 0 <= seconds < 4e9 else round(seconds * 1e9)


def _sum_ns(microseconds: tuple[int | None, ...]) -> int:
    return _bounded(None if not any(microseconds) else sum(filter(None, microseconds)) * 1000, _MAX_INT)


def _sum(*counts: int | None) -> int:
    known = [count for count in counts if count is not None]
    return _bounded(sum(known), _MAX_INT) if known else MISSING


def _bounded(number: int | None, limit: int = 1 << 31) -> int:
    return number if number is not None and 0 <= number < limit else MISSING
