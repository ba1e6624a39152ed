"""The graphs that were captured, with fingerprints by which ranks can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

from rankscope.analyze.derived import table
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Array, Table, Trace

Row = dict[str, Any]
_CAPTURED = "dynamo_output_graph"
_LOWERED = ("aot_forward_graph", "aot_backward_graph", "aot_inference_graph")  # where a log has no captured graph
# What may differ between ranks that compile the same: each is replaced by what does not.
_BY_RANK = (
    (re.compile(rb"(?m)^[ \t]*#[^\n]*\n?"), b""),  # where the code lies on this rank's host
    (re.compile(rb"(?m)[ \t]+$"), b""),
    (re.compile(rb"\n{2,}"), b"\n"),
    (re.compile(rb"\b(cuda|xpu|hpu|mtia|npu):\d+"), rb"\1"),
    (re.compile(rb"(device\(type='\w+'), index=\d+\)"), rb"\1)"),
    (re.compile(rb"\b0x[0-9a-fA-F]+"), b"0x"),
    (re.compile(rb"<eval_with_key>\.\d+"), b"<eval_with_key>"),
    (re.compile(rb"__compiled_fn_\d+\w*"), b"__compiled_fn"),
    # Ranks of other groups do the same in groups of their own.
    (re.compile(rb"(?m)(\b_?c10d_functional\.\w+(?:\.default)?\(.*)'[^'\n]*'\)"), rb"\1'group')"),
)
_ASSIGNMENT = re.compile(rb"(?m)^[ \t]+[\w.]+(?:[ \t]*:[ \t]*\"[^\"\n]*\")?[ \t]*=[ \t]*([^;\n]+)")
_NAME = re.compile(rb"[\w.]+\s*")


@table("compile_graphs", needs=("compile_records",))
def compile_graphs(trace: Trace) -> Table:
    logs = trace.table("compile_logs")
    runs = dict(zip(logs.array("file_id").tolist(), logs.array("run").tolist(), strict=True))
    sites = _sites(trace)
    known: dict[str, Row] = {}
    positions: dict[tuple[int, int], int] = {}
    rows = []
    for record in _graph_records(trace):
        process = (runs[record["file_id"]], record["rank"])
        position = positions.get(process, 0)
        positions[process] = position + 1
        rows.append(
            {
                **record,
                "run": process[0],
                "position": position,
                **_described(trace, record, known),
                **sites.get((record["file_id"], record["compile_id"]), {}),
            }
        )
    return Table.from_rows("compile_graphs", rows)


def normalised_graph(payload: bytes) -> bytes:
    """The text of a graph without what may differ between ranks that compile the same: device numbers, the place of
    the source, addresses, names of process groups, running numbers. Names of arguments stay."""
    for pattern, replacement in _BY_RANK:
        payload = pattern.sub(replacement, payload)
    return payload.strip()


def _described(trace: Trace, record: Row, known: dict[str, Row]) -> Row:
    """Equal checksums mean equal texts: these are read once, however many ranks have them."""
    if record["md5"] not in known or not record["md5"]:
        text = normalised_graph(mapped_log(trace, record["file_id"]).payload(record))
        n_ops = sum(not _NAME.fullmatch(value) for value in _ASSIGNMENT.findall(text))
        known[record["md5"]] = {"fingerprint": blake2b(text, digest_size=16).hexdigest(), "n_ops": n_ops}
    return known[record["md5"]]


def _graph_records(trace: Trace) -> Iterator[Row]:
    records = trace.table("compile_records")
    files, kinds = records.array("file_id"), records.text("kind")
    has_payload = records.array("n_payload_bytes") > 0
    captured: Array = kinds.equals(_CAPTURED) & has_payload
    lowered: Array = np.logical_or.reduce([kinds.equals(kind) for kind in _LOWERED]) & has_payload
    lowered &= ~np.isin(files, files[captured])
    return records.take(np.flatnonzero(captured | lowered)).rows()


def _sites(trace: Trace) -> dict[tuple[int, str], Row]:
    """The compiled function of each compilation. A stack's last frame shows it too, if no metrics were logged."""
    sites: dict[tuple[int, str], Row] = {}
    for name in ("compile_stacks", "compilations"):
        for row in trace.table(name).rows():
            if row["file"]:
                sites[row["file_id"], row["compile_id"]] = {name: row[name] for name in ("file", "line", "function")}
    return sites
