"""Execution traces with their profiler traces, of a wanted size, made by repeating a shorter pair.

A copy is what later steps of the same job would have written: nodes, tensors and storages have numbers of their own,
and whatever a node shares with the profiler (record function, sequence, step) is moved as it is moved there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kineto_traces import BaseTrace, Counts, parse_base

KINETO_NAME, EXECUTION_NAME = "kineto_trace_0.json", "torch_et_0.json"

_ID, _PARENT, _STEP = '"id"', '"ctrl_deps"', "ProfilerStep#"
_FORWARD, _RECORD, _SEQUENCE = '"fw_parent"', '"rf_id"', '"seq_id"'
# A tensor is [tensor, storage, offset, elements, bytes each, device], the number of a collective in its group
# [number, is it a transfer]: what follows such numbers tells them.
_DEVICE = r',"(?:cpu|cuda)'
_COLLECTIVE = (",[", "[[")
_NUMBER = re.compile(
    rf"((?:{_ID}|{_PARENT}):\s*|{_STEP}"
    rf'|(?:{_FORWARD}|{_RECORD}|{_SEQUENCE}),\s*"type":\s*"\w+",\s*"value":\s*'
    rf"|[,\[]\[(?=\d+,(?:true|false)\])"
    rf"|\[(?=\d+(?:,\d+){{4}}{_DEVICE})|(?<=\d),(?=\d+(?:,\d+){{3}}{_DEVICE}))(\d+)"
)
_ROOT = re.compile(r"\[pytorch\|profiler\|execution_(?:trace|graph)\||process_group:init")
_BETWEEN = ",\n      "


class _Document(msgspec.Struct):
    nodes: list[msgspec.Raw]


class _Node(msgspec.Struct):
    id: int
    name: str


class _Profile(msgspec.Struct):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


@dataclass(frozen=True)
class Pair:
    """An execution trace and the profiler trace of the same steps."""

    folder: Path
    n_nodes: int
    n_operators: int
    """Nodes without the roots."""
    n_kernels: int
    n_events: int
    """All entries of the profiler trace, flows and metadata too."""

    @property
    def execution(self) -> Path:
        return self.folder / EXECUTION_NAME

    @property
    def kineto(self) -> Path:
        return self.folder / KINETO_NAME

    @property
    def n_bytes(self) -> int:
        return self.execution.stat().st_size + self.kineto.stat().st_size


@dataclass(frozen=True)
class BasePair:
    nodes: BaseTrace
    profile: BaseTrace
    n_roots: int
    """Nodes that a trace has once: the process, its threads, and the description of the process groups."""

    def copies_for(self, n_bytes: int) -> int:
        """How many copies make a pair of about this size, both files together."""
        one, two = (sum(len(text) for side in (self.nodes, self.profile) for text in side.text(n)) for n in (1, 2))
        return max(1, 1 + round((n_bytes - one) / (two - one)))

    def pair(self, copies: int, folder: Path) -> Pair:
        """What a pair of so many copies holds."""
        one, two = (len(msgspec.json.decode("".join(self.profile.text(n)), type=_Profile).events) for n in (1, 2))
        n_operators = self.nodes.counts.events * copies
        n_kernels = self.profile.counts.kernels * copies
        return Pair(folder, n_operators + self.n_roots, n_operators, n_kernels, one + (copies - 1) * (two - one))

    def write(self, copies: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for side, name in ((self.nodes, EXECUTION_NAME), (self.profile, KINETO_NAME)):
            with (folder / name).open("w", encoding="utf-8") as stream:
                stream.writelines(side.text(copies))


def read_pair(folder: Path) -> BasePair:
    profile = parse_base((folder / KINETO_NAME).read_text())
    path = folder / EXECUTION_NAME
    text = path.read_text()
    texts = [str(raw, "utf-8") for raw in msgspec.json.decode(text, type=_Document).nodes]
    nodes = [msgspec.json.decode(own, type=_Node) for own in texts]
    is_root = [_ROOT.search(node.name) is not None for node in nodes]
    is_repeated = [not root for root in is_root]
    if not any(is_repeated):
        raise SystemExit(f"{path} has nothing to repeat: give a trace with at least one step")
    # Literal, field, number, literal, field, number, ..., literal: the field's name belongs to the literal before it.
    parts = _NUMBER.split(_BETWEEN.join(compress(texts, is_repeated)))
    fields, numbers = parts[1::3], np.array(parts[2::3], np.uint64)
    roots = {node.id for node in compress(nodes, is_root)}
    base = BaseTrace(
        head=text[: text.index(texts[0])] + "".join(own + _BETWEEN for own in compress(texts, is_root)),
        literals=(*map("".join, zip(parts[::3], fields, strict=False)), parts[-1]),
        numbers=numbers,
        strides=_strides(fields, numbers, roots, profile),
        tail=text[text.rindex(texts[-1]) + len(texts[-1]) :],
        counts=Counts(sum(is_repeated), 0, 0, 0),
    )
    return BasePair(base, profile, len(roots))


def _strides(
    fields: Sequence[str], numbers: npt.NDArray[np.uint64], roots: Collection[int], profile: BaseTrace
) -> npt.NDArray[np.uint64]:
    def is_of(*names: str) -> npt.NDArray[np.bool_]:
        return np.array([field.startswith(names) for field in fields])

    is_shared, is_step, is_parent = is_of(_RECORD, _SEQUENCE, *_COLLECTIVE), is_of(_STEP), is_of(_PARENT)
    is_own = ~(is_shared | is_step)
    strides = np.zeros(len(numbers), np.uint64)
    strides[is_own] = max(int(numbers[is_own].max(initial=0)), *roots, 0) + 1
    strides[is_own & is_parent & np.isin(numbers, list(roots))] = 0
    strides[is_shared] = _stride_of(profile, r'"Record function id":\s*')
    strides[is_step] = _stride_of(profile, _STEP)
    # No record function and no forward parent.
    strides[(is_shared & is_of(_RECORD) | is_of(_FORWARD)) & (numbers == 0)] = 0
    return strides


def _stride_of(profile: BaseTrace, field: str) -> int:
    ends_with = re.compile(field + r"\Z").search
    return max(
        (int(own) for text, own in zip(profile.literals, profile.strides, strict=False) if ends_with(text)), default=0
    )
