"""The page with three panes: point at a line of one, and the lines of the others that belong to it light up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rankscope.render.compile_tree.provenance_lines import Graph, Lines, shown_cpp, shown_python
from rankscope.render.compile_tree.small_pages import BACK
from rankscope.render.html import page, text

_STYLES = ("page.css", "provenance.css")
_BACK = '<p><a href="index.html">Back to the report</a></p>'
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
    body = [_BACK, f"<h1>{text(title)}</h1>"]
    body += [f"<p>{_HOW_TO}</p>"] if any(_is_mapped(graph) for graph in graphs) else []
    body += [f"<p>{_NO_GRAPH}</p>"] if not graphs else []
    for number, graph in enumerate(graphs):
        body += _section(graph, number)
    if not graphs:
        body.append(_data({}, 0))
    return page(title, body, _STYLES, ("provenance.js",)).encode("utf-8", "replace")


def _is_mapped(graph: Graph) -> bool:
    return any(graph.lines.values())


def _section(graph: Graph, number: int) -> Iterator[str]:
    lines = graph.lines
    yield f'<section data-mappings="{_data_id(number)}">' + (f"<h2>{text(graph.title)}</h2>" if graph.title else "")
    if not _is_mapped(graph):
        yield f'<p class="faint">{_NO_MAPPING}</p>'
    yield '<div class="panes">'
    yield _pane("pre", "Pre-grad graph", graph.pre, lines.get("preToPost", {}))
    post = lines.get("postToPre", {}) | lines.get("postToPyCode", {}) | lines.get("postToCppCode", {})
    yield _pane("post", "Post-grad graph", graph.post, post)
    if graph.python or not graph.cpp:
        yield _pane("python", "Generated code", shown_python(graph.python), lines.get("pyCodeToPost", {}))
    if graph.cpp:
        yield _pane("cpp", "Generated C++ wrapper", shown_cpp(graph.cpp), lines.get("cppCodeToPost", {}))
    yield "</div></section>"
    yield _data(lines, number)


def _pane(name: str, heading: str, content: str, mapped: Lines) -> str:
    if not content:
        return f'<div class="pane"><h3>{heading}</h3><p class="faint">Not in the log.</p></div>'
    lines = "".join(_line(number, line, number in mapped) for number, line in enumerate(content.split("\n"), start=1))
    return f'<div class="pane" data-pane="{name}"><h3>{heading}</h3><pre>{lines}</pre></div>'


def _line(number: int, line: str, is_mapped: bool) -> str:
    # A block of its own needs no newline behind it; an empty one would have no height.
    reachable = ' tabindex="0" role="button"' if is_mapped else ""
    return f'<span class="line" data-n="{number}"{reachable}>{text(line) or " "}</span>'


def _data_id(number: int) -> str:
    return "lineMappings" if number == 0 else f"lineMappings-{number + 1}"


def _data(lines: Mapping[str, Lines], number: int) -> str:
    """In the form in which tlparse has it. Numbers only: nothing in it could end the element."""
    by_text = {key: {str(line): others for line, others in own.items()} for key, own in lines.items()}
    content = msgspec.json.format(msgspec.json.encode(by_text, order="sorted")).decode()
    return f'<script id="{_data_id(number)}" type="application/json">\n{content}\n</script>'


def stack_traces_page(stacks: Mapping[str, Iterable[str]]) -> bytes:
    """What JSON has as one line with \\n in it, for people."""
    body = [BACK, "<h1>Where each kernel comes from</h1>"]
    for kernel, traces in stacks.items():
        body.append(f"<h3>{text(kernel)}</h3>")
        body += [f"<pre>{text(_unfolded(trace))}</pre>" for trace in traces]
    if not stacks:
        body.append("<p>The log names no kernel here.</p>")
    return page("Where each kernel comes from", body).encode("utf-8", "replace")


def _unfolded(trace: str) -> str:
    """Some versions escape the newlines twice."""
    return trace.replace("\\n", "\n").rstrip("\n")
