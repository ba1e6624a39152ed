"""What the index of one rank shows, gathered from the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.model.numbers import integer
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import MISSING, Trace
from rankscope.render.compile_tree.outputs import Output, RankTree

Row = dict[str, Any]
Key = tuple[int, str]  # log and compile id
STATUS_WORDS = {
    "ok": "compiled",
    "break": "compiled after a restart, for example because of a graph break",
    "empty": "nothing to compile: no operator was captured",
    "error": "failed",
    "missing": "no metrics: the log ends before the compilation did",
}
MAX_STRAYS = 2000  # records that are looked at for a stack of their own
CONFIGS = ("dynamo_config", "inductor_config", "functorch_config", "compiler_config")
VERSIONS = ("pytorch_version", "python_version", "triton_version", "cuda_version")


class Compilation(NamedTuple):
    """All phases and attempts of one compile id."""

    key: Key
    anchor: str
    status: str  # a key of STATUS_WORDS
    function: str
    place: str  # the user's own line that leads there: file:line
    duration_ns: int
    n_ops: int
    n_nodes: int
    n_guards: int
    n_attempts: int
    fail: str
    is_recompilation: bool
    outputs: list[Output]
    ranks: tuple[int, ...] = ()  # that did this alike, where several are shown together

    @property
    def label(self) -> str:
        return f"[{self.key[1] or '-/-'}]"

    @property
    def n_bytes(self) -> int:
        return sum(output.row["n_payload_bytes"] for output in self.outputs)


class Totals(NamedTuple):
    n_compilations: int
    total_ns: int
    n_recompilations: int
    recompile_ns: int
    n_failed: int
    n_breaks: int
    n_distinct_breaks: int
    n_hits: int
    n_misses: int
    n_bypasses: int


class RankView:
    """The tables of one rank's logs, read once each."""

    def __init__(self, trace: Trace, tree: RankTree) -> None:
        self.trace = trace
        self.tree = tree
        self._rows: dict[str, list[Row]] = {}
        self._names: dict[int, dict[int, str]] = {}

    def rows(self, table: str) -> list[Row]:
        if table not in self._rows:
            whole = self.trace.table(table)
            self._rows[table] = list(
                whole.take(np.isin(whole.array("file_id"), self.tree.file_ids).nonzero()[0]).rows()
            )
        return self._rows[table]

    def names(self, file_id: int) -> dict[int, str]:
        """File names by the number that the log gave them."""
        if file_id not in self._names:
            records = self.trace.table("compile_records")
            is_name = records.text("kind").equals("str") & (records.array("file_id") == file_id)
            pairs = [_header(self, row).get("str") for row in records.take(is_name.nonzero()[0]).rows()]
            self._names[file_id] = {
                pair[1]: str(pair[0])
                for pair in pairs
                if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], int)
            }
        return self._names[file_id]

    def ledger(self) -> list[Row]:
        """The most expensive line first."""
        runs = {log["run"] for log in self.rows("compile_logs")}
        rows = self.trace.table("compile_ledger").rows()
        rank_rows = [row for row in rows if row["rank"] == self.tree.rank and row["run"] in runs]
        return sorted(rank_rows, key=lambda row: -row["total_ns"])


def compilations_of(view: RankView) -> list[Compilation]:
    """Every compile id that has metrics, a stack or files, in order."""
    phases: dict[Key, list[Row]] = {}
    for row in view.rows("compilations"):
        phases.setdefault((row["file_id"], row["compile_id"]), []).append(row)
    files: dict[Key, list[Output]] = {}
    for output in view.tree.outputs:
        files.setdefault((output.row["file_id"], output.row["compile_id"]), []).append(output)
    stacks = stacks_of(view)
    broken = {(row["file_id"], row["compile_id"]) for row in view.rows("graph_breaks")}
    order = {file_id: position for position, file_id in enumerate(view.tree.file_ids)}
    keys = sorted({*phases, *files, *stacks}, key=lambda key: (order[key[0]], not key[1], id_order(key[1])))
    return [
        _compilation(
            _Records(key, anchor_of(key, order), phases.get(key, []), key in broken),
            stacks.get(key, []),
            files.get(key, []),
        )
        for key in keys
    ]


