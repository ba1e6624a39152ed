"""Provenance: which lines of the pre-grad graph, the post-grad graph and the generated code belong together.

torch logs it by name of node and kernel. Here the names become line numbers, one set for every graph of a compilation:
a training step has a forward and a backward graph, each with code and mapping of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace
from rankscope.render.compile_tree.outputs import Output, RankTree, by_label, labels_of, tree_records
from rankscope.render.compile_tree.provenance_lines import (
    Graph,
    Lines,
    Names,
    line_mappings,
    node_lines,
    shown_cpp,
    shown_python,
)
from rankscope.render.compile_tree.small_pages import BACK
from rankscope.render.html import NOTHING, Html, joined, markup, page, script_data, text

# Record -> what it is to a graph. Where a graph has two of one sort, the first in this list is the one to show.
_ROLES = {
    "before_pre_grad_graph": "pre",
    "inductor_pre_grad_graph": "pre",
    "after_post_grad_graph": "post",
    "inductor_post_grad_graph": "post",
    "inductor_output_code": "python",
    "inductor_aot_wrapper_code": "cpp",
    "inductor_provenance_tracking_node_mappings": "mapping",
    "inductor_triton_kernel_to_post_grad_nodes": "kernels",
    "inductor_post_to_pre_grad_nodes": "origins",
}
_GRAPHS = ("pre", "post")
_BACKWARD = re.compile(r"\btangents_\d+")
_MAX_ORIGIN_DEPTH = 50


def write_provenance(trace: Trace, tree: RankTree, folder: str) -> list[str]:
    """One page per compilation. tlparse writes one for those without any graph as well, so they have theirs."""
    directories = labels_of(tree_records(trace, tree))
    of_label = by_label(tree.outputs)
    written = []
    for label, directory in directories.items():
        name = f"provenance_tracking_{directory}.html"
        with open(os.path.join(folder, name), "wb") as file:
            file.write(provenance_page(label, graphs_of(trace, of_label.get(label, ()))))
        written.append(name)
    return written


def readable_stack_traces(payload: bytes) -> bytes:
    """The page beside inductor_provenance_tracking_kernel_stack_traces_N.json."""
    return stack_traces_page(_names(_decoded(payload)))


def graphs_of(trace: Trace, outputs: Iterable[Output]) -> list[Graph]:
    """The graphs of one compilation in the order in which they were compiled."""
    groups = list(_grouped(outputs))
    pre_graphs = [_payload(trace, group["pre"]) for group in groups if "pre" in group]
    graphs = []
    for group in groups:
        texts = {role: _payload(trace, output) for role, output in group.items()}
        if texts.keys() <= {"pre"}:
            continue
        pre, post, python, cpp = (texts.get(role, "") for role in ("pre", "post", "python", "cpp"))
        graph = Graph(pre, post, python, cpp, _mapping(texts))
        graph.pre = _best_pre_graph(graph, pre_graphs)
        graph.lines = line_mappings(graph)
        graphs.append(graph)
    _name_graphs(graphs)
    return graphs


def _grouped(outputs: Iterable[Output]) -> Iterator[dict[str, Output]]:
    """A graph is logged before its code, so a graph behind code is the next one; so is a second code or mapping."""
    group: dict[str, Output] = {}
    order = list(_ROLES)
    for output in outputs:
        name = _role_name(output)
        role = _ROLES.get(name)
        if role is None:
            continue
        is_next = role in group if role not in _GRAPHS else bool(group.keys() - {*_GRAPHS, "origins"})
        if is_next:
            yield group
            group = {}
        if role in group and order.index(_role_name(group[role])) < order.index(name):
            continue
        group[role] = output
    if group:
        yield group


def _role_name(output: Output) -> str:
    row = output.row
    return str(row["name"] if row["kind"] in ("artifact", "graph_dump") else row["kind"])


def _payload(trace: Trace, output: Output) -> str:
    return mapped_log(trace, output.row["file_id"]).payload(output.row).decode("utf-8", "replace")


def _best_pre_graph(graph: Graph, candidates: Sequence[str]) -> str:
    """A backward graph has none of its own: it is the one that its mapping speaks of, else the last one logged."""
    if graph.pre or not candidates:
        return graph.pre
    wanted = graph.nodes.get("preToPost", {}).keys()
    return max(reversed(candidates), key=lambda text: len(wanted & node_lines(text).keys()))


def _name_graphs(graphs: Sequence[Graph]) -> None:
    has_backward = any(_BACKWARD.search(graph.post) for graph in graphs)
    for number, graph in enumerate(graphs, start=1):
        phase = "Backward" if _BACKWARD.search(graph.post) else "Forward" if has_backward else "Graph"
        graph.title = f"{phase} ({number} of {len(graphs)})" if len(graphs) > 1 else ""


def _mapping(texts: Mapping[str, str]) -> dict[str, Names]:
    """The mapping in the newest format; logs from early 2025 may have only one of its two halves."""
    logged = {
        key: _names(value) for key, value in _decoded(texts.get("mapping", "")).items() if isinstance(value, dict)
    }
    origins = {node: list(dict.fromkeys(_roots(steps))) for node, steps in _decoded(texts.get("origins", "")).items()}
    to_pre = logged.get("postToPre") or origins
    to_post = logged.get("cppCodeToPost") or _names(_decoded(texts.get("kernels", "")))
    return {
        "preToPost": logged.get("preToPost") or _reversed(to_pre),
        "postToPre": to_pre,
        "cppCodeToPost": to_post,
        "postToCppCode": logged.get("postToCppCode") or _reversed(to_post),
    }


def _decoded(payload: str | bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _names(values: Mapping[str, Any]) -> Names:
    lists = {key: names for key, names in values.items() if isinstance(names, list)}
    return {key: [name for name in names if isinstance(name, str)] for key, names in lists.items()}


def _reversed(names: Names) -> Names:
    turned: Names = {}
    for source, targets in names.items():
        for target in targets:
            turned.setdefault(target, []).append(source)
    return turned


def _roots(made_of: Any, depth: int = 0) -> Iterator[str]:
    """The nodes that a node was made of in the end, through all passes."""
    if not isinstance(made_of, list) or depth > _MAX_ORIGIN_DEPTH:
        return
    for step in made_of:
        if isinstance(step, dict) and step.get("from_node"):
            yield from _roots(step["from_node"], depth + 1)
        elif isinstance(step, dict) and step.get("name"):
            yield str(step["name"])


# The page


_STYLES = ("page.css", "provenance.css")
_BACK = markup('<p><a href="index.html">Back to the report</a></p>')
_NO_GRAPH = (
    "The log has no graph and no generated code for this compilation, so there is nothing to compare. To record where "
    "code comes from, run the job with INDUCTOR_PROVENANCE=1 and TORCH_TRACE=FOLDER."
)
_NO_MAPPING = (
    "torch logged no mapping for this graph, so no lines can be matched. It logs one only with INDUCTOR_PROVENANCE=1, "
    "and none for code from a cache. torch 2.13 leaves it empty for backward graphs."
)
_HOW_TO = (
    "Point at a line with a bold number, or reach it with Tab, to highlight its lines in the other panes. Click or "
    "press Enter to keep the highlight and scroll to it; press Escape to clear it."
)


def provenance_page(label: str, graphs: Sequence[Graph]) -> bytes:
    title = f"Provenance of {label}"
    body = [_BACK, markup("<h1>{}</h1>", title)]
    body += [markup("<p>{}</p>", _HOW_TO)] if any(_is_mapped(graph) for graph in graphs) else []
    body += [markup("<p>{}</p>", _NO_GRAPH)] if not graphs else []
    for number, graph in enumerate(graphs):
        body += _section(graph, number)
    if not graphs:
        body.append(_data({}, 0))
    return page(title, body, _STYLES, ("provenance.js",)).encode("utf-8", "replace")


def _is_mapped(graph: Graph) -> bool:
    return any(graph.lines.values())


def _section(graph: Graph, number: int) -> Iterator[Html]:
    lines = graph.lines
    yield markup('<section data-mappings="{}">', _data_id(number)) + (
        markup("<h2>{}</h2>", graph.title) if graph.title else NOTHING
    )
    if not _is_mapped(graph):
        yield markup('<p class="faint">{}</p>', _NO_MAPPING)
    yield markup('<div class="panes">')
    yield _pane("pre", "Pre-grad graph", graph.pre, lines.get("preToPost", {}))
    post = lines.get("postToPre", {}) | lines.get("postToPyCode", {}) | lines.get("postToCppCode", {})
    yield _pane("post", "Post-grad graph", graph.post, post)
    if graph.python or not graph.cpp:
        yield _pane("python", "Generated code", shown_python(graph.python), lines.get("pyCodeToPost", {}))
    if graph.cpp:
        yield _pane("cpp", "Generated C++ wrapper", shown_cpp(graph.cpp), lines.get("cppCodeToPost", {}))
    yield markup("</div></section>")
    yield _data(lines, number)


def _pane(name: str, heading: str, content: str, mapped: Lines) -> Html:
    if not content:
        return markup('<div class="pane"><h3>{}</h3><p class="faint">Not in the log.</p></div>', heading)
    lines = joined(_line(number, line, number in mapped) for number, line in enumerate(content.split("\n"), start=1))
    return markup('<div class="pane" data-pane="{}"><h3>{}</h3><pre>{}</pre></div>', name, heading, lines)


def _line(number: int, line: str, is_mapped: bool) -> Html:
    # A block of its own needs no newline behind it; an empty one would have no height.
    reachable = markup(' tabindex="0" role="button"') if is_mapped else NOTHING
    return markup('<span class="line" data-n="{}"{}>{}</span>', number, reachable, text(line) or " ")


def _data_id(number: int) -> str:
    return "lineMappings" if number == 0 else f"lineMappings-{number + 1}"


def _data(lines: Mapping[str, Lines], number: int) -> Html:
    """In the form in which tlparse has it. Numbers only: nothing in it could end the element."""
    by_text = {key: {str(line): others for line, others in by_line.items()} for key, by_line in lines.items()}
    content = msgspec.json.format(msgspec.json.encode(by_text, order="sorted")).decode()
    return markup('<script id="{}" type="application/json">\n{}\n</script>', _data_id(number), script_data(content))


def stack_traces_page(stacks: Mapping[str, Iterable[str]]) -> bytes:
    """What JSON has as one line with \\n in it, for people."""
    body = [BACK, markup("<h1>Where each kernel comes from</h1>")]
    for kernel, traces in stacks.items():
        body.append(markup("<h3>{}</h3>", kernel))
        body += [markup("<pre>{}</pre>", _unfolded(trace)) for trace in traces]
    if not stacks:
        body.append(markup("<p>The log names no kernel here.</p>"))
    return page("Where each kernel comes from", body).encode("utf-8", "replace")


def _unfolded(trace: str) -> str:
    """Some versions escape the newlines twice."""
    return trace.replace("\\n", "\n").rstrip("\n")
