"""Writes the report tree: for one rank in the folder itself, for several in rank_N/ below a landing page.

The pages that take more than a few lines are made by the modules beside this one:
    index_page.write_index(trace, report, tree, folder, options)
    metrics_page.MetricsPages(trace, outputs).page(output)
    provenance.write_provenance(trace, tree, folder)
    provenance.readable_stack_traces(payload)
    export_page.write_export(trace, report, tree, folder, options)
    timeline.write_chromium_events(trace, file_ids, path)
    ranks_files.write_parity(trace, tree, folder)
    ranks_page.write_ranks(trace, report, folder, trees, options)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import md5
from typing import BinaryIO

import msgspec

from rankscope.model.artifact_names import other_spelling
from rankscope.model.finding import Report
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace
from rankscope.render.compile_tree.outputs import (
    NOT_JSON,
    Output,
    RankTree,
    TreeOptions,
    labels_of,
    payload_path,
    plan_ranks,
    tree_records,
)

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
_AS_TEXT = ("payload", "json")  # the file is the payload itself, or the same laid out for people


class Folder:
    """A folder that files are put in. Paths come from the plan, so none of them leads out of it."""

    def __init__(self, root: str) -> None:
        self.root = root
        os.makedirs(root, exist_ok=True)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, relative: str, content: bytes) -> None:
        # A report has tens of thousands of small files: Python's file objects would cost more than the writing.
        path = f"{self.root}/{relative}"
        try:
            file = os.open(path, _WRITE, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = os.open(path, _WRITE, 0o666)
        try:
            n_written = os.write(file, content)
            while n_written < len(content):
                n_written += os.write(file, content[n_written:])
        finally:
            os.close(file)

    def twin(self, relative: str, other: str) -> None:
        """The same file under another name, without room of its own where the file system can do that."""
        source, target = self.path(relative), self.path(other)
        try:
            if os.path.lexists(target):
                os.unlink(target)
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


def write_tree(trace: Trace, report: Report, folder: str, options: TreeOptions) -> list[RankTree]:
    """The whole report of the newest run, in a new folder."""
    trees = plan_ranks(trace, options)
    for done, tree in enumerate(trees):
        if options.progress is not None:
            options.progress(done, len(trees), "writing the report, ranks")
        write_rank(trace, report, tree, os.path.join(folder, tree.folder) if tree.folder else folder, options)
    if any(tree.folder for tree in trees):
        from rankscope.render.compile_tree.ranks_page import write_ranks

        write_ranks(trace, report, folder, trees, options)
    return trees


def write_rank(trace: Trace, report: Report, tree: RankTree, folder: str, options: TreeOptions) -> None:
    target = Folder(folder)
    if options.export:
        from rankscope.render.compile_tree.export_page import write_export

        write_export(trace, report, tree, folder, options)
        return
    from rankscope.render.compile_tree.failures_page import failures_page
    from rankscope.render.compile_tree.index_page import write_index
    from rankscope.render.compile_tree.raw_records import write_raw_records
    from rankscope.render.compile_tree.timeline import write_chromium_events

    names = write_outputs(trace, tree.outputs, target)
    target.write("failures_and_restarts.html", failures_page(trace, tree))
    target.write("compile_directory.json", compile_directory(trace, tree))
    write_raw_records(trace, tree_records(trace, tree), names, target.path("raw.jsonl"))
    write_raw_log(trace, tree.file_ids, target.path("raw.log"))
    write_chromium_events(trace, tree.file_ids, target.path("chromium_events.json"))
    if options.provenance:
        from rankscope.render.compile_tree.provenance import write_provenance

        write_provenance(trace, tree, folder)
    if tree.folder:
        from rankscope.render.compile_tree.ranks_files import write_parity

        write_parity(trace, tree, folder)
    write_index(trace, report, tree, folder, options)  # last: it links what is there


def write_outputs(trace: Trace, outputs: Sequence[Output], target: Folder) -> dict[tuple[int, int], str]:
    """Returns where the payload of each (file, record) lies, which raw.jsonl needs."""
    makers = _makers(trace, outputs)
    names: dict[tuple[int, int], str] = {}
    sizes: dict[str, int] = {}  # of the payloads that were written under their checksum
    for output in outputs:
        row = output.row
        log = mapped_log(trace, row["file_id"])
        payload = log.payload(row) if row["n_payload_bytes"] else b""
        if output.how in makers:
            target.write(output.path, makers[output.how](output, payload))
            if other_spelling(output.name):
                target.twin(output.path, f"{output.path.removesuffix(output.name)}{other_spelling(output.name)}")
        if output.readable:
            from rankscope.render.compile_tree.provenance import readable_stack_traces

            target.write(output.readable, readable_stack_traces(payload))
        if output.how in _AS_TEXT:
            names[row["file_id"], row["record"]] = output.path
        elif payload:
            name = payload_path(row, log)
            if sizes.get(name, len(payload)) != len(payload):  # the checksum cannot be right for both
                name = f"payloads/{md5(payload, usedforsecurity=False).hexdigest()}.txt"
            if name not in sizes:
                sizes[name] = len(payload)
                target.write(name, payload)
            names[row["file_id"], row["record"]] = name
    return names


def _makers(trace: Trace, outputs: Sequence[Output]) -> Mapping[str, Callable[[Output, bytes], bytes]]:
    """How the content of each sort of file is made. Kinds missing here get only the file of the payload."""
    from rankscope.render.compile_tree.metrics_page import MetricsPages
    from rankscope.render.compile_tree.small_pages import code_page, guards_page, source_page

    metrics = MetricsPages(trace, outputs).page
    return {
        "payload": lambda output, payload: payload,
        "json": lambda output, payload: laid_out(payload),
        "code": lambda output, payload: code_page(output.name, payload),
        "guards": lambda output, payload: guards_page(output.label, payload),
        "source": lambda output, payload: source_page(output.row["name"], payload),
        "metrics": lambda output, payload: metrics(output),
        "bwd_metrics": lambda output, payload: metrics(output),
        "runtime_metrics": lambda output, payload: metrics(output),
    }


def laid_out(payload: bytes) -> bytes:
    """JSON with a line per value. Not all that is logged as JSON is JSON: a single reason is logged as bare text."""
    try:
        return msgspec.json.format(payload, indent=2)
    except NOT_JSON:
        return payload


def compile_directory(trace: Trace, tree: RankTree) -> bytes:
    """Label -> what belongs to the compilation, with the keys that tlparse gives it."""
    listed: dict[str, dict[str, list[dict[str, object]]]] = {}
    for label in labels_of(tree_records(trace, tree)):
        listed[label] = {"artifacts": []}
    for output in tree.outputs:
        entry = {
            "url": output.url if output.how == "link" else output.path,
            "name": output.name,
            "number": output.number,
            "suffix": output.suffix,
            "readable_url": output.readable or None,
        }
        listed[output.label]["artifacts"].append(entry)
    return msgspec.json.format(msgspec.json.encode(listed), indent=2)


def write_raw_log(trace: Trace, file_ids: Iterable[int], path: str) -> None:
    """The logs as they were, one after the other."""
    logs = trace.table("compile_logs")
    sources = dict(zip(logs.array("file_id").tolist(), logs.text("plain_path").tolist(), strict=True))
    with open(path, "wb") as target:
        for file_id in file_ids:
            with open(sources[file_id], "rb") as source:
                _copy(source, target)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    """Inside the kernel where it can do that, since a log may have gigabytes."""
    try:
        while os.copy_file_range(source.fileno(), target.fileno(), 1 << 30):
            pass
    except (AttributeError, OSError):  # not every system has it, nor can it between all file systems
        source.seek(os.lseek(source.fileno(), 0, os.SEEK_CUR))
        shutil.copyfileobj(source, target, 1 << 20)
