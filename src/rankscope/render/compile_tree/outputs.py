"""Which files the report tree has, under which names and numbers: planned from the index of records alone.

Scripts were built on tlparse's names, so each file that tlparse writes keeps its exact name. It numbers the files of a
log with one counter, which links and readable twins use up as well. Records that tlparse drops or does not know get
the number that was given last and a letter behind it (compilation_metrics_runtime_41a.html): nobody else's number
moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import md5
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np

from rankscope.model.numbers import integer
from rankscope.model.payloads import MappedLog, mapped_log
from rankscope.model.tables import Array, Table, Trace
from rankscope.render.html import NOTHING, Html

Row = dict[str, Any]
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last one where it is nested too deeply

# Kinds whose payload is the file, under the kind's own name.
_GRAPH_KINDS = (
    *("optimize_ddp_split_graph", "compiled_autograd_graph", "aot_forward_graph", "aot_backward_graph"),
    *("aot_inference_graph", "aot_joint_graph", "inductor_post_grad_graph", "inductor_pre_grad_graph"),
    *("dynamo_cpp_guards_str", "dynamo_output_graph"),
)
_METRICS = {
    "compilation_metrics": "metrics",
    "bwd_compilation_metrics": "bwd_metrics",
    "aot_autograd_backward_compilation_metrics": "bwd_metrics",
    "compilation_metrics_runtime": "runtime_metrics",
    "bwd_compilation_metrics_runtime": "runtime_metrics",
}
_OTHERS = ("artifact", "graph_dump", "optimize_ddp_split_child", "inductor_output_code", "dump_file", "link")
_KINDS = frozenset((*_GRAPH_KINDS, *_METRICS, *_OTHERS, "dynamo_guards"))
_NEVER_FILES = ("", "str", "chromium_event")  # these have their place in raw.jsonl and chromium_events.json
_STACK_TRACES = "inductor_provenance_tracking_kernel_stack_traces"
_OWN_RANK = re.compile(rb'"rank": ?(\d+)')
_EVAL_WITH_KEY = re.compile(r"<eval_with_key>\.(\d+)")
_MD5 = re.compile(r"[0-9a-f]{32}")
_MAX_NAME_BYTES = 180  # a file's name may have 255, of which numbers and extensions need some


class _Target(NamedTuple):
    """The compilation that a file belongs to."""

    directory: str
    label: str


class TreeOptions(NamedTuple):
    plain_text: bool = False  # generated code as .txt instead of a page
    all_ranks: bool = False  # a landing page and a folder per rank, even for a single rank
    export: bool = False
    provenance: bool = False
    base: str = ""  # files below this folder are shown relative to it, relative ones are looked up in it
    meanings: Mapping[str, str] = MappingProxyType({})  # code of a rule -> what it finds, in one sentence
    header_html: Html = NOTHING  # the user's own, on top of the first page
    progress: Callable[[int, int, str], None] | None = None


class Output(NamedTuple):
    path: str  # relative to the rank's folder: -_0_0_0/dynamo_output_graph_3.txt; empty for a link
    name: str  # dynamo_output_graph_3.txt, or the text of a link
    number: int
    suffix: str  # ✅ cache hit, ❌ cache miss, ❓ cache bypassed
    compile_dir: str  # -_0_0_0
    label: str  # [0/0], [0/0_1], [!0/-/-], [-/-]
    how: str  # payload, json, code, guards, metrics, bwd_metrics, runtime_metrics, source, link, unknown
    row: Row  # of compile_records
    url: str = ""  # of a link; empty when its scheme is not safe to follow
    readable: str = ""  # path of the page that shows the same for people


class RankTree(NamedTuple):
    """One rank's part of a report: its folder below the report's, and what is in it."""

    rank: int  # -1 when nothing tells it
    folder: str  # rank_0; empty when the report is about one rank
    file_ids: tuple[int, ...]
    outputs: list[Output]


def link_target(output: Output, prefix: str = "") -> str:
    """What an href must hold, not yet escaped for HTML; empty when there is nothing to follow."""
    return output.url if output.how == "link" else quote(prefix + output.path)


def logs_by_rank(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Rank -> its TORCH_TRACE logs of the newest run, the earliest first. A forked child has a log of its own."""
    logs = [log for log in trace.table("compile_logs").rows() if log["source"] == "trace"]
    newest = max((log["run"] for log in logs), default=0)
    chosen: dict[int, tuple[int, ...]] = {}
    for log in sorted(logs, key=lambda log: (log["rank"], log["first_ns"], log["file_id"])):
        if log["run"] == newest:
            chosen[log["rank"]] = (*chosen.get(log["rank"], ()), log["file_id"])
    return chosen


