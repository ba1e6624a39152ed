"""Turns rows into evidence: texts of calls, both sides of a comparison, code sites, stacks shared by ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec
import numpy as np

from rankscope.analyze.hangs.view import JobView, ranks_cut
from rankscope.model.call_text import describe_shapes, describe_types
from rankscope.model.finding import (
    CollectiveRef,
    Comparison,
    GroupRef,
    Location,
    Side,
    StackGroup,
    count_noun,
    format_ranks,
)
from rankscope.model.source_text import loops_around
from rankscope.model.tables import MISSING, Array, Trace

_MAX_STACKS = 4
_MAX_PARTS = 4  # transfers of a batch that are shown
_N_BEFORE = 2  # calls shown before the one in question


def shape_text(view: JobView, row: int) -> str:
    return describe_shapes(view.calls.text("input_sizes")[row], view.calls.text("output_sizes")[row])


def dtype_text(view: JobView, row: int) -> str:
    return describe_types(view.calls.text("input_dtypes")[row], view.calls.text("output_dtypes")[row])


def call_text(view: JobView, row: int) -> str:
    """`all_reduce [8192] bf16`, `send [4,512] bf16 to rank 7`, `batch (send to rank 7, recv from rank 7)`."""
    op = view.calls.text("op")[row]
    parts = view.parts_of(row)
    if parts != [row]:
        shown = ", ".join(call_text(view, part) for part in parts[:_MAX_PARTS])
        return f"batch ({shown}{', ...' if len(parts) > _MAX_PARTS else ''})"
    peer = int(view.calls.array("peer")[row])
    target = f"{'to' if op == 'send' else 'from'} rank {peer}" if peer != MISSING else ""
    return " ".join(part for part in (op, shape_text(view, row), dtype_text(view, row), target) if part)


def state_text(view: JobView, row: int) -> str:
    status = view.calls.text("status")[row]
    if status == "done" and view.calls.array("status_inferred")[row]:
        return "done (inferred)"
    return {"aborted": "aborted after its timeout", "failed": "failed"}.get(status, status)


def location_of(view: JobView, row: int) -> Location | None:
    """The user's line that made the call."""
    if row == MISSING:
        return None
    frame = int(view.calls.array("site_id")[row])
    return frame_location(view.trace, frame) if frame != MISSING else None


def frame_location(trace: Trace, frame: int) -> Location:
    frames = trace.table("frames")
    return Location(frames.text("file")[frame], int(frames.array("line")[frame]), frames.text("function")[frame])


def site_text(view: JobView, row: int) -> str:
    """`clip_gradients (loop.py:219)`, empty without a stack."""
    location = location_of(view, row)
    return place_text(location) if location else ""


def comes_later(view: JobView, row: int, other: int) -> bool:
    """True if the stacks of the two calls split in one function, and the first one is at a later line of it."""
    place, stack = _split(view, row, other)
    return place is not None and place.line > stack[0].line


def comes_after_loop(view: JobView, row: int, other: int) -> bool:
    """As comes_later; where the source can be read, also outside of a loop that the other call is in."""
    place, stack = _split(view, row, other)
    return place is not None and place.line > stack[0].line and _is_outside_of_loop(place, stack)


def _split(view: JobView, row: int, other: int) -> tuple[Location | None, list[Location]]:
    """Where the first call's stack leaves that of the other, and the latter from there on, if in one function."""
    mine, theirs = (list(reversed(user_frames(view, each)[0])) for each in (row, other))
    for depth, (one, peer) in enumerate(zip(mine, theirs, strict=False)):
        if one != peer:
            return (one, theirs[depth:]) if (one.file, one.function) == (peer.file, peer.function) else (None, [])
    return None, []


def _is_outside_of_loop(place: Location, stack: Sequence[Location]) -> bool:
    """Whether a loop around the stack, from the place's function on, does not hold the place; True if unknown."""
    around, (first, *inner) = loops_around(place), [loops_around(each) for each in stack]
    if around is None or first is None or None in inner:
        return True
    return bool(first - around) or any(inner)


def place_text(location: Location) -> str:
    line = f":{location.line}" if location.line else ""  # a library without symbols has none
    return f"{location.function} ({location.file.rsplit('/', 1)[-1]}{line})"


def group_ref(view: JobView, group: int) -> GroupRef:
    groups = view.trace.table("groups")
    return GroupRef(
        groups.text("name")[group],
        groups.text("description")[group],
        view.members[group],
        bool(groups.array("inferred")[group]),
    )


def group_text(view: JobView, group: int) -> str:
    ref = group_ref(view, group)
    generation = int(view.trace.table("groups").array("generation")[group])
    again = f", recreated {count_noun(generation, 'time')}" if generation else ""
    return f"group {ref.name} ({ref.desc}{again})" if ref.desc else f"group {ref.name}{again}"


def collective_ref(view: JobView, row: int) -> CollectiveRef:
    is_p2p = bool(view.is_p2p[row])
    seq = int(view.calls.array("p2p_seq" if is_p2p else "seq")[row])
    return CollectiveRef(seq, view.calls.text("op")[row], is_p2p)


def stack_groups(view: JobView, rows: Iterable[int], label: str = "") -> tuple[StackGroup, ...]:
    """Ranks with equal user frames are one entry; the rarest stack first."""
    ranks: dict[int, list[int]] = defaultdict(list)
    example: dict[int, int] = {}
    for row in rows:
        point = int(view.signatures.point[row])
        ranks[point].append(int(view.rank[row]))
        example.setdefault(point, row)
    groups = []
    for point in sorted(ranks, key=lambda point: (len(ranks[point]), min(ranks[point])))[:_MAX_STACKS]:
        frames, n_hidden = user_frames(view, example[point])
        if frames:
            groups.append(StackGroup(tuple(sorted(ranks[point])), label, frames, n_hidden))
    return tuple(groups)


