"""Stacks merged into one tree: what belongs to a stack, a compile id or a set of ranks, hangs where its frame is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rankscope.render.compile_tree.page_data import STATUS_WORDS, Compilation, Row
from rankscope.render.html import NOTHING, Html, joined, markup
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


def chip(compilation: Compilation) -> Html:
    words = STATUS_WORDS.get(compilation.status, "")
    kind = f"chip {compilation.status}".rstrip()
    return markup(
        '<a class="{}" href="#{}" title="{}">{}</a>',
        kind,
        compilation.anchor,
        words,
        compilation.label,
    )


def trie_of(stacks: Iterable[tuple[Sequence[Row], str]]) -> tuple[Node, int]:
    """The root, which is no frame, and the number of frames below it. Each stack comes with what hangs at its
    end, as HTML."""
    root, n_nodes = Node(("", -1, "")), 0
    for frames, hanging in stacks:
        node = root
        for frame in frames:
            site = (frame["file"], frame["line"], frame["function"])
            if site not in node.children:
                node.children[site] = Node(site, frame["code"], frame["is_user"])
                n_nodes += 1
            node = node.children[site]
        if node is not root:
            node.chips.append(hanging)
    return root, n_nodes


def trie_html(name: str, stacks: Iterable[tuple[Sequence[Row], Html]], base: str, later: Later) -> Html:
    """Empty without stacks; `name` is unique in the page."""
    return drawn_trie(name, *trie_of(stacks), base, later)


def drawn_trie(name: str, root: Node, n_nodes: int, base: str, later: Later) -> Html:
    if not n_nodes:
        return NOTHING
    drawn = _Drawing(name, base, later, n_nodes > MAX_OPEN_NODES).branches(root, 0)
    return markup('<div class="trie">{}</div>', drawn)


class _Drawing:
    def __init__(self, name: str, base: str, later: Later, is_large: bool) -> None:
        self.name = name
        self.base = base
        self.later = later
        self.is_large = is_large
        self._n_lists = 0

    def branches(self, node: Node, level: int) -> Html:
        """What follows a frame: a list of calls, indented only where stacks part."""
        if level > MAX_LEVELS:
            items = [self._frame(each) for each in _below(node)]
        else:
            items = [item for child in node.children.values() for item in self._branch(child, level)]
        return self._list(items)

    def _list(self, items: Sequence[Html]) -> Html:
        self._n_lists += 1
        return listed(self.later, "ul", f"{self.name}-{self._n_lists}", items, BRANCHES_SHOWN)

    def _branch(self, node: Node, level: int) -> Iterator[Html]:
        if not node.label:
            yield from self._chain(node, level)
            return
        body = self._list([*self._chain(node, level)])
        yield markup('<li class="branch">{}</li>', fold(node.label, body, is_open=True))

    def _chain(self, node: Node, level: int) -> Iterator[Html]:
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
        yield markup('<li class="fork">{}</li>', fold(self._line(node), body, later=later, is_open=True))

    def _frame(self, node: Node) -> Html:
        kind = NOTHING if node.is_user or node.chips else markup(' class="foreign"')
        return markup("<li{}>{}</li>", kind, self._line(node))

    def _line(self, node: Node) -> Html:
        file, line, function = node.place
        shown = file.removeprefix(self.base) if self.base else file
        shown += f":{line}" if line else ""  # a library's frame has none
        code = markup(' <code class="source">{}</code>', node.code) if node.code else NOTHING
        return markup(
            '<span class="frame{}"><b>{}</b> <span class="place">{}</span>{}</span>{}',
            "" if node.is_user else " faint",
            function,
            shown,
            code,
            _chips(node.chips),
        )


def _chips(chips: list[str]) -> Html:
    if not chips:
        return NOTHING
    shown = joined(chips[:CHIPS_SHOWN], " ")
    if chips[CHIPS_SHOWN:]:
        shown += fold(f"{len(chips) - CHIPS_SHOWN:,} more", joined(chips[CHIPS_SHOWN:], " "))
    return markup('<span class="chips">{}</span>', shown)


def _below(node: Node) -> Iterator[Node]:
    waiting = list(reversed(node.children.values()))
    while waiting:
        following = waiting.pop()
        yield following
        waiting.extend(reversed(following.children.values()))
