"""The page with three panes: point at a line of one, and the lines of the others that belong to it light up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rankscope.render.compile_tree.provenance_lines import Graph, Lines, shown_cpp, shown_python
from rankscope.render.compile_tree.small_pages import BACK
from rankscope.render.html import NOTHING, Html, joined, markup, page, script_data, text

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
    by_text = {key: {str(line): others for line, others in own.items()} for key, own in lines.items()}
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