def anchor_of(key: Key, order: dict[int, int]) -> str:
    """0/1 -> frame-0-1, !2/0/1 -> frame-a2-0-1; a second log of the rank has its number behind it."""
    position = order[key[0]]
    name = key[1].replace("!", "a").replace("/", "-") or "none"
    return f"frame-{name}" + (f"-log-{position + 1}" if position else "")


def id_order(compile_id: str) -> list[int]:
    """0/10 behind 0/9; compiled autograd's own graphs behind the frames."""
    is_autograd, *parts = compile_id.startswith("!"), *compile_id.lstrip("!").split("/")
    return [int(is_autograd), *map(integer, parts)]


class _Records(NamedTuple):
    """What the log says about one compilation."""

    key: Key
    anchor: str
    phases: list[Row]
    is_broken: bool  # its graph was


def _compilation(records: _Records, stack: list[Row], outputs: list[Output]) -> Compilation:
    key, phases = records.key, records.phases
    forward = next((row for row in phases if row["phase"] == "forward"), phases[0] if phases else None)
    fail = next((row for row in phases if row["fail_type"]), None)
    user_frame = next((frame for frame in reversed(stack) if frame["is_user"]), None)
    return Compilation(
        key=key,
        anchor=records.anchor,
        status=_status(phases, records.is_broken) if phases or stack else "",
        function=forward["function"] if forward else stack[-1]["function"] if stack else "",
        place=f"{user_frame['file']}:{user_frame['line']}" if user_frame else _own_place(forward),
        duration_ns=sum(max(row["duration_ns"], 0) for row in phases),
        n_ops=_largest(phases, "n_ops"),
        n_nodes=_largest(phases, "n_nodes"),
        n_guards=_largest(phases, "n_guards"),
        n_attempts=max(_largest(phases, "attempt"), 0) + 1,
        fail=f"{fail['fail_type']}: {fail['fail_reason']}" if fail else "",
        is_recompilation=any(row["frame_compile_id"] > 0 for row in phases),
        outputs=outputs,
    )


def _largest(phases: list[Row], column: str) -> int:
    return max((row[column] for row in phases), default=MISSING)


def _own_place(row: Row | None) -> str:
    return f"{row['file']}:{row['line']}" if row and row["file"] else ""


def _status(phases: list[Row], is_broken: bool) -> str:
    states = {row["status"] for row in phases}
    if "failed" in states:
        return "error"
    if not phases or "unfinished" in states:
        return "missing"
    if states == {"empty"}:
        return "empty"
    return "break" if is_broken or any(row["restart_reasons"] for row in phases) else "ok"


def stacks_of(view: RankView) -> dict[Key, list[Row]]:
    """Outermost call first."""
    stacks: dict[Key, list[Row]] = {}
    for row in view.rows("compile_stacks"):
        stacks.setdefault((row["file_id"], row["compile_id"]), []).append(row)
    return stacks


def totals_of(view: RankView, compilations: Iterable[Compilation]) -> Totals:
    real = [each for each in compilations if each.status]
    ledger, breaks = view.ledger(), view.rows("graph_breaks")
    outcomes = Counter(row["outcome"] for row in view.rows("cache_events"))
    return Totals(
        n_compilations=len(real),
        total_ns=sum(row["total_ns"] for row in ledger),
        n_recompilations=sum(each.is_recompilation for each in real),
        recompile_ns=sum(row["recompile_ns"] for row in ledger),
        n_failed=sum(each.status == "error" for each in real),
        n_breaks=len(breaks),
        n_distinct_breaks=len({(row["file"], row["line"], row["reason"]) for row in breaks}),
        n_hits=outcomes["hit"],
        n_misses=outcomes["miss"],
        n_bypasses=outcomes["bypass"],
    )


