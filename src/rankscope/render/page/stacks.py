"""Where each rank is now: the stacks of all ranks merged into one tree, the odd ones first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.finding import Location, count_noun, format_ranks, ranks_phrase
from rankscope.model.source_text import source_line
from rankscope.model.tables import MISSING, Table
from rankscope.render.compile_tree.stack_trie import Node, drawn_trie, trie_of
from rankscope.render.escape import cut_short
from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.page.contents import Contents, View, absent, map_link, view
from rankscope.render.page.wait_words import is_hang
from rankscope.render.source import shown_path

ANCHOR, TITLE = "stacks", "Stacks"
ROOM = 0.05
MAX_CHARS = 5_000_000  # a browser can show no more, wherever the data comes from
COMMAND = "rankscope record -o traces/ -- torchrun --nproc-per-node 8 train.py"
_CHARS_PER_FRAME = 120  # of tags and classes
_MAX_LINKED = 200  # stacks up to which each is sure to be in the page from the beginning
_ODD_SHARE = 3  # a branch is odd when another one has so many times its ranks
_RANGES_SHOWN, _RANGES_IN_CHIP, _RANGES_LISTED = 8, 3, 24
_MAX_REMARK = 160
_SOURCES = {
    "thread": "the stack of the main thread",
    "waiting": "the stack of the oldest unfinished call",
    "last": "the stack of the newest call",
}


@dataclass(frozen=True)
class Stack:
    """A stack and the ranks that are in it."""

    number: int
    frames: tuple[int, ...]  # outermost first
    ranks: tuple[int, ...]
    sources: tuple[str, ...]
    reasons: tuple[str, ...]
    match: int

    @property
    def anchor(self) -> str:
        return f"at-{self.number}"


class _Chosen(NamedTuple):
    shown: list[Stack]
    left_out: list[Stack]


@view("stacks", place=25)
def stacks_view(contents: Contents) -> View:
    all_stacks = _stacks_of(contents)
    if not all_stacks:
        return absent(ANCHOR, TITLE, "This capture has no stacks.", COMMAND)
    chosen = _chosen(contents, all_stacks)
    frames = _Frames(contents)
    root, n_nodes = trie_of(([frames.row(frame) for frame in stack.frames], stack.anchor) for stack in chosen.shown)
    _Labels(contents, chosen.shown).put(root)
    base = contents.options.base.rstrip("/") + "/" if contents.options.base else ""
    options = markup('<label><input type="checkbox" id="foreign-stacks"> show torch and Python frames</label>')
    body = markup('<p>{}</p><p class="options">{}</p>', _intro(all_stacks), options)
    body += drawn_trie("stacks", root, n_nodes, base, contents.later) + _left_out(contents, chosen.left_out)
    return View(ANCHOR, TITLE, body + _without_stack(contents, all_stacks), badge=f"{len(all_stacks):,}")


def standing_of(contents: Contents, rank: int) -> tuple[int, str]:
    """The user's frame that the rank is in (MISSING without one), and a link to the rank's stack."""
    standings = contents.trace.table("standings")
    rows = np.flatnonzero(standings.array("rank") == rank).tolist()
    if not rows:
        return MISSING, ""
    stacks = standings.array("stack_id")
    is_few = len(np.unique(stacks)) <= _MAX_LINKED
    return int(standings.array("site_id")[rows[0]]), f"#at-{int(stacks[rows[0]])}" if is_few else f"#{ANCHOR}"


def _stacks_of(contents: Contents) -> list[Stack]:
    """The rarest first."""
    standings: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in contents.trace.table("standings").rows():
        standings[row["stack_id"]].append(row)
    table = contents.trace.table("stacks")
    stack_ids, frame_ids = table.array("stack_id"), table.array("frame_id")
    numbers = sorted(standings)
    lows, highs = np.searchsorted(stack_ids, numbers, "left"), np.searchsorted(stack_ids, numbers, "right")
    all_stacks = [
        Stack(
            number,
            tuple(frame_ids[low:high][::-1].tolist()),
            tuple(row["rank"] for row in standings[number]),
            tuple(row["source"] for row in standings[number]),
            tuple(dict.fromkeys(row["reason"] for row in standings[number] if row["reason"])),
            standings[number][0]["match_id"],
        )
        for number, low, high in zip(numbers, lows.tolist(), highs.tolist(), strict=True)
        if high > low
    ]
    return sorted(all_stacks, key=lambda stack: (len(stack.ranks), stack.ranks))


def _chosen(contents: Contents, all_stacks: Sequence[Stack]) -> _Chosen:
    """As many stacks as fit: the one of most ranks, then the culprits', then the rarest."""
    culprits = _culprits(contents)
    by_weight = sorted(all_stacks[:-1], key=lambda stack: culprits.isdisjoint(stack.ranks))
    room = min(contents.room(ROOM), MAX_CHARS)
    frames = contents.trace.table("frames")
    files, functions = frames.text("file"), frames.text("function")
    known: dict[tuple[int, int], int] = {}  # frames below a node of the tree
    kept: set[int] = set()
    for stack in (all_stacks[-1], *by_weight):
        node = 0
        room -= _CHARS_PER_FRAME + 6 * len(stack.ranks[:_RANGES_SHOWN])
        for frame in stack.frames:
            if (node, frame) not in known:
                known[node, frame] = len(known) + 1
                room -= _CHARS_PER_FRAME + len(files[frame]) + len(functions[frame])
            node = known[node, frame]
        if room < 0 and kept:
            break
        kept.add(stack.number)
    return _Chosen(
        [stack for stack in all_stacks if stack.number in kept],
        [stack for stack in all_stacks if stack.number not in kept],
    )


