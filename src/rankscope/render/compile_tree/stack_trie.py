"""Stacks merged into one tree: what belongs to a stack, a compile id or a set of ranks, hangs where its frame is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rankscope.render.compile_tree.page_data import STATUS_WORDS, Compilation, Row
from rankscope.render.html import text
from rankscope.render.listing import Later, fold, listed

MAX_OPEN_NODES = 1500  # beyond this the branches below the first fork are put in when they are opened
MAX_LEVELS = 40  # forks inside forks; deeper ones are listed flat, for a log may nest without end
CHIPS_SHOWN = 40
BRANCHES_SHOWN = 200
Place = tuple[str, int, str]


@dataclass
class Node:
    place: Place
    code: str = ""
    is_user: bool = True
    label: str = ""  # HTML; a branch that has one is a fold under it
    chips: list[str] = field(default_factory=list)
    children: dict[Place, Node] = field(default_factory=dict)


def chip(compilation: Compilation) -> str:
    words = STATUS_WORDS.get(compilation.status, "")
    kind = f"chip {compilation.status}".rstrip()
    return f'<a class="{kind}" href="#{text(compilation.anchor)}" title="{text(words)}">{text(compilation.label)}</a>'


def trie_of(stacks: Iterable[tuple[Sequence[Row], str]]) -> tuple[Node, int]:
    """The root, which is no frame, and the number of frames below it. Each stack comes with what hangs at its
    end, as HTML."""
    root, n_nodes = Node(("", -1, "")), 0
    for frames, hanging in stacks:
        node = root
        for frame in frames:
            place = (frame["file"], frame["line"], frame["function"])
            if place not in node.children:
                node.children[place] = Node(place, frame["code"], frame["is_user"])
                n_nodes += 1
            node = node.children[place]
        if node is not root:
            node.chips.append(hanging)
    return root, n_nodes


def trie_html(name: str, stacks: Iterable[tuple[Sequence[Row], str]], base: str, later: Later) -> str:
    """Empty without stacks; `name` is unique in the page."""
    return drawn_trie(name, *trie_of(stacks), base, later)


def drawn_trie(name: str, root: Node, n_nodes: int, base: str, later: Later) -> str:
    if not n_nodes:
        return ""
    drawn = _Drawing(name, base, later, n_nodes > MAX_OPEN_NODES).branches(root, 0)
    return f'<div class="trie">{drawn}</div>'


class _Drawing:
    def __init__(self, name: str, base: str, later: Later, is_large: bool) -> None:
        self.name = name
        self.base = base
        self.later = later
        self.is_large = is_large
        self._n_lists = 0

    def branches(self, node: Node, level: int) -> str:
        """What follows a frame: a list of calls, indented only where stacks part."""
        if level > MAX_LEVELS:
            items = [self._frame(each) for each in _below(node)]
        else:
            items = [item for child in node.children.values() for item in self._branch(child, level)]
        return self._list(items)

    def _list(self, items: Sequence[str]) -> str:
        self._n_lists += 1
        return listed(self.later, "ul", f"{self.name}-{self._n_lists}", items, BRANCHES_SHOWN)

    def _branch(self, node: Node, level: int) -> Iterator[str]:
        if not node.label:
            yield from self._chain(node, level)
            return
        body = self._list([*self._chain(node, level)])
        yield f'<li class="branch">{fold(node.label, body, is_open=True)}</li>'

    def _chain(self, node: Node, level: int) -> Iterator[str]:
        """Calls that follow each other without a fork are listed below each other; the last one may have branches."""
        while len(node.children) == 1:
            [following] = node.children.values()
            if following.label:
                break
            yield self._frame(node)
            node = following
        if not node.children:
            yield self._frame(node)
            return
        later = self.later if self.is_large and level > 0 else None
        body = self.branches(node, level + 1)
        yield f'<li class="fork">{fold(self._line(node), body, later=later, is_open=True)}</li>'

    def _frame(self, node: Node) -> str:
        kind = "" if node.is_user or node.chips else ' class="foreign"'
        return f"<li{kind}>{self._line(node)}</li>"

    def _line(self, node: Node) -> str:
        file, line, function = node.place
        shown = file.removeprefix(self.base) if self.base else file
        shown += f":{line}" if line else ""  # a library's frame has none
        code = f' <code class="source">{text(node.code)}</code>' if node.code else ""
        return (
            f'<span class="frame{"" if node.is_user else " faint"}"><b>{text(function)}</b> '
            f'<span class="place">{text(shown)}</span>{code}</span>{_chips(node.chips)}'
        )


def _chips(chips: list[str]) -> str:
    if not chips:
        return ""
    shown = " ".join(chips[:CHIPS_SHOWN])
    if chips[CHIPS_SHOWN:]:
        shown += fold(f"{len(chips) - CHIPS_SHOWN:,} more", " ".join(chips[CHIPS_SHOWN:]))
    return f'<span class="chips">{shown}</span>'


def _below(node: Node) -> Iterator[Node]:
    waiting = list(reversed(node.children.values()))
    while waiting:
        following = waiting.pop()
        yield following
        waiting.extend(reversed(following.children.values()))