def code_by_line(view: RankView) -> dict[tuple[str, int], str]:
    """The code that the logs quote for a line; the file may have been edited since."""
    lines: dict[tuple[str, int], str] = {}
    for table in ("compile_stacks", "graph_breaks", "recompiles", "guards", "compile_errors"):
        for row in view.rows(table):
            if row["code"]:
                lines.setdefault((row["file"], row["line"]), row["code"])
    return lines


class Stray(NamedTuple):
    what: str
    frames: list[Row]  # like those of compile_stacks


def stray_stacks_of(view: RankView) -> list[Stray]:
    """Stacks of records that should belong to a compilation and do not."""
    records = view.trace.table("compile_records")
    candidates = np.isin(records.array("file_id"), view.tree.file_ids) & records.text("compile_id").equals("")
    for kind in ("", "str", "chromium_event"):
        candidates &= ~records.text("kind").equals(kind)
    strays: list[Stray] = []
    for row in records.take(candidates.nonzero()[0][:MAX_STRAYS]).rows():
        stack = _header(view, row).get("stack")
        if isinstance(stack, list):
            names = view.names(row["file_id"])
            frames = [_frame(frame, names) for frame in stack if isinstance(frame, dict)]
            strays.append(Stray(row["name"] or row["kind"], frames))
    return strays


def _frame(frame: dict[str, Any], names: dict[int, str]) -> Row:
    number = frame.get("filename")
    file = names.get(number, f"<string {number}>") if isinstance(number, int) else str(number)
    line = frame.get("line")
    return {
        "file": file,
        "line": line if isinstance(line, int) else MISSING,
        "function": str(frame.get("name", "")),
        "code": str(frame.get("loc") or ""),
        "is_user": True,
    }


class KindCount(NamedTuple):
    kind: str
    n_records: int
    n_bytes: int


def kinds_of(view: RankView) -> list[KindCount]:
    """How many records of each kind the logs hold; the kind is empty for those that could not be understood."""
    records = view.trace.table("compile_records")
    is_shown = np.isin(records.array("file_id"), view.tree.file_ids)
    column = records.text("kind")
    codes = column.codes[is_shown]
    counts = np.bincount(codes, minlength=len(column.values))
    sizes = np.bincount(
        codes,
        weights=(records.array("n_header_bytes") + records.array("n_payload_bytes"))[is_shown],
        minlength=len(column.values),
    )
    rows = zip(column.values, counts.tolist(), sizes.tolist(), strict=True)
    return sorted((KindCount(kind, n, int(size)) for kind, n, size in rows if n), key=lambda row: -row.n_bytes)


def settings_of(view: RankView) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Versions, and every setting by the part of the compiler it belongs to, as the first metrics list them."""
    versions = {"pytorch_version": next((log["torch_version"] for log in view.rows("compile_logs")), "")}
    configs: dict[str, dict[str, str]] = {}
    for row in view.rows("compilations")[:1]:
        metrics = _metrics(view, row)
        versions |= {name: str(metrics[name]) for name in VERSIONS if metrics.get(name)}
        configs = {name: values for name in CONFIGS if (values := _values(metrics.get(name)))}
    return {name: version for name, version in versions.items() if version}, configs


def _metrics(view: RankView, compilation: Row) -> dict[str, Any]:
    records = view.trace.table("compile_records")
    same = (records.array("file_id") == compilation["file_id"]) & (records.array("record") == compilation["record"])
    for row in records.take(same.nonzero()[0]).rows():
        metrics = _header(view, row).get(row["kind"])
        return metrics if isinstance(metrics, dict) else {}
    return {}


def _header(view: RankView, row: Row) -> dict[str, Any]:
    try:
        header = msgspec.json.decode(mapped_log(view.trace, row["file_id"]).header(row))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return header if isinstance(header, dict) else {}


def _values(config: object) -> dict[str, str]:
    """torch records a configuration as JSON in a string."""
    if not isinstance(config, str):
        return {}
    try:
        values = msgspec.json.decode(config)
    except msgspec.DecodeError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {
        str(name): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in values.items()
    }
