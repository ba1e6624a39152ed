"""A Chakra file as a graph for other programs: Graphviz, GraphML. Writing either needs no other package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape as escape_xml
from xml.sax.saxutils import quoteattr

from rankscope.model import chakra
from rankscope.model.chakra import ChakraNode, type_name
from rankscope.render.chakra_views import Excerpt
from rankscope.render.escape import escape

_MAX_LABEL = 60


class _Graph:
    """Passes nodes on and keeps what the edges need: which nodes exist, and what each depends on."""

    def __init__(self, excerpt: Excerpt) -> None:
        self._excerpt = excerpt
        self._ids: set[int] = set()
        self._deps: list[tuple[int, list[int], list[int]]] = []

    def nodes(self) -> Iterator[ChakraNode]:
        """Each id once."""
        for node in self._excerpt:
            if node.id not in self._ids:
                self._ids.add(node.id)
                yield node
            self._deps.append((node.id, node.ctrl_deps, node.data_deps))

    def missing(self) -> list[int]:
        """Ids that nodes depend on but that are not in the file; unknown for an excerpt."""
        if self._excerpt.is_cut:
            return []
        needed = {dep for _, ctrl, data in self._deps for dep in (*ctrl, *data)}
        return sorted(needed - self._ids)

    def edges(self) -> Iterator[tuple[int, int, str]]:
        """From, to, and the kind, without the edges that leave an excerpt."""
        for target, *lists in self._deps:
            for kind, deps in zip(("ctrl", "data"), lists, strict=True):
                for source in deps:
                    if not self._excerpt.is_cut or source in self._ids:
                        yield source, target, kind

    def note(self) -> str:
        return f"only the first {self._excerpt.limit:,} nodes; the file has more" if self._excerpt.is_cut else ""


_COLORS = {
    chakra.METADATA: "lightyellow",
    chakra.MEM_LOAD: "lightgrey",
    chakra.MEM_STORE: "lightgrey",
    chakra.COMP: "white",
    chakra.COMM_SEND: "lightsalmon",
    chakra.COMM_RECV: "lightsalmon",
    chakra.COMM_COLL: "lightskyblue",
}


def dot_lines(excerpt: Excerpt) -> Iterator[str]:
    """For Graphviz: data dependencies are solid, control dependencies dashed."""
    graph = _Graph(excerpt)
    yield f"digraph {_dot_text(excerpt.stream.path)} {{"
    yield '  node [shape=box, style=filled, fillcolor=white, fontname="sans-serif"];'
    for node in graph.nodes():
        label = f"{node.id} {node.name}"
        label = label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 3] + "..."
        color = _COLORS.get(node.type, "tomato")
        title = _dot_text(f"{type_name(node.type)}, {node.duration_us} us")
        yield f"  n{node.id} [label={_dot_text(label)}, fillcolor={color}, tooltip={title}];"
    for missing in graph.missing():
        yield f'  n{missing} [label="{missing} is missing", style=dashed, color=red];'
    for source, target, kind in graph.edges():
        yield f"  n{source} -> n{target}{' [style=dashed]' if kind == 'ctrl' else ''};"
    if graph.note():
        yield f"  // {graph.note()}"
    yield "}"


def _dot_text(text: str) -> str:
    quoted = escape(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def graphml_lines(excerpt: Excerpt) -> Iterator[str]:
    """For yEd, Gephi or networkx: name, type and times are data of nodes, the kind is that of an edge."""
    graph = _Graph(excerpt)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    for name, kind in (("name", "string"), ("type", "string"), ("start_us", "long"), ("duration_us", "long")):
        yield f'  <key id="{name}" for="node" attr.name="{name}" attr.type="{kind}"/>'
    yield '  <key id="kind" for="edge" attr.name="kind" attr.type="string"/>'
    yield f'  <graph id={quoteattr(escape(excerpt.stream.path))} edgedefault="directed">'
    for node in graph.nodes():
        data = {"name": node.name, "type": type_name(node.type)}
        times = {"start_us": node.start_us, "duration_us": node.duration_us}
        yield f'    <node id="n{node.id}">{_graphml_data({**data, **times})}</node>'
    for missing in graph.missing():
        yield f'    <node id="n{missing}">{_graphml_data({"type": "missing"})}</node>'
    for source, target, kind in graph.edges():
        yield f'    <edge source="n{source}" target="n{target}">{_graphml_data({"kind": kind})}</edge>'
    if graph.note():
        yield f"    <!-- {graph.note()} -->"
    yield "  </graph>"
    yield "</graphml>"


def _graphml_data(values: Mapping[str, object]) -> str:
    return "".join(f'<data key="{key}">{escape_xml(escape(str(value)))}</data>' for key, value in values.items())
