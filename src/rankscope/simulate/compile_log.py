"""TORCH_TRACE files as torch lays them out, record by record, with right checksums.

    log = LogBuilder(rank=1)
    log.start("0/0").graph_break("0/0", "/job/train.py", 12, "Tensor.item()").metrics("0/0")
    log.write(folder)

`at` is the writer's local time, `zone` how many hours it is ahead of UTC: absolute times are in UTC.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

Json = Any
TRAIN = "/job/train.py"
TORCH = "/site-packages/torch/_dynamo/convert_frame.py"


class Site(NamedTuple):
    """A line of code on a stack."""

    file: str
    line: int | None
    function: str
    code: str | None = None


USER_SITE = Site(TRAIN, 12, "step", "loss = model(x)")
COMPILED_SITE = Site(TRAIN, 30, "forward")


class LogBuilder:
    def __init__(
        self, rank: int | None = None, *, at: str = "2026-11-16 06:18:20", zone: float = 0.0, pid: int = 4711
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.zone = datetime.timedelta(hours=zone)
        self.now = datetime.datetime.fromisoformat(at).replace(tzinfo=datetime.timezone.utc)
        self.strings: dict[str, int] = {}
        self.chunks: list[bytes] = []

    def wait(self, seconds: float) -> LogBuilder:
        self.now += datetime.timedelta(seconds=seconds)
        return self

    @property
    def now_ns(self) -> int:
        """The absolute time of the next record."""
        since = self.now - self.zone - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        return since // datetime.timedelta(microseconds=1) * 1000

    def raw(self, content: bytes) -> LogBuilder:
        """Anything that is no record."""
        self.chunks.append(content)
        return self

    def record(self, kind: str, metadata: Json = None, payload: str | bytes | None = None, **ids: Json) -> LogBuilder:
        """One record, a millisecond after the one before; `ids` are the further keys of its header."""
        header: dict[str, Json] = {kind: {} if metadata is None else metadata}
        if self.rank is not None:
            header["rank"] = self.rank
        header.update(ids)
        content = payload.encode() if isinstance(payload, str) else payload
        if content is not None:
            header.setdefault("has_payload", checksum(content))
        self.line(json.dumps(header))
        if content is not None:
            self.raw(b"\t" + content.replace(b"\n", b"\n\t") + b"\n")
        return self

    def line(self, header: str) -> LogBuilder:
        """A line with the header as it is given."""
        stamp = self.now.strftime("%m%d %H:%M:%S.%f")
        self.raw(f"V{stamp} {self.pid} torch/_dynamo/utils.py:2350] {header}\n".encode())
        return self.wait(0.001)

    def artifact(self, name: str, payload: Json, compile_id: str = "", attempt: int = 0) -> LogBuilder:
        """A text as it is, anything else as JSON."""
        is_text = isinstance(payload, (str, bytes))
        metadata = {"name": name, "encoding": "string" if is_text else "json"}
        content = payload if is_text else json.dumps(payload)
        return self.record("artifact", metadata, content, **ids_of(compile_id, attempt))

    def torch_version(self, version: str = "2.13.0+cpu") -> LogBuilder:
        """Torch writes it without rank and compile id."""
        rank, self.rank = self.rank, None
        self.artifact("torch_version", {"pytorch_version": version, "commit": "0", "oss": True})
        self.rank = rank
        return self

    def string(self, text: str) -> int:
        """The number of a file name, added to the log on first use."""
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.record("str", [text, self.strings[text]])
        return self.strings[text]

    def frames(self, sites: Iterable[Site]) -> list[dict[str, Json]]:
        made: list[dict[str, Json]] = []
        for site in sites:
            frame = {"line": site.line, "name": site.function, "filename": self.string(site.file), "loc": site.code}
            made.append({key: value for key, value in frame.items() if key != "loc" or value is not None})
        return made

    def start(
        self, compile_id: str = "0/0", sites: Sequence[Site] = (USER_SITE, COMPILED_SITE), attempt: int = 0
    ) -> LogBuilder:
        """The compilation begins; the last site is the compiled function."""
        return self.record("dynamo_start", {"stack": self.frames(sites)}, **ids_of(compile_id, attempt))

    def graph(self, compile_id: str = "0/0", text: str = "", **metadata: Json) -> LogBuilder:
        body = (
            text
            or 'class GraphModule(torch.nn.Module):\n    def forward(self, L_x_: "f32[8][1]cpu"):\n        return ()'
        )
        return self.record("dynamo_output_graph", {"sizes": {"l_x_": [8]}, **metadata}, body, **ids_of(compile_id))

    def chromium(self, name: str, phase: str = "B", compile_id: str = "0/0", **args: Json) -> LogBuilder:
        """Phase B begins, E ends, i is a moment."""
        arguments = {"compile_id": compile_id, **args} if compile_id else args
        event = {"name": name, "ts": self.now_ns / 1000, "args": arguments, "ph": phase, "cat": "dynamo_timed"}
        return self.record(
            "chromium_event", {}, json.dumps({**event, "tid": 0, "pid": 0}, indent=0), **ids_of(compile_id)
        )

    def span(self, name: str, seconds: float, compile_id: str = "0/0") -> LogBuilder:
        return self.chromium(name, "B", compile_id).wait(seconds).chromium(name, "E", compile_id)

    def metrics(
        self, compile_id: str = "0/0", seconds: float = 1.0, kind: str = "compilation_metrics", **fields: Json
    ) -> LogBuilder:
        """A compilation of the given length ends now; `fields` replace what matters."""
        end_us = self.now_ns // 1000
        start_us = end_us - round(seconds * 1e6)
        times = {"start_time_us": start_us, "end_time_us": end_us, "duration_us": end_us - start_us}
        old_times = {"start_time": start_us / 1e6, "entire_frame_compile_time_s": seconds}
        values = {**METRICS, "compile_id": compile_id, **times, **old_times, **fields}
        return self.record(kind, values, None, **ids_of(compile_id))

    def recompile(self, compile_id: str, reasons: str | list[str]) -> LogBuilder:
        """Why earlier versions did not fit: torch writes a single reason as bare text that it calls JSON."""
        listed = [reasons] if isinstance(reasons, str) else reasons
        text = listed[0] if len(listed) == 1 else "[\n" + ",\n".join(map(json.dumps, listed)) + "\n]"
        metadata = {"name": "recompile_reasons", "encoding": "json"}
        return self.record("artifact", metadata, text, **ids_of(compile_id))

    def graph_break(
        self, compile_id: str, file: str, line: int, reason: str, *, function: str = "forward", code: str = "y.item()"
    ) -> LogBuilder:
        text = BREAK.format(file=file, line=line, reason=reason, function=function, code=code)
        return self.artifact("dynamo_graph_break_reason", text, compile_id)

    def cache_event(self, compile_id: str, name: str, **fields: Json) -> LogBuilder:
        """`name`: fx_graph_cache_hit, aotautograd_cache_bypass, ..."""
        return self.artifact(name, {"cache_event_time": self.now_ns, **fields}, compile_id)

    def cache_miss(self, compile_id: str, key: str, components: Mapping[str, str]) -> LogBuilder:
        """The components of a key: name -> value, each with a hash of its own before it."""
        lines = [f"[{checksum(value.encode())}] {name}: {value}" for name, value in components.items()]
        detail = {"cache_state": "miss", "cache_status_detailed": "full_miss"}
        return self.cache_event(compile_id, "fx_graph_cache_miss", key=key, components=lines, **detail)

    def content(self) -> bytes:
        return b"".join(self.chunks)

    def write(self, folder: Path, name: str = "") -> Path:
        """Under the name that torch would give it, unless there is another."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or log_name(self.rank))
        path.write_bytes(self.content())
        return path