def plan_ranks(trace: Trace, options: TreeOptions) -> list[RankTree]:
    """What the report of the newest run is made of."""
    by_rank = logs_by_rank(trace)
    in_folders = options.all_ranks or len(by_rank) > 1
    trees = []
    for rank, file_ids in by_rank.items():
        folder = f"rank_{rank if rank >= 0 else 'unknown'}" if in_folders else ""
        tree = RankTree(rank, folder, file_ids, [])
        trees.append(tree._replace(outputs=plan_outputs(trace, tree_records(trace, tree), options)))
    return trees


def records_of(trace: Trace, file_ids: Iterable[int]) -> Table:
    """The records of these logs, in the order of the logs as given."""
    records = trace.table("compile_records")
    places = [np.flatnonzero(records.array("file_id") == file_id) for file_id in file_ids]
    if len(places) == 1 and len(places[0]) == len(records):
        return records  # the index of a gigabyte need not be copied
    return records.take(np.concatenate(places or [np.empty(0, np.int64)]))


def tree_records(trace: Trace, tree: RankTree) -> Table:
    """The records of a rank's logs; of a stream that several ranks wrote to, its own ones."""
    records = records_of(trace, tree.file_ids)
    logs = trace.table("compile_logs").array("file_id").tolist()
    shared = [file_id for file_id in tree.file_ids if logs.count(file_id) > 1]
    if not shared:
        return records
    is_own = ~np.isin(records.array("file_id"), shared) | (records.array("rank") == tree.rank)
    return records.take(np.flatnonzero(is_own))


def plan_outputs(trace: Trace, records: Table, options: TreeOptions) -> list[Output]:
    """Every file and link of one rank's tree, in the order of its records (see `records_of`)."""
    plan = _Plan(options)
    for file_records in by_file(records):
        file_id = int(file_records.array("file_id")[0])
        log = mapped_log(trace, file_id)
        log.give_back()  # what the rules have looked at
        is_dropped = _dropped_by_tlparse(log, file_records)
        for row in file_records.take(rows_with_file(file_records)).rows():
            plan.add(row, log, is_dropped(row))
    return plan.outputs


def by_file(records: Table) -> list[Table]:
    files = records.array("file_id")
    ids = list(dict.fromkeys(files.tolist()))
    return [records] if len(ids) == 1 else [records.take(np.flatnonzero(files == file_id)) for file_id in ids]


def labels_of(records: Table) -> dict[str, str]:
    """Label -> directory of every compilation in the records, in their order, with or without files."""
    known = ~_is_kind(records, ("", "str"))
    names = ("autograd_id", "frame_id", "frame_compile_id", "attempt")
    labels: dict[str, str] = {}
    for ids in dict.fromkeys(zip(*(records.array(name)[known].tolist() for name in names), strict=True)):
        labels.setdefault(label_of(*ids), directory_of(*ids))
    return labels


@lru_cache(maxsize=4096)
def label_of(autograd_id: int, frame_id: int, frame_compile_id: int, attempt: int) -> str:
    autograd = f"!{autograd_id}/" if autograd_id >= 0 else ""
    return f"[{autograd}{_or_dash(frame_id)}/{_or_dash(frame_compile_id)}{f'_{attempt}' if attempt > 0 else ''}]"


@lru_cache(maxsize=4096)
def directory_of(*ids: int) -> str:
    """The directory for the four numbers that label_of takes; tlparse has one for records without an attempt."""
    return "_".join(map(_or_dash, ids))


