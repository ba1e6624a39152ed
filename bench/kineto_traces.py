"""Profiler traces of a wanted size, made by repeating a shorter one.

A copy differs from the one before it as a later window of the same job would: its events happen later, its steps have
higher numbers, and no number that ties events together (correlation, flow, External id, ...) occurs in two copies.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Fields whose numbers tie events together. They share one stride, as some of them name each other: the flow from a
# launch to its kernel, for one, has the number of their correlation.
_LINKS = (
    "correlation",
    "wait_on_cuda_event_record_corr_id",
    "External id",
    "Record function id",
    "Ev Idx",
    "Sequence number",
    "Seq",
    "Python id",
    "Python parent id",
)
_TIME, _HASH, _STEP = '"ts"', '"Comms Id"', "ProfilerStep#"
# Of a time stamp only the whole microseconds: the fraction stays, as copies are whole microseconds apart.
_NUMBER = re.compile(rf'((?:{_TIME}|{_HASH}|"(?:{"|".join(_LINKS)})"|"ph":\s*"[stf]",\s*"id"):\s*|{_STEP})(\d+)')
# Counted from 0; in all other links, 0 says that there is none.
_COUNTED_FROM_ZERO = '"Ev Idx"'
_BETWEEN = ",\n  "
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")

Event = dict[str, Any]
_Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Counts:
    """What a tool must have found in a trace, if it read all of it."""

    events: int  # with a duration; HTA's rows
    kernels: int  # copies and fills too
    launched: int  # those of them whose launch is in the trace
    steps: int

    def times(self, copies: int) -> Counts:
        return Counts(self.events * copies, self.kernels * copies, self.launched * copies, self.steps * copies)


@dataclass(frozen=True)
class BaseTrace:
    head: str
    """All before the events that are repeated: the trace's description, and events that it has once."""
    literals: tuple[str, ...]
    """The events, without the numbers between these pieces of text."""
    numbers: _Numbers
    strides: _Numbers
    """How much more each number is in the next copy."""
    tail: str
    counts: Counts

    def copies_for(self, json_bytes: int) -> int:
        """How many copies make a trace of about this size."""
        return max(1, round((json_bytes - len(self.head) - len(self.tail)) / len(self._copy(0))))

    def text(self, copies: int) -> Iterator[str]:
        yield self.head
        for number in range(copies):
            yield (_BETWEEN if number else "") + self._copy(number)
        yield self.tail

    def _copy(self, number: int) -> str:
        pieces = [""] * (2 * len(self.numbers) + 1)
        pieces[::2] = self.literals
        pieces[1::2] = map(str, (self.numbers + np.uint64(number) * self.strides).tolist())
        return "".join(pieces)


def read_base(path: Path) -> BaseTrace:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return parse_base(text.decode())


def parse_base(text: str) -> BaseTrace:
    opening = re.search(r'"traceEvents":\s*\[\s*', text)
    if opening is None:
        raise SystemExit("the base trace has no traceEvents: give one that torch.profiler wrote")
    events, texts, end = _split_events(text, opening.end())
    is_once = [event["ph"] == "M" or event.get("cat", "Trace") == "Trace" for event in events]
    is_repeated = [not once for once in is_once]
    # Literal, field, number, literal, field, number, ..., literal: the field's name belongs to the literal before it.
    parts = _NUMBER.split(_BETWEEN.join(compress(texts, is_repeated)))
    fields, numbers = parts[1::3], np.array(parts[2::3], np.uint64)
    return BaseTrace(
        head=text[: opening.end()] + "".join(event + _BETWEEN for event in compress(texts, is_once)),
        literals=(*map("".join, zip(parts[::3], fields, strict=False)), parts[-1]),
        numbers=numbers,
        strides=_strides(fields, numbers, compress(events, is_repeated)),
        tail=text[end:],
        counts=_count(events),
    )


def _split_events(text: str, position: int) -> tuple[list[Event], list[str], int]:
    """The events of the array, as objects and as text, and where the array's end is."""
    decode, separator = json.JSONDecoder().raw_decode, re.compile(r"\s*,?\s*")
    events, texts = [], []
    while text[position] != "]":
        event, end = decode(text, position)
        events.append(event)
        texts.append(text[position:end])
        after = separator.match(text, end)
        assert after is not None, "the pattern matches the empty text"
        position = after.end()
    return events, texts, position


def _strides(fields: Sequence[str], numbers: _Numbers, events: Iterable[Event]) -> _Numbers:
    timed = [(event["ts"], event["ts"] + event.get("dur", 0)) for event in events]
    microseconds = ceil(max(end for _, end in timed) - min(start for start, _ in timed)) + 1
    is_time, is_hash, is_step, from_zero = (
        np.array([field.startswith(name) for field in fields]) for name in (_TIME, _HASH, _STEP, _COUNTED_FROM_ZERO)
    )
    is_link = ~(is_time | is_hash | is_step)
    strides = np.ones(len(numbers), np.uint64)  # a hash only has to be another one
    strides[is_link] = numbers[is_link].max(initial=0) + 1
    strides[is_link & ~from_zero & (numbers == 0)] = 0
    strides[is_time] = microseconds
    if is_step.any():
        strides[is_step] = np.ptp(numbers[is_step]) + 1
    return strides


def _count(events: Sequence[Event]) -> Counts:
    timed = [event for event in events if "dur" in event and event.get("cat", "Trace") != "Trace"]
    launches = {_correlation(event) for event in timed if event["cat"] in _LAUNCH_CATEGORIES}
    kernels = [_correlation(event) for event in timed if event["cat"] in _DEVICE_CATEGORIES]
    steps = {event["name"] for event in timed if event["cat"] == "user_annotation" and _STEP in event["name"]}
    return Counts(len(timed), len(kernels), sum(number in launches for number in kernels), len(steps))


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def write_trace(base: BaseTrace, copies: int, path: Path) -> None:
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as stream:
        stream.writelines(base.text(copies))


def json_bytes_of(path: Path) -> int:
    """Size of the text in a gzip file: its last four bytes, which suffice for less than 4 GiB."""
    with path.open("rb") as stream:
        stream.seek(-4, 2)
        return int(struct.unpack("<I", stream.read(4))[0])
