"""Names of nodes and kernels -> numbers of the lines that hold them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Names = dict[str, list[str]]
Lines = dict[int, list[int]]

_HANDLE = re.compile(r"(.+):\d+")  # kernel:12 is the 12th call in the code
# `int64_t kernel_xnumel_1 = 8;` only says how large a call is.
_SIZE_OF_CALL = re.compile(r"_xnumel = |^\s*\w+\s+.*_xnumel(?:_\d+)?\s*=")
_PYTHON_BODY = re.compile(r"(?m)^[ \t]*def +call *\((?:self, *)?args\)")
_CPP_BODY = re.compile(r"(?m)^.*::run_impl\(")
_DEFINITIONS = ("def", "static inline void")


@dataclass
class Graph:
    """One graph that was compiled, the code that came of it, and what torch says belongs together."""

    pre: str = ""  # before the gradients
    post: str = ""
    python: str = ""
    cpp: str = ""
    nodes: dict[str, Names] = field(default_factory=dict)
    lines: dict[str, Lines] = field(default_factory=dict)
    title: str = ""


def line_mappings(graph: Graph) -> dict[str, Lines]:
    """Lines from 1, under the keys that tlparse has; all empty where torch logged no mapping."""
    to_post, to_code = graph.nodes.get("cppCodeToPost", {}), graph.nodes.get("postToCppCode", {})
    pre, post = node_lines(graph.pre), node_lines(graph.post)
    kernels = [*to_post, *(kernel for names in to_code.values() for kernel in names)]
    python = _lines_of_kernels(kernels, _Code(shown_python(graph.python), _PYTHON_BODY), _calls_in_python)
    cpp = _lines_of_kernels(kernels, _Code(shown_cpp(graph.cpp), _CPP_BODY), _calls_in_cpp)
    return {
        "preToPost": _joined(graph.nodes.get("preToPost", {}), pre, post),
        "postToPre": _joined(graph.nodes.get("postToPre", {}), post, pre),
        "pyCodeToPost": _joined(to_post, python, post),
        "postToPyCode": _joined(to_code, post, python),
        "cppCodeToPost": _joined(to_post, cpp, post),
        "postToCppCode": _joined(to_code, post, cpp),
    }


def node_lines(graph: str) -> dict[str, list[int]]:
    """Node -> the line that makes it: `relu: "f32[8]" = torch.ops.aten.relu(x)`."""
    lines = {}
    for number, line in enumerate(graph.split("\n"), start=1):
        name = line.partition("=")[0].partition(":")[0].strip()
        if name and not name.startswith("#"):
            lines[name] = [number]
    return lines


def shown_python(code: str) -> str:
    """From the line on that torch begins its files with: the lines are counted from there."""
    return _from_line_with(code.lstrip("\r\n"), "# AOT ID:")


def shown_cpp(code: str) -> str:
    return code.lstrip("\r\n")


def _from_line_with(code: str, sign: str) -> str:
    start = code.find(sign)
    return code[code.rfind("\n", 0, start) + 1 :] if start >= 0 else code


class _Code:
    """Text in which names are looked up, from where calls begin. It is searched as a whole, not line by line."""

    def __init__(self, text: str, body: re.Pattern[str]) -> None:
        match = body.search(text)
        self.text = text
        self.body = match.start() if match else 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line_at(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def after_line(self, line: int) -> int:
        """Offset of the line behind it."""
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def line(self, number: int) -> str:
        return self.text[self._starts[number - 1] : self.after_line(number)].rstrip("\n")

    def lines_with(self, name: str, start: int) -> Iterator[int]:
        """The lines that hold the name, each once. mul_1 is not in mul_10."""
        line = 0
        for match in re.compile(re.escape(name) + r"(?!\d)").finditer(self.text, start):
            if (other_line := self.line_at(match.start())) != line:
                line = other_line
                yield line


Finder = Callable[[_Code, str, str], list[int]]


def _lines_of_kernels(kernels: Iterable[str], code: _Code, find: Finder) -> dict[str, list[int]]:
    lines = {}
    for kernel in dict.fromkeys(kernels) if code.text else ():
        handle = _HANDLE.fullmatch(kernel)
        numbers = find(code, kernel, handle.group(1) if handle else kernel)
        if numbers:
            lines[kernel] = numbers
    return lines


def _calls_in_python(code: _Code, kernel: str, plain_name: str) -> list[int]:
    """A comment names the kernel with its handle, the call is below it. Without handles all calls are meant."""
    if kernel != plain_name:
        for comment in code.lines_with(kernel, code.body):
            for call in code.lines_with(plain_name, code.after_line(comment)):
                return [call]
            break
    return list(code.lines_with(plain_name, code.body))


def _calls_in_cpp(code: _Code, kernel: str, plain_name: str) -> list[int]:
    if kernel != plain_name:
        for comment in code.lines_with(kernel, code.body):
            if code.line(comment).strip().startswith(_DEFINITIONS):
                continue
            for call in code.lines_with(plain_name, code.after_line(comment)):
                if not _SIZE_OF_CALL.search(code.line(call)):
                    return [call]
    return list(code.lines_with(plain_name, code.body))


def _joined(names: Names, sources: Mapping[str, list[int]], targets: Mapping[str, list[int]]) -> Lines:
    """Two kernels on one line are listed together."""
    joined: Lines = {}
    for source, target_names in names.items():
        lines = [line for target in target_names for line in targets.get(target, ())]
        for line in sources.get(source, ()) if lines else ():
            known = joined.setdefault(line, [])
            known += [target for target in lines if target not in known] if known else lines
    return joined
