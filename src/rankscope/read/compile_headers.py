"""The JSON of TORCH_TRACE records, as far as tables need it: all else is skipped over without being decoded."""

from __future__ import annotations

import json
from typing import Any

import msgspec

# Keys that say whose a record is; any other key names what it is about.
ENVELOPE_KEYS = frozenset(
    (
        *("rank", "compiled_autograd_id", "frame_id", "frame_compile_id", "attempt", "has_payload", "stack"),
        *("subgraph_name", "severity", "timestamp", "pathname", "thread"),
    )
)


class Named(msgspec.Struct):
    """What kinds with a name have in common."""

    name: str | None = None
    encoding: str | None = None
    filename: str | None = None
    url: str | None = None


class Envelope(msgspec.Struct):
    rank: int | None = None
    compiled_autograd_id: int | None = None
    frame_id: int | None = None
    frame_compile_id: int | None = None
    attempt: int | None = None
    has_payload: str | None = None
    subgraph_name: str | None = None
    artifact: Named | None = None
    graph_dump: Named | None = None
    optimize_ddp_split_child: Named | None = None
    inductor_output_code: Named | None = None
    dump_file: Named | None = None
    link: Named | None = None

    @property
    def compile_id(self) -> str:
        """As torch writes it: 0/1, !2/0/1, !2; empty when the record belongs to no compilation."""
        frame = "" if self.frame_id is None else f"{self.frame_id}/{_or_dash(self.frame_compile_id)}"
        if self.compiled_autograd_id is None:
            return frame
        return f"!{self.compiled_autograd_id}/{frame}" if frame else f"!{self.compiled_autograd_id}"


class Frame(msgspec.Struct):
    line: int | None = None
    name: str | None = None
    filename: int | str | None = None
    loc: str | None = None


class Metrics(msgspec.Struct):
    """The fields, out of 99, that the table of compilations has; times in seconds are from logs before 2.5."""

    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    cache_size: int | None = None
    guard_count: int | None = None
    shape_env_guard_count: int | None = None
    graph_op_count: int | None = None
    graph_node_count: int | None = None
    graph_input_count: int | None = None
    start_time: float | None = None
    entire_frame_compile_time_s: float | None = None
    backend_compile_time_s: float | None = None
    inductor_compile_time_s: float | None = None
    code_gen_time_s: float | None = None
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    restart_reasons: list[str] | None = None
    dynamo_time_before_restart_s: float | None = None
    has_guarded_code: bool | None = None
    is_forward: bool | None = None
    is_runtime: bool | None = None
    start_time_us: int | None = None
    end_time_us: int | None = None
    duration_us: int | None = None
    dynamo_cumulative_compile_time_us: int | None = None
    aot_autograd_cumulative_compile_time_us: int | None = None
    inductor_cumulative_compile_time_us: int | None = None
    inductor_code_gen_cumulative_compile_time_us: int | None = None
    triton_compile_time_us: int | None = None
    runtime_cudagraphify_time_us: int | None = None
    runtime_triton_autotune_time_us: int | None = None
    compile_time_autotune_time_us: int | None = None
    pre_grad_pass_time_us: int | None = None
    joint_graph_pass_time_us: int | None = None
    post_grad_pass_time_us: int | None = None
    gc_time_us: int | None = None
    remote_fx_graph_cache_get_time_us: int | None = None
    remote_fx_graph_cache_put_time_us: int | None = None
    pgo_get_remote_code_state_time_us: int | None = None
    pgo_put_remote_code_state_time_us: int | None = None
    structured_logging_overhead_us: int | None = None
    dynamo_compile_time_before_restart_us: int | None = None
    guard_latency_us: int | None = None
    recompile_reason: str | None = None
    num_graph_breaks: int | None = None
    cudagraph_skip_reason: str | None = None
    inductor_fx_local_cache_hit_count: int | None = None
    inductor_fx_local_cache_miss_count: int | None = None
    inductor_fx_remote_cache_hit_count: int | None = None
    inductor_fx_remote_cache_miss_count: int | None = None
    aotautograd_local_cache_hit_count: int | None = None
    aotautograd_local_cache_miss_count: int | None = None
    aotautograd_remote_cache_hit_count: int | None = None
    aotautograd_remote_cache_miss_count: int | None = None


class StackRecord(msgspec.Struct):
    """Torch has many frames of its own: they are decoded only where they matter."""

    stack: list[Frame] | None = None


class ShapeRecord(msgspec.Struct):
    """create_symbol, guard_added(_fast), symbolic_shape_specialization and the like."""

    symbol: str | None = None
    val: Any = None
    value: Any = None
    vr: str | None = None
    source: str | None = None
    sources: list[str] | None = None
    expr: str | None = None
    result: Any = None
    reason: str | None = None
    op: str | None = None
    unhinted_expr: str | None = None
    user_stack: list[Frame] | None = None


_ENVELOPE = msgspec.json.Decoder(Envelope)


def decode_envelope(header: bytes) -> Envelope:
    """ValueError when it is not even JSON. Values of unexpected types are left out, the rest is kept."""
    try:
        return _ENVELOPE.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope: Envelope = lenient(load_json(header), Envelope)
        return envelope


def decode_kind(header: bytes, kind: str, type_: type[msgspec.Struct]) -> Any:
    """The value of one key of a header, as far as the type names its fields."""
    wrapper = _wrapper(kind, type_)
    try:
        return wrapper.decode(header).value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return lenient(load_json(header).get(kind), type_)


def load_json(text: bytes) -> Any:
    """What Python's own writer made: NaN, Infinity and lone surrogates are allowed. ValueError when it is not JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


_WRAPPERS: dict[tuple[str, type[msgspec.Struct]], Any] = {}


def _wrapper(kind: str, type_: type[msgspec.Struct]) -> Any:
    key = (kind, type_)
    if key not in _WRAPPERS:
        made = msgspec.defstruct("Wrapper", [("value", type_, msgspec.field(name=kind))])
        _WRAPPERS[key] = msgspec.json.Decoder(made)
    return _WRAPPERS[key]


def lenient(values: Any, type_: type[msgspec.Struct]) -> Any:
    """Field by field, leaving out what does not fit."""
    made = type_()
    if isinstance(values, dict):
        for field in msgspec.structs.fields(type_):
            if field.encode_name in values:
                try:
                    setattr(made, field.name, msgspec.convert(values[field.encode_name], field.type))
                except msgspec.ValidationError:
                    continue
    return made


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
