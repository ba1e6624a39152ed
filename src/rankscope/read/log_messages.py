"""Messages of TORCH_LOGS text -> rows of the tables about compilations, as far as the text has them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from rankscope.model.numbers import MAX_ID, integer
from rankscope.model.tables import MISSING
from rankscope.read.compile_tables import error_columns
from rankscope.read.compile_text import (
    classify_guard,
    located,
    parse_graph_break,
    parse_recompile_reasons,
    traceback_frames,
    user_frame,
)
from rankscope.read.log_text import COMPILER_ERROR, Crash, Message, Prefix
from rankscope.read.recorder_shapes import is_user_frame

Row = dict[str, Any]
Process = tuple[int, int]
# Beyond this many messages only those that a reader may look for are kept: a verbose log has millions.
MAX_LINES = 100_000
_ALWAYS_KEPT = ("recompiles", "recompiles_verbose", "graph_breaks", "perf_hints")
_MAX_TEXT = 16_384

_SITE = r"(?P<file>.+?):(?P<line>\d{1,9})"
_RECOMPILING = re.compile(rf"Recompiling function (?P<function>\S+) in {_SITE}$")
_STARTED = re.compile(
    rf"(?:Step 1: )?torchdynamo start (?:compiling|tracing) (?P<function>\S+) {_SITE}(?:, stack \(.*)?\s*$"
)
_LIMIT = re.compile(r"torch\._dynamo hit config\.(?P<name>\w+) \((?P<limit>\d+)\)")
_LIMIT_SITE = re.compile(rf"\s*function: '(?P<function>[^']+)' \({_SITE}\)\s*$")
_LIMIT_REASON = re.compile(r"\s{0,80}(?:last reason|reasons?): {0,80}")
_LIMIT_ADVICE = re.compile(r"[Tt]o (?:log|diagnose) ")
_NOT_CONVERTED = re.compile(r"WON'T CONVERT (?P<function>\S+) (?P<file>.+?) line (?P<line>\d{1,9})")
_LATENCY = re.compile(r"Guard eval latency = (?P<us>\d+(?:\.\d+)?) us")
_ITEM_BREAK = "Graph break from `Tensor.item()`"
_BREAK_SITE = ("function", "code", "caller_file", "caller_line")
_REASON_LINE = re.compile(r"^\s*- (.*)$")
_VERSION = re.compile(r"^!?\d+(?:/\d+)*(?:_\d+)?: ")

# Code, then `# train.py:14 in step (...)`; the code may hold comments of its own. Older: `at train.py:14 in step`.
_WHERE = re.compile(r"(?:# |^at |^)(?P<file>[^\s(#]+\.py):(?P<line>\d{1,9}) in (?P<function>[^\s,]+)")
_SYMBOL = re.compile(
    r"create_symbol (?P<symbol>\S+) = (?P<value>\S+) for (?P<source>.+?) (?P<expression>\[[^\]]{0,200}\])"
)
_UNBACKED = re.compile(r"create_unbacked_\w+ (?P<symbol>\S+) (?P<expression>\[[^\]]{0,200}\])")
_ADDED = re.compile(r"(?:eval|runtime_assert)(?: \(forcing_spec\))? (?P<expression>.+?) \[guard added\]")
_CONSTANT = re.compile(r"set_replacement (?P<symbol>\S+) = (?P<value>-?\d+) \((?P<reason>[^)]*)\)")
_TREE_GUARD = re.compile(r"\+- (?:LAMBDA_GUARD|SYMBOLIC_SHAPE_GUARD): ")
_NOT_ASKED_FOR = "the guard itself is not due user code"


class MessageRows:
    """Rows of one file. Each keeps the prefix of its message: time and rank are known only at the end."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self._compilations: dict[tuple[Process, str], Row] = {}
        self._breaks: dict[tuple[str, int], Row] = {}  # the full text of a break is logged once per place
        self._warned_breaks: list[Row] = []
        self._tree_guards: list[Row] = []
        self._sources: dict[tuple[Process, str], str] = {}  # symbol -> the argument behind it
        self._asked: dict[Process, Row] = {}  # the last guard on shapes

    def add(self, message: Message) -> None:
        prefix, first = message.prefix, message.lines[0]
        lines = self.rows.setdefault("log_lines", [])
        if len(lines) < MAX_LINES or prefix.channel in _ALWAYS_KEPT or prefix.level not in ("debug", "info"):
            lines.append(_log_line(message))
        if not prefix.is_compiler:
            return
        if prefix.trace_id:
            self._compilation(prefix)
        handler = _CHANNELS.get(prefix.channel)
        if handler is None:
            handler = next(
                (candidate for start, candidate in _BEGINNINGS if first.startswith(start)), MessageRows._other
            )
        handler(self, message)

    def add_crash(self, crash: Crash) -> None:
        """The message has no compile id, but it names the code that was being compiled."""
        prefix = Prefix(crash.rank, crash.launcher, MISSING, "error", 0, b"", "", MISSING, "", "")
        error = self._put("compile_errors", prefix, error_columns(crash.text))
        failed = self._compilation(prefix, f"line {crash.line}")
        failed.update(_failure(error))
        user_code = crash.text.rpartition("\nfrom user code:\n")[2]
        frames = traceback_frames(user_code.splitlines()) if user_code != crash.text else []
        if frames:
            failed.update(function=frames[0].function, file=frames[0].file)

    def finish(self) -> None:
        """What only the whole file shows."""
        compilations = list(self._compilations.values())
        sites: dict[tuple[Process, int], Row] = {}
        for row in compilations:
            if row.get("file") and row["frame_id"] != MISSING:
                sites[row["prefix"].process, row["frame_id"]] = {
                    name: row[name] for name in ("function", "file", "line")
                }
        for row in compilations:
            if not row.get("file"):
                row.update(sites.get((row["prefix"].process, row["frame_id"]), {}))
        self.rows["compilations"] = compilations
        logged = {(row.get("file"), row.get("line")) for row in self.rows.get("graph_breaks", ())}
        self._extend("graph_breaks", [row for row in self._warned_breaks if (row["file"], row["line"]) not in logged])
        added = {_compilation_of(row) for row in self.rows.get("guards", ()) if row["kind"] == "guard"}
        self._extend("guards", [row for row in self._tree_guards if _compilation_of(row) not in added])
        self._lengthen_paths()

    def _extend(self, table: str, more: list[Row]) -> None:
        if more:
            self.rows.setdefault(table, []).extend(more)

    def _lengthen_paths(self) -> None:
        """Guards name files without what torch's own folder has in common with them; other messages in full."""
        paths = {row.get("file", "") for rows in self.rows.values() for row in rows}
        known = sorted(path for path in paths if path.startswith("/"))
        full: dict[str, str] = {}
        for tail in paths - {"", *known}:
            # Where they share the root alone, torch takes away one letter too many.
            whole = [path for path in known if path.endswith(f"/{tail}") or path[2:] == tail]
            full[tail] = whole[0] if len(whole) == 1 else tail
        for row in (*self.rows.get("guards", ()), *self.rows.get("recompiles", ())):
            if row.get("file") in full:
                row["file"] = full[row["file"]]

    def _put(self, table: str, prefix: Prefix, values: Row) -> Row:
        row = {**id_columns(prefix.trace_id), "prefix": prefix, **values}
        self.rows.setdefault(table, []).append(row)
        return row

    def _compilation(self, prefix: Prefix, site: str = "") -> Row:
        """`site` replaces the compilation where the message does not name it."""
        ids = id_columns(prefix.trace_id)
        key = (prefix.process, ids["compile_id"] or site)
        row = self._compilations.setdefault(key, {**ids, "prefix": prefix, "phase": "forward"})
        row["attempt"] = max(row["attempt"], ids["attempt"])
        return row

    def _recompile(self, message: Message) -> None:
        compilation = self._compilation(message.prefix)
        compilation.update(_site_of(_RECOMPILING.match(message.lines[0])))
        texts = [match.group(1) for match in map(_REASON_LINE.match, message.lines[1:]) if match]
        if not texts:
            return
        # Without the number of the version, as before torch 2.5, each line is a reason of its own.
        starts = [number for number, text in enumerate(texts) if _VERSION.match(text)] or [*range(len(texts))]
        ends = [*starts[1:], len(texts)]
        reasons = ["\n".join(texts[start:end]) for start, end in zip(starts, ends, strict=True)]
        for row in parse_recompile_reasons("", reasons):
            self._put("recompiles", message.prefix, row)
        compilation["recompile_reason"] = reasons[0]

    def _graph_break(self, message: Message) -> None:
        row = parse_graph_break(message.text)
        if not row.get("file") and not row["reason"]:
            return
        site = (row.get("file", ""), row.get("line", MISSING))
        if row.get("function"):
            self._breaks[site] = row
        else:
            earlier = self._breaks.get(site, {})
            row.update({name: earlier[name] for name in _BREAK_SITE if name in earlier})
        self._put("graph_breaks", message.prefix, row)

    def _warned_break(self, message: Message) -> None:
        """Printed even where graph breaks are not logged."""
        frames = traceback_frames(message.lines)
        if not frames:
            return
        reason, hint = message.lines[0].partition(", consider")[0], message.lines[1].strip()
        row: Row = {**located(frames[-1]), "is_user": is_user_frame(frames[-1].file), "reason": reason, "hints": hint}
        caller = user_frame(frames)
        if caller is not None and not row["is_user"]:
            row.update(caller_file=caller.file, caller_line=caller.line)
        self._warned_breaks.append({**id_columns(message.prefix.trace_id), "prefix": message.prefix, **row})

    def _limit(self, message: Message) -> None:
        match = _LIMIT.match(message.lines[0])
        if match is None:
            return
        site = next(filter(None, map(_LIMIT_SITE.match, message.lines)), None)
        compilation = self._compilation(message.prefix, site.group() if site else "limit")
        compilation.update(_site_of(site), status="failed", fail_type="RecompileLimitExceeded")
        compilation["fail_reason"] = (
            f"Dynamo recompile limit exceeded: {match['name']} (currently set to {match['limit']})"
        )
        reason = _last_reason(message.lines)
        if reason and not compilation.get("recompile_reason"):
            compilation["recompile_reason"] = reason
            for row in parse_recompile_reasons("", [reason]):
                self._put("recompiles", message.prefix, row)

    def _started(self, message: Message) -> None:
        match = _STARTED.match(message.lines[0])
        if match is None:
            return
        site = _site_of(match)
        self._compilation(message.prefix, match.group()).update(site)
        frames = traceback_frames(message.lines[1:])
        if frames and message.prefix.trace_id:
            stack = [*map(located, frames), {**site, "code": ""}]
            for depth, frame in enumerate(stack):
                self._put(
                    "compile_stacks", message.prefix, {"depth": depth, **frame, "is_user": is_user_frame(frame["file"])}
                )

    def _not_converted(self, message: Message) -> None:
        """Torch continued without compiling because of torch._dynamo.config.suppress_errors."""
        if message.prefix.level in ("debug", "info"):
            return  # what torch leaves to Python anyway, such as a function that was compiled too often
        match = _NOT_CONVERTED.match(message.lines[0])
        site = _site_of(match)
        error = {**site, **error_columns(message.text)}
        same = [row for row in self._compilations.values() if site and site.items() <= row.items()]
        open_rows = [row for row in same if row["prefix"].process == message.prefix.process and "status" not in row]
        failed = open_rows[-1] if open_rows else self._compilation(message.prefix, message.lines[0])
        failed.update(site, **_failure(error))
        self._put("compile_errors", message.prefix, {**error, "compile_id": failed["compile_id"]})

    def _guards(self, message: Message) -> None:
        compilation = self._compilation(message.prefix)
        latency = _LATENCY.match(message.lines[0])
        if latency:
            compilation["guard_latency_ns"] = round(min(float(latency["us"]), 1e12) * 1000)
        compilation.setdefault("status", "ok")  # guards are written when all else is done
        for line in message.lines:
            match = _TREE_GUARD.search(line)
            guard, _, where = line[match.end() :].partition("  # ") if match else ("", "", "")
            if where and _NOT_ASKED_FOR not in where and classify_guard(guard.strip())["cause"] == "size":
                row = {**id_columns(message.prefix.trace_id), "prefix": message.prefix, "kind": "guard"}
                self._tree_guards.append({**row, "expression": guard.strip(), **_where(where)})

    def _symbol(self, message: Message) -> None:
        match = _SYMBOL.match(message.lines[0]) or _UNBACKED.match(message.lines[0])
        if match is None:
            return
        row = {"kind": "symbol", **match.groupdict(), **_where(message.lines[0][match.end() :])}
        self._sources[message.prefix.process, row["symbol"]] = row.get("source", "")
        self._put("guards", message.prefix, row)

    def _shape_guard(self, message: Message) -> None:
        match = _ADDED.match(message.lines[0])
        if match:
            row = {"kind": "guard", **match.groupdict(), **_where(message.lines[0][match.end() :])}
            self._asked[message.prefix.process] = self._put("guards", message.prefix, row)

    def _constant(self, message: Message) -> None:
        match = _CONSTANT.match(message.lines[0])
        if match is None:
            return
        process = message.prefix.process
        row: Row = {"kind": "specialization", **match.groupdict()}
        row["source"] = self._sources.get((process, row["symbol"]), "")
        asked = self._asked.get(process, {})
        # The guard just before it made it a constant, when it speaks of this symbol.
        if re.search(rf"\b{re.escape(row['symbol'])}\b", asked.get("expression", "")):
            row.update({name: asked[name] for name in ("file", "line", "function", "code") if name in asked})
        self._put("guards", message.prefix, row)

    def _no_cudagraph(self, message: Message) -> None:
        self._compilation(message.prefix, message.lines[0]).update(cudagraph_skip=message.text)

    def _other(self, message: Message) -> None:
        if message.prefix.level not in ("debug", "info") and COMPILER_ERROR.search(message.text):
            self._put("compile_errors", message.prefix, error_columns(message.text))