def user_frames(view: JobView, row: int) -> tuple[tuple[Location, ...], int]:
    """The user's part of the stack, innermost first, and how many frames of torch and launchers were left out."""
    return user_part(view.trace, int(view.calls.array("stack_id")[row]))


def user_part(trace: Trace, stack: int) -> tuple[tuple[Location, ...], int]:
    stacks, is_user = trace.table("stacks"), trace.table("frames").array("is_user")
    frames = frames_of_stack(stacks.array("stack_id"), stacks.array("frame_id"), stack)
    kept = [frame for frame in frames if is_user[frame]]
    return tuple(frame_location(trace, frame) for frame in kept), len(frames) - len(kept)


def frames_of_stack(stack_ids: Array, frame_ids: Array, stack: int) -> list[int]:
    low, high = np.searchsorted(stack_ids, [stack, stack + 1])
    return [int(frame) for frame in frame_ids[low:high]]


def compare_sides(
    view: JobView, group: int, seq: int, sides: Sequence[tuple[str, Sequence[int]]], with_lines: bool = False
) -> Comparison:
    """The last calls of the group up to `seq`, one column per side; each side is shown by its first rank with data."""
    seqs = range(max(seq - _N_BEFORE, min(seq, 1)), seq + 1)
    speakers = [_speaker(view, group, seqs, ranks) for _, ranks in sides]
    cells = [[_cell_parts(view, group, at, speaker, with_lines) for at in seqs] for speaker in speakers]
    marks = _marks(view, [_row_at(view, group, seq, speaker) for speaker in speakers], [each[-1] for each in cells])
    columns = []
    for (label, ranks), parts, mark in zip(sides, cells, marks, strict=True):
        *before, last = _aligned(parts)
        columns.append(Side(label, tuple(sorted(ranks)), (*before, last + mark)))
    return Comparison("seq", tuple(str(at) for at in seqs), tuple(columns), mark=len(seqs) - 1)


def _marks(view: JobView, rows: Sequence[int], cells: Sequence[tuple[str, ...]]) -> list[str]:
    """What differs, for cells that look the same although their calls do not match."""
    texts = None
    if len(rows) == 2 and MISSING not in rows and len({cell[:3] for cell in cells}) == 1:
        texts = differences(view, *rows)
    return [f"  <- {text}" for text in texts] if texts else [""] * len(cells)


def differences(view: JobView, one: int, other: int) -> tuple[str, str] | None:
    """The first tensor that differs between two calls that do not match: `input 2 [9]`; None if none does."""
    if view.signatures.whole[one] == view.signatures.whole[other]:
        return None
    for side in ("input", "output"):
        for what in ("sizes", "dtypes"):
            mine, theirs = (msgspec.json.decode(view.calls.text(f"{side}_{what}")[row] or "[]") for row in (one, other))
            for number, (left, right) in enumerate(zip_longest(mine, theirs), 1):
                if left != right:
                    texts = [f"{side} {number} {_value_text(value)}" for value in (left, right)]
                    return texts[0], texts[1]
    return None


def _value_text(value: list[int] | str | None) -> str:
    if value is None:
        return "missing"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else describe_types(f'["{value}"]', "[]")


def _speaker(view: JobView, group: int, seqs: range, ranks: Sequence[int]) -> int:
    """The first rank with data; one that records types rather than one that does not."""
    match = view.collective_match.get((group, seqs[-1]))
    rows = view.rows_of_match(match) if match is not None else np.empty(0, np.int64)
    rows = rows[np.isin(view.rank[rows], ranks)]
    typed = rows[view.is_typed[rows]]
    position = {rank: number for number, rank in enumerate(ranks)}
    speakers = [int(view.rank[row]) for row in (typed if len(typed) else rows).tolist()]
    return min(speakers, key=position.__getitem__, default=ranks[0] if ranks else MISSING)


def _row_at(view: JobView, group: int, seq: int, rank: int) -> int:
    match = view.collective_match.get((group, seq))
    if match is None:
        return MISSING
    return next((row for row in view.rows_of_match(match).tolist() if int(view.rank[row]) == rank), MISSING)


def _cell_parts(view: JobView, group: int, seq: int, rank: int, with_line: bool) -> tuple[str, ...]:
    row = _row_at(view, group, seq, rank)
    if row != MISSING:
        site = location_of(view, row) if with_line else None
        line = (f"{site.function}:{site.line}",) if site else ("",) * with_line
        return view.calls.text("op")[row], shape_text(view, row), dtype_text(view, row), *line, state_text(view, row)
    if rank not in view.dumped:
        return ("no dump",)
    window = view.window(group, rank)
    if window.has_not_joined(seq):
        return ("not called",)
    is_dropped = window.known and rank not in ranks_cut(view.trace)
    return ("dropped from the ring",) if is_dropped else ("unknown",)


def _aligned(cells: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    whole = [cell for cell in cells if len(cell) > 1]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return tuple(
        "  ".join(part.ljust(width) for part, width in zip(cell, widths, strict=True) if width).rstrip()
        if len(cell) > 1
        else cell[0]
        for cell in cells
    )


def side_label(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks)} ranks" if len(ranks) > 3 else f"ranks {format_ranks(list(ranks))}"