def payload_path(row: Row, log: MappedLog) -> str:
    """Where a payload lies that has no file with a name."""
    checksum: str = row["md5"]
    if not _MD5.fullmatch(checksum):  # then it may be anything, a path for instance
        checksum = md5(log.payload(row), usedforsecurity=False).hexdigest()
    return f"payloads/{checksum}.txt"


@lru_cache(maxsize=4096)  # the same few names come again with each compilation
def safe_name(name: str) -> str:
    """A name from a log as part of one file's name: it cannot lead anywhere else, and every file system takes it."""
    flat = "".join(char if char.isprintable() and char not in "/\\" else "_" for char in name).lstrip(". ")
    while len(flat.encode()) > _MAX_NAME_BYTES:
        flat = flat[: max(_MAX_NAME_BYTES // 4, len(flat) - 8)]
    return flat or "unnamed"


class _Plan:
    """The counter, and what was planned so far."""

    def __init__(self, options: TreeOptions) -> None:
        self.options = options
        self.outputs: list[Output] = []
        self._next = 0
        self._n_letters = 0
        self._owner: dict[str, int] = {}  # global file -> the log that it is of

    def add(self, row: Row, log: MappedLog, is_dropped: bool) -> None:
        ids = (row["autograd_id"], row["frame_id"], row["frame_compile_id"], row["attempt"])
        target = _Target(directory_of(*ids), label_of(*ids))
        kind: str = row["kind"]
        if kind not in _KINDS:
            path = payload_path(row, log)
            self.outputs.append(Output(path, kind, max(self._next - 1, 0), "", *target, "unknown", row))
        elif kind == "link":
            number = self._number(is_dropped)
            self.outputs.append(Output("", row["name"], number, "", *target, "link", row, _url(log, row)))
        elif kind == "dump_file":
            path = self._global_path(row)
            name = path.rpartition("/")[2]
            self.outputs.append(Output(path, name, self._number(is_dropped), "", *target, "source", row))
        else:
            self._add_file(row, log, target, is_dropped)

    def _add_file(self, row: Row, log: MappedLog, target: _Target, is_dropped: bool) -> None:
        how, stem, extension = file_form(row, self.options.plain_text)
        if how == "runtime_metrics" and row["frame_compile_id"] >= 0 and row["attempt"] < 0:
            directory = directory_of(row["autograd_id"], row["frame_id"], row["frame_compile_id"], 0)
            target = target._replace(directory=directory)
        is_extra = is_dropped or how == "runtime_metrics" or not _is_readable(row, how, log)
        number = self._number(is_extra)
        numbered = f"{stem}_{number}{_letters(self._n_letters) if is_extra else ''}"
        readable = ""
        if how == "json" and stem.startswith(_STACK_TRACES) and not is_extra and _is_json(log.payload(row)):
            readable = f"{target.directory}/{numbered}_readable.html"
            number = self._number(is_extra)  # tlparse lists the file under the number of its twin
        name = f"{numbered}.{extension}"
        path = f"{target.directory}/{name}"
        self.outputs.append(Output(path, name, number, _suffix(name), *target, how, row, "", readable))

    def _number(self, is_extra: bool) -> int:
        if is_extra:
            self._n_letters += 1
            return max(self._next - 1, 0)
        if self._next:
            self._n_letters = 0
        self._next += 1
        return self._next - 1

    def _global_path(self, row: Row) -> str:
        """Sources have no number in their names: stacks point at them. A second log of the rank has its own ones."""
        key = _EVAL_WITH_KEY.search(row["name"])
        stem = f"eval_with_key_{key.group(1)[:20]}" if key else safe_name(row["name"])
        path = f"dump_file/{stem}.html"
        if self._owner.setdefault(path, row["file_id"]) != row["file_id"]:
            path = f"dump_file/{stem}_of_log_{row['file_id']}.html"
        return path


def file_form(row: Row, plain_text: bool) -> tuple[str, str, str]:
    """How the file is made, its name without number, and its extension."""
    kind, name = row["kind"], safe_name(row["name"])
    if kind in _METRICS:
        return _METRICS[kind], kind, "html"
    if kind == "artifact":
        return ("json", name, "json") if row["encoding"] == "json" else ("payload", name, "txt")
    if kind == "inductor_output_code":
        stem = _file_stem(row["name"])
        named = f"{kind}_{safe_name(stem)}" if stem else kind
        return ("payload", named, "txt") if plain_text else ("code", named, "html")
    if kind == "graph_dump":
        return "payload", name, "txt"
    if kind == "optimize_ddp_split_child":
        return "payload", f"{kind}_{name}", "txt"
    return ("guards", kind, "html") if kind == "dynamo_guards" else ("payload", kind, "txt")


def _is_readable(row: Row, how: str, log: MappedLog) -> bool:
    """tlparse gives no number to guards that are not JSON, nor to artifacts in an encoding that it does not know."""
    if how == "guards":
        return _is_json(log.payload(row))
    return row["kind"] != "artifact" or row["encoding"] in ("string", "json")


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.format(payload)
    except NOT_JSON:
        return False
    return True


def rows_with_file(records: Table) -> Array:
    has_payload = (records.array("n_payload_bytes") > 0) & ~_is_kind(records, _NEVER_FILES)
    return np.flatnonzero(_is_kind(records, _KINDS) | has_payload)


def _is_kind(records: Table, kinds: Iterable[str]) -> Array:
    column, wanted = records.text("kind"), frozenset(kinds)
    hits = np.fromiter((value in wanted for value in column.values), bool, len(column.values))
    return hits[column.codes] if len(hits) else np.zeros(len(records), bool)


def _dropped_by_tlparse(log: MappedLog, records: Table) -> Callable[[Row], bool]:
    """Once a record has named its rank, tlparse drops all records that name another one or none."""
    first_rank = _first_rank(log, records)
    if first_rank is None:
        return lambda row: False
    first, expected = first_rank
    return lambda row: row["record"] > first and _rank_in(log.header(row)) != expected


def _first_rank(log: MappedLog, records: Table) -> tuple[int, int] | None:
    """Half of all records are events: these are looked at only when another record has shown that there are ranks."""
    is_event = _is_kind(records, ("chromium_event",))
    first = _first_rank_in(log, records.take(np.flatnonzero(~is_event & ~_is_kind(records, ("", "str")))))
    if first is None:
        return None
    earlier = records.take(np.flatnonzero(is_event & (records.array("record") < first[0])))
    return _first_rank_in(log, earlier) or first


def _first_rank_in(log: MappedLog, records: Table) -> tuple[int, int] | None:
    columns = (records.array(name).tolist() for name in ("record", "header_start", "n_header_bytes"))
    for record, start, length in zip(*columns, strict=True):
        rank = _rank_in(log.header({"header_start": start, "n_header_bytes": length}))
        if rank is not None:
            return record, rank
    return None


def _rank_in(header: bytes) -> int | None:
    offset = header.find(b'"rank":')  # much faster than a pattern where there is none
    match = _OWN_RANK.match(header, offset) if offset >= 0 else None
    return integer(match.group(1)) if match else None


def _url(log: MappedLog, row: Row) -> str:
    try:
        url = msgspec.json.decode(log.header(row))["link"]["url"]
    except (*NOT_JSON, KeyError, TypeError):
        return ""
    return url if isinstance(url, str) and re.match(r"https?://", url, re.IGNORECASE) else ""


def _file_stem(path: str) -> str:
    """What Rust's standard library calls so: the last part of the path, without its last extension."""
    base = path.rstrip("/").rpartition("/")[2]
    stem, dot, _ = base.rpartition(".")
    return "" if base in ("", ".", "..") else stem if dot and stem else base


def _suffix(name: str) -> str:
    for part, sign in (("cache_miss", "❌"), ("cache_hit", "✅"), ("cache_bypass", "❓")):
        if part in name:
            return sign
    return ""


def _letters(count: int) -> str:
    """1 -> a, 26 -> z, 27 -> aa."""
    text = ""
    while count > 0:
        count, digit = divmod(count - 1, 26)
        text = chr(ord("a") + digit) + text
    return text


def _or_dash(number: int) -> str:
    return str(number) if number >= 0 else "-"


def by_label(outputs: Sequence[Output]) -> dict[str, list[Output]]:
    """What belongs to each compilation, all its phases together, in the order of the records."""
    groups: dict[str, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.label, []).append(output)
    return groups