_Handler = Callable[[MessageRows, Message], None]
_CHANNELS: dict[str, _Handler] = {
    "recompiles": MessageRows._recompile,
    "recompiles_verbose": MessageRows._recompile,
    "graph_breaks": MessageRows._graph_break,
    "guards": MessageRows._guards,
}
_BEGINNINGS: tuple[tuple[str, _Handler], ...] = (
    ("create_", MessageRows._symbol),
    ("eval ", MessageRows._shape_guard),
    ("runtime_assert ", MessageRows._shape_guard),
    ("set_replacement ", MessageRows._constant),
    ("torchdynamo start ", MessageRows._started),
    ("Step 1: ", MessageRows._started),
    ("torch._dynamo hit config.", MessageRows._limit),
    ("WON'T CONVERT ", MessageRows._not_converted),
    (_ITEM_BREAK, MessageRows._warned_break),
    ("skipping cudagraphs ", MessageRows._no_cudagraph),
)


@functools.lru_cache(maxsize=1024)
def id_columns(trace_id: str) -> Row:
    """`!0/1/2_3` -> compilation !0/1/2, restarted three times."""
    compile_id, _, attempt = trace_id.partition("_")
    parts = [integer(part, default=MAX_ID) for part in compile_id.lstrip("!").split("/") if part]
    autograd = [parts.pop(0)] if compile_id.startswith("!") else []
    frame, frame_compile, *_ = [*parts, MISSING, MISSING]
    tried = integer(attempt, default=MAX_ID) if attempt else 0
    return {
        "compile_id": compile_id,
        "frame_id": frame,
        "frame_compile_id": frame_compile,
        "autograd_id": autograd[0] if autograd else MISSING,
        "attempt": tried if trace_id else MISSING,
    }


