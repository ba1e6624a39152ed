"""The tools that bench/execution_trace.py compares: what each one runs, and what shows that it did the whole work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from execution_pairs import Pair
from measuring import Command, Usage, check_printed, run_measured

SOURCE = Path(__file__).resolve().parents[1] / "src"

EXPORT = "rankscope export --to chakra"
LINK = "rankscope link"
READ = "reading the bytes"
RAW = "msgspec, cut into nodes"
TYPED = "msgspec, typed"
CHAKRA_LINK = "chakra_trace_link"
CHAKRA_CONVERT = "chakra_converter"

CHAKRA_HOW = """\
Chakra's tools were not found in {folder}. To compare with them:
  python -m venv {folder}
  {folder}/bin/pip install "pandas<3" psutil
then `{folder}/bin/pip install` checkouts of
  facebookresearch/param at 7b19f586, folder et_replay
  facebookresearch/HolisticTraceAnalysis at d731cc2e, with its submodule
  mlcommons/chakra at 21585d8f
in this order, as its user guide says."""

_READ = """
import json, sys
print(json.dumps({"bytes": sum(len(open(path, "rb").read()) for path in sys.argv[1:])}))
"""

_DECODE = """
import json, sys
import msgspec
from typing import Any
{types}
counts = {{}}
for path, kind, key in zip(sys.argv[1:], (Nodes, Profile), ("nodes", "traceEvents")):
    with open(path, "rb") as stream:
        document = msgspec.json.decode(stream.read(), type=kind)
    counts[key] = len(getattr(document, key))
print(json.dumps(counts))
"""

_RAW = _DECODE.format(
    types="""
class Nodes(msgspec.Struct):
    nodes: list[msgspec.Raw]

class Profile(msgspec.Struct):
    traceEvents: list[msgspec.Raw]
"""
)

# The fields that the tables need. Values stay text: most of them are only handed on.
_TYPED = _DECODE.format(
    types="""
class Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any = None

class Values(msgspec.Struct, gc=False):
    values: msgspec.Raw
    shapes: msgspec.Raw
    types: msgspec.Raw

class Node(msgspec.Struct, gc=False):
    id: int
    name: str
    ctrl_deps: int
    inputs: Values
    outputs: Values
    attrs: list[Attribute]

class Nodes(msgspec.Struct):
    nodes: list[Node]

class Arguments(msgspec.Struct, gc=False):
    external_id: Any = msgspec.field(name="External id", default=None)
    record_id: int | None = msgspec.field(name="Record function id", default=None)
    sequence_number: int | None = msgspec.field(name="Sequence number", default=None)
    correlation: int | None = None
    stream: Any = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    n_elements: int | None = msgspec.field(name="In msg nelems", default=None)
    dtype: str | None = None

class Event(msgspec.Struct, gc=False):
    ph: str
    name: str
    cat: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: Arguments | None = None

class Profile(msgspec.Struct):
    traceEvents: list[Event]
"""
)


@dataclass(frozen=True)
class Tools:
    compiled: Path
    """Where rankscope's compiled modules are kept."""
    outputs: Path
    chakra: Path | None

    @property
    def written(self) -> dict[str, Path]:
        """Where the tools put the graph."""
        return {EXPORT: self.outputs / "exported", CHAKRA_CONVERT: self.outputs / "converted"}

    def commands(self, pair: Pair) -> dict[str, Command]:
        """rankscope's commands, and the floors."""
        link, export = self.outputs / "linked", self.written[EXPORT]
        files = [str(pair.execution), str(pair.kineto)]
        counts = {"nodes": pair.n_nodes, "traceEvents": pair.n_events}
        folder, always = str(pair.folder), ("--no-cache", "--force")
        return {
            READ: self._own(["-c", _READ, *files], partial(check_printed, {"bytes": pair.n_bytes})),
            RAW: self._own(["-c", _RAW, *files], partial(check_printed, counts)),
            TYPED: self._own(["-c", _TYPED, *files], partial(check_printed, counts)),
            LINK: self._own(
                ["-m", "rankscope", "link", folder, "-o", str(link), *always], partial(_check_written, link)
            ),
            EXPORT: self._own(
                ["-m", "rankscope", "export", folder, "--to", "chakra", "-o", str(export), "--json", *always],
                partial(_check_exported, export, pair),
            ),
        }

    def run_chakra(self, pair: Pair, limit_s: float, note: Callable[[str], None]) -> dict[str, Usage]:
        """Once each, the converter on what the linker wrote. What failed is noted and is not among the results."""
        assert self.chakra is not None
        linked, converted = self.outputs / "chakra_linked.json", self.written[CHAKRA_CONVERT] / "chakra.0.et"
        converted.parent.mkdir(exist_ok=True)
        log = str(self.outputs / "chakra.log")
        link = ["--rank", "0", "--chakra-host-trace", str(pair.execution), "--chakra-device-trace", str(pair.kineto)]
        steps: Mapping[str, Sequence[str]] = {
            CHAKRA_LINK: [*link, "--output-file", str(linked)],
            CHAKRA_CONVERT: ["--log-filename", log, "PyTorch", "--input", str(linked), "--output", str(converted)],
        }
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        usages: dict[str, Usage] = {}
        for name, arguments in steps.items():
            usage = run_measured([str(self.chakra / "bin" / name), *arguments], env, limit_s)
            if usage.exit_code != 0:
                why = "took too long" if usage.timed_out else usage.output.strip().rpartition("\n")[2]
                note(f"{name} failed: {why}")
                break
            note(f"{name}: {usage.cpu_s:.2f} s CPU, {usage.wall_s:.2f} s, {usage.peak_bytes / 1e6:.0f} MB")
            usages[name] = usage
        return usages

    def _own(self, arguments: Sequence[str], check: Callable[[Usage], None]) -> Command:
        """As for installed packages: compiled modules are kept. The first of the repeated runs pays for compiling."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": str(self.compiled)}
        return Command([sys.executable, *arguments], env, check)


def find_chakra(folder: Path) -> Path | None:
    has_all = all((folder / "bin" / name).exists() for name in (CHAKRA_LINK, CHAKRA_CONVERT))
    return folder if has_all else None


def n_chakra_nodes(folder: Path) -> int:
    """Messages in its one file of Chakra's, each behind its length, without the first, which describes the file."""
    [path] = folder.glob("*.et")
    content = path.read_bytes()
    position = n_messages = 0
    while position < len(content):
        length = shift = 0
        while True:
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position += length
        n_messages += 1
    return n_messages - 1


def _check_written(folder: Path, usage: Usage) -> None:
    if usage.exit_code != 0 or not folder.is_dir() or not any(folder.iterdir()):
        raise SystemExit(f"rankscope wrote nothing, exit code {usage.exit_code}:\n{usage.output[-2000:]}")


def _check_exported(folder: Path, pair: Pair, usage: Usage) -> None:
    """Every operator and every kernel is to become a node; a graph without some would be made faster."""
    _check_written(folder, usage)
    [rank] = json.loads(usage.output)["ranks"]
    expected = {"n_operators": pair.n_operators, "n_kernels": pair.n_kernels, "n_nodes": n_chakra_nodes(folder)}
    found = {name: rank[name] for name in expected}
    if found != expected:
        raise SystemExit(f"rankscope wrote {found}, but the pair and the file have {expected}")
