"""The files of compilations: which of them differ between ranks, and which are in the page as packed text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from rankscope.model.artifact_names import other_spelling
from rankscope.model.finding import count_noun
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Array, Table, Text, Trace
from rankscope.render.compile_tree.index_sections import whose
from rankscope.render.compile_tree.outputs import Output, file_form, label_of, rows_with_file
from rankscope.render.compile_tree.page_data import Row
from rankscope.render.compile_tree.page_help import about
from rankscope.render.compile_tree.writer import laid_out
from rankscope.render.html import Html, markup, text
from rankscope.render.listing import n_bytes_phrase
from rankscope.render.page.blocks import Block
from rankscope.render.page.compiling_job import Classes, Job, row_codes, split_ranks
from rankscope.render.page.contents import Contents

Content = tuple[str, int]
BLOCK_BYTES = 250_000  # of text; enough for packing to work, little enough to be unpacked at once
MAX_TEXT_BYTES = 8_000_000  # a longer one would hang the browser that shows it
_FIRST = re.compile(r"dynamo_output_graph|inductor_output_code|guards|recompile_reasons|graph_break|dynamo_error")
_IS_CODE = re.compile(r"graph|code|runnable|compiled|dump_file")
_CPP_SIGNS = (b"#include", b"extern ", b"//", b"/*")


class Version(NamedTuple):
    """One content of a file, and the ranks that have it."""

    row: Row  # of compile_records, on the first of these ranks
    log: int  # that shows the compilation
    priority: int  # of the compilation
    ranks: tuple[int, ...]  # empty when all that compiled it have the same
    n_left_out: int  # further contents of the same file

    @property
    def form(self) -> tuple[str, str]:
        """How it was logged, and its name without number."""
        how, stem, _ = file_form(self.row, plain_text=True)
        return how, self.row["name"] if self.row["kind"] == "dump_file" else stem

    @property
    def content(self) -> Content:
        """Equal for equal texts, as far as the log shows."""
        digest: str = self.row["md5"]
        return digest or str(self.row["file_id"]), self.row["n_payload_bytes"] if digest else self.row["record"]


def records_with_text(trace: Trace) -> Table:
    records = trace.table("compile_records")
    records = records.take(rows_with_file(records))
    return records.take(np.flatnonzero(records.array("n_payload_bytes") > 0))


def file_versions(job: Job, classes: Classes, records: Table, chosen: Array) -> list[Version]:
    """The files of all ranks of the chosen classes, each content once. Where ranks differ in a file, the two
    contents that most of them have and the rarest are shown."""
    keys = job.keys(records)
    of_class = classes.of(keys)
    priority = np.full(len(classes.shown) + 1, -1)
    priority[chosen] = np.arange(len(chosen))
    chosen_rows = np.flatnonzero(priority[of_class] >= 0)
    records, keys, of_class = records.take(chosen_rows), keys[chosen_rows], of_class[chosen_rows]
    # The name of generated code is a hash of it: it must not keep apart what belongs together.
    is_code = records.text("kind").equals("inductor_output_code")
    name = records.text("name")
    nameless = records.replaced({"name": Text(np.where(is_code, len(name.values), name.codes), [*name.values, ""])})
    slots = _slots(nameless, keys, of_class)
    contents = row_codes(records, ("md5", "n_payload_bytes"))
    untold = records.text("md5").equals("")
    contents = np.where(untold, contents.max(initial=0) + 1 + np.arange(len(contents)), contents)
    pairs = slots * (int(contents.max(initial=0)) + 1) + contents
    _, first, version_of, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
    ranks = split_ranks(version_of, job.rank_of_log[job.log_of(keys)], len(first))
    versions = []
    in_order = sorted(_by_slot(slots[first], counts), key=lambda same: int(records.array("record")[first[same[0]]]))
    shown = [[*same[:2].tolist(), *same[2:][-1:].tolist()] for same in in_order]
    rows = records.take(first[[number for same in shown for number in same]]).rows()
    for same, numbers in zip(in_order, shown, strict=True):
        for number in numbers:
            own_class = of_class[first[number]]
            owners = ranks[number] if len(same) > 1 else ()
            n_left_out = len(same) - len(numbers) if number == same[0] else 0
            log = int(job.log_of(classes.shown[own_class]))
            versions.append(Version(next(rows), log, int(priority[own_class]), owners, n_left_out))
    return versions


def _slots(records: Table, keys: Array, of_class: Array) -> Array:
    """Equal for what is the same file on all ranks: by name, and its number among the files of that name."""
    names = row_codes(records, ("attempt", "kind", "name"))
    n_names = int(names.max(initial=0)) + 1
    _, within = np.unique(keys, return_inverse=True)
    within = within * n_names + names
    order = np.lexsort((records.array("record"), within))
    starts = np.flatnonzero(np.diff(within[order], prepend=-1))
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    _, slots = np.unique((of_class * n_names + names) * (int(nth.max(initial=0)) + 1) + nth, return_inverse=True)
    return slots


def _by_slot(slots: Array, counts: Array) -> list[Array]:
    """The versions of each file, the most common one first."""
    order = np.lexsort((np.arange(len(slots)), -counts, slots))
    return np.split(order, np.flatnonzero(np.diff(slots[order])) + 1) if len(order) else []


def embed(contents: Contents, versions: Sequence[Version], room: int) -> list[str]:
    """Puts the texts into the page, the most important ones first. Returns the block.position of each, or empty."""
    ordered = sorted(versions, key=lambda candidate: (not _FIRST.search(candidate.form[1]), candidate.priority))
    distinct: dict[Content, Version] = {}
    for version in ordered:
        if version.row["n_payload_bytes"] <= MAX_TEXT_BYTES:
            distinct.setdefault(version.content, version)
    places: dict[Content, str] = {}
    used = n_blocks = 0
    for batch in _batches(list(distinct.values())):
        name = f"artifact-{n_blocks}"
        n_chars = contents.blocks.add(name, partial(_block, contents.trace, batch))
        if used + n_chars <= room:
            places |= {version.content: f"{n_blocks}.{at}" for at, version in enumerate(batch)}
            used, n_blocks = used + n_chars, n_blocks + 1
            continue
        contents.blocks.drop(name)
        if len(batch) > 1:  # not just one long text: the room is full
            break
    return [places.get(version.content, "") for version in versions]


def _batches(versions: Sequence[Version]) -> Iterator[tuple[Version, ...]]:
    """Neighbours that are packed together; a long text comes alone."""
    batch: list[Version] = []
    n_bytes = 0
    for version in versions:
        payload_bytes = version.row["n_payload_bytes"]
        if batch and n_bytes + payload_bytes > BLOCK_BYTES:
            yield tuple(batch)
            batch, n_bytes = [], 0
        batch.append(version)
        n_bytes += payload_bytes
    if batch:
        yield tuple(batch)


def _block(trace: Trace, versions: Sequence[Version]) -> Block:
    return Block({"files": [_text(trace, version) for version in versions]})


def _text(trace: Trace, version: Version) -> dict[str, str]:
    how, stem = version.form
    payload = mapped_log(trace, version.row["file_id"]).payload(version.row)
    if how in ("json", "guards"):
        payload = laid_out(payload)
    is_code = how not in ("json", "guards") and (how == "code" or _IS_CODE.search(stem))
    language = ("cpp" if payload.lstrip().startswith(_CPP_SIGNS) else "python") if is_code else ""
    return {"name": stem, "about": about(stem), "language": language, "text": payload.decode("utf-8", "replace")}


def _label(row: Row) -> str:
    return label_of(row["autograd_id"], row["frame_id"], row["frame_compile_id"], row["attempt"])


def outputs_of(versions: Sequence[Version], places: Sequence[str]) -> list[Output]:
    """As the table of compilations wants them; the path is the place in the page."""
    outputs = []
    for version, position in zip(versions, places, strict=True):
        how, stem = version.form
        row = {**version.row, "file_id": version.log, "ranks": version.ranks, "n_left_out": version.n_left_out}
        outputs.append(Output(position, stem, 0, "", "", _label(version.row), how, row))
    return outputs


def file_item(output: Output) -> Html:
    row = output.row
    said = [n_bytes_phrase(row["n_payload_bytes"])]
    if "_" in output.label:
        said.insert(0, output.label)
    if row["ranks"]:
        said.append(whose(row["ranks"], 3))
    if row["n_left_out"]:
        said.append(f"{count_noun(row['n_left_out'], 'other version')} on other ranks")
    name = text(output.name)
    if output.path:
        name = markup('<a href="#compile?file={}" title="{}">{}</a>', output.path, about(output.name), name)
    if other_spelling(output.name):
        said.append(f"also {other_spelling(output.name)}")
    return markup('<li>{} <span class="faint">{}</span></li>', name, ", ".join(said))