def _compilation_of(row: Row) -> tuple[Process, str]:
    return row["prefix"].process, row["compile_id"]


def _log_line(message: Message) -> Row:
    prefix = message.prefix
    ids = id_columns(prefix.trace_id)
    return {
        "prefix": prefix,
        "line": message.line,
        "level": prefix.level,
        "pid": prefix.pid,
        "module": prefix.module,
        "module_line": prefix.module_line,
        "compile_id": ids["compile_id"],
        "attempt": ids["attempt"],
        "channel": prefix.channel,
        "message": message.text[:_MAX_TEXT],
    }


def _site_of(match: re.Match[str] | None) -> Row:
    return (
        {} if match is None else {"function": match["function"], "file": match["file"], "line": integer(match["line"])}
    )


def _last_reason(lines: list[str]) -> str:
    """The last reason in the warning that too many versions were compiled: it may have several lines."""
    start = next((number for number, line in enumerate(lines) if _LIMIT_REASON.match(line)), len(lines))
    end = next((number for number, line in enumerate(lines) if _LIMIT_ADVICE.match(line)), len(lines))
    return _LIMIT_REASON.sub("", "\n".join(lines[start:end]), count=1).strip()


def _failure(error: Row) -> Row:
    """The columns of a compilation that an error ended."""
    kind, reason = error["type"].rpartition(".")[2], error["message"].partition(": ")[2]
    site = {"fail_file": error.get("file", ""), "fail_line": error.get("line", MISSING)}
    return {"status": "failed", "fail_type": kind, "fail_reason": reason, **site}


def _where(text: str) -> Row:
    text = text.strip()
    match = _WHERE.search(text)
    return {} if match is None else {**_site_of(match), "code": text[: match.start()].rstrip()}