def checksum(payload: bytes) -> str:
    return md5(payload, usedforsecurity=False).hexdigest()


def log_name(rank: int | None, unique: str = "x7a_b1qz") -> str:
    owner = "" if rank is None else f"rank_{rank}_"
    return f"dedicated_log_torch_trace_{owner}{unique}.log"


def ids_of(compile_id: str, attempt: int = 0) -> dict[str, Json]:
    """`1/2`, `!0`, `!0/1/2` -> the keys of a header; empty for a record that belongs to no compilation."""
    if not compile_id:
        return {}
    ids: dict[str, Json] = {}
    frame = compile_id
    if compile_id.startswith("!"):
        autograd, _, frame = compile_id[1:].partition("/")
        ids["compiled_autograd_id"] = int(autograd)
    if frame:
        frame_id, _, frame_compile_id = frame.partition("/")
        ids.update(frame_id=int(frame_id), frame_compile_id=int(frame_compile_id))
    return {**ids, "attempt": attempt}


BREAK = """\
Graph break in user code at {file}:{line}
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

{reason}
  Explanation: Dynamo does not support tracing `Tensor.item()` with config.capture_scalar_outputs=False.
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True` to include this operation in the captured graph.

  Developer debug context: call_method

 For more details about this graph break, please visit: https://example.org/gb/gb0124.html

User code traceback:
  File "{file}", line {line}, in {function}
    {code}
    ^^^^^^^^

Traceback (most recent call last):
  File "/site-packages/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
"""

# What torch 2.13 always fills in, of its 99 fields those that some table or page shows.
METRICS: dict[str, Json] = {
    "frame_key": "1",
    "co_name": "forward",
    "co_filename": TRAIN,
    "co_firstlineno": 30,
    "cache_size": 0,
    "accumulated_cache_size": 0,
    "guard_count": 10,
    "shape_env_guard_count": 0,
    "graph_op_count": 3,
    "graph_node_count": 5,
    "graph_input_count": 1,
    "backend_compile_time_s": 0.6,
    "inductor_compile_time_s": 0.4,
    "code_gen_time_s": 0.3,
    "fail_type": None,
    "fail_reason": None,
    "fail_user_frame_filename": None,
    "fail_user_frame_lineno": None,
    "restart_reasons": [],
    "dynamo_time_before_restart_s": 0.0,
    "has_guarded_code": True,
    "is_forward": True,
    "is_runtime": False,
    "dynamo_cumulative_compile_time_us": 900_000,
    "aot_autograd_cumulative_compile_time_us": 500_000,
    "inductor_cumulative_compile_time_us": 400_000,
    "inductor_code_gen_cumulative_compile_time_us": 300_000,
    "structured_logging_overhead_us": 1_000,
    "guard_latency_us": 20,
    "recompile_reason": None,
    "cudagraph_skip_reason": None,
    "inductor_fx_local_cache_hit_count": 0,
    "inductor_fx_local_cache_miss_count": 1,
}