def _culprits(contents: Contents) -> set[int]:
    """Whom the finding about the hang blames."""
    blamed = (finding.ranks for finding in contents.report.findings if is_hang(finding))
    return set(next(blamed, ()))


class _Frames:
    """Frames as the tree needs them, with source lines where the files exist."""

    def __init__(self, contents: Contents) -> None:
        self.table: Table = contents.trace.table("frames")
        self.options, self.folders = contents.options, contents.folders
        self.rows: dict[int, dict[str, Any]] = {}

    def row(self, frame: int) -> dict[str, Any]:
        if frame not in self.rows:
            file, function = self.table.text("file")[frame], self.table.text("function")[frame]
            location = Location(file, int(self.table.array("line")[frame]), function)
            is_user = bool(self.table.array("is_user")[frame])
            is_wanted = is_user and self.options.shows_source
            code = (source_line(location, self.options.base) or "").strip() if is_wanted else ""
            self.rows[frame] = {
                "file": shown_path(file, *self.folders),
                "line": location.line,
                "function": function,
                "code": code,
                "is_user": is_user,
            }
        return self.rows[frame]


class _Labels:
    """Puts the ranks on the branches of the tree, and sorts these: the fewest ranks first."""

    def __init__(self, contents: Contents, stacks: Sequence[Stack]) -> None:
        self.stacks = {stack.anchor: stack for stack in stacks}
        matches = contents.trace.table("matches")
        self.groups, self.seqs = matches.array("group_id"), matches.array("seq")
        self.is_p2p = matches.array("is_p2p")
        self.has_map = contents.trace.has("collectives")
        self.culprits = _culprits(contents)

    def put(self, root: Node) -> None:
        """From the leaves up, without recursion: a stack may be thousands of frames deep."""
        order = [root]
        for node in order:
            order.extend(node.children.values())
        ranks_of: dict[int, list[int]] = {}
        for node in reversed(order):
            stacks_here = [self.stacks[anchor] for anchor in node.chips]
            branches = [(ranks_of.pop(id(child)), frame) for frame, child in node.children.items()]
            branches.sort(key=lambda branch: (len(branch[0]), branch[0]))
            sizes = [len(stack.ranks) for stack in stacks_here] + [len(ranks) for ranks, _ in branches]
            node.chips = [self._chip(stack) for stack in stacks_here]
            node.children = {frame: node.children[frame] for _, frame in branches}
            if len(branches) + bool(stacks_here) > 1:
                for ranks, frame in branches:
                    node.children[frame].label = _label(ranks, max(sizes))
            inner = [rank for ranks, _ in branches for rank in ranks]
            ranks_of[id(node)] = sorted(inner + [rank for stack in stacks_here for rank in stack.ranks])

    def _chip(self, stack: Stack) -> Html:
        shown = text(ranks_phrase(stack.ranks, _RANGES_IN_CHIP))
        link = markup(' href="{}"', self._place_on_map(stack)) if self.has_map else NOTHING
        title = text("; ".join(_SOURCES[source] for source in dict.fromkeys(stack.sources)))
        remarks = [*stack.reasons[:2], *(["has moved on since"] if "last" in stack.sources else [])]
        said = cut_short("; ".join(remarks), _MAX_REMARK)
        chip = markup('<a class="chip ranks" id="{}"{} title="{}">{}</a>', stack.anchor, link, title, shown)
        chip += markup(' <span class="odd">cause</span>') if self.culprits.issuperset(stack.ranks) else NOTHING
        return chip + (markup(' <span class="faint">{}</span>', said) if said else NOTHING)

    def _place_on_map(self, stack: Stack) -> str:
        if stack.match == MISSING:
            return map_link(rank=stack.ranks[0])
        group, seq = int(self.groups[stack.match]), int(self.seqs[stack.match])
        return map_link(group, stack.ranks[0], seq, bool(self.is_p2p[stack.match]))


def _label(ranks: Sequence[int], largest: int) -> Html:
    odd = markup(' <span class="odd">odd</span>') if len(ranks) * _ODD_SHARE <= largest else NOTHING
    return markup('<span class="rank-set">{}</span>{}', ranks_phrase(list(ranks), _RANGES_SHOWN), odd)


def _intro(all_stacks: Sequence[Stack]) -> str:
    counts = {source: sum(stack.sources.count(source) for stack in all_stacks) for source in _SOURCES}
    origins = ", ".join(f"{_SOURCES[source]} ({count_noun(n, 'rank')})" for source, n in counts.items() if n)
    n_stacks = (
        f"{len(all_stacks):,} different stacks, the one with the fewest ranks first"
        if len(all_stacks) > 1
        else "One stack"
    )
    return f"Where each rank is now, from {origins}. {n_stacks}."


def _left_out(contents: Contents, stacks: Sequence[Stack]) -> Html:
    if not stacks:
        return NOTHING
    ranks = [rank for stack in stacks for rank in stack.ranks]
    said = f"no room for {count_noun(len(stacks), 'more stack')} from {count_noun(len(ranks), 'rank')}."
    contents.remarks.append(f"Stacks: {said}")
    return markup('<p class="faint">{} {}</p>', said.capitalize(), format_ranks(ranks, _RANGES_LISTED))


def _without_stack(contents: Contents, all_stacks: Sequence[Stack]) -> Html:
    with_stack = {rank for stack in all_stacks for rank in stack.ranks}
    missing = sorted(set(range(contents.report.capture.world_size)) - with_stack)
    if not missing:
        return NOTHING
    said = f"No stack from {ranks_phrase(missing, _RANGES_SHOWN)}."
    return markup('<p class="faint">{} To collect the stacks of all threads: <code>{}</code></p>', said, COMMAND)
