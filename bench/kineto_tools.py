"""The tools that bench/kineto.py compares: what each one runs, and what shows that it read the whole trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kineto_traces import Counts
from measuring import Command, Usage, check_printed

SOURCE = Path(__file__).resolve().parents[1] / "src"
HTA_VERSION = "0.6.1"
# HTA's present name; its module is still called hta. It asks for any pandas, but with pandas 3 it fails on traces whose
# correlations fit into 16 bits, and is no faster.
HTA_PACKAGES = (f"traceinsight=={HTA_VERSION}", "pandas<3")

RANKSCOPE = "rankscope"
HTA = "HTA"
JSON = "json.load"
MSGSPEC = "msgspec, typed"

# The link to the launch and the step are columns of the kernels: counting them shows that they were found.
_KERNELS = "SELECT count(*) AS kernels, count(call_id) AS launched, count(DISTINCT step) AS steps FROM kernels"

_PARSE_WITH_HTA = """
import json, sys
from hta.common.trace import parse_trace_file
_, events, symbols = parse_trace_file(sys.argv[1])
numbers = symbols.get_sym_id_map()
kernels = events[events["cat"].isin([numbers.get(name) for name in ("kernel", "gpu_memcpy", "gpu_memset")])]
steps = set(events["iteration"]) - {-1}
found = {"events": len(events), "launched": int((kernels["index_correlation"] > 0).sum()), "steps": len(steps)}
print(json.dumps(found))
"""

_LOAD_WITH_HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
print(json.dumps({"ranks": len(TraceAnalysis(trace_dir=sys.argv[1]).t.traces)}))
"""

_LOAD_WITH_JSON = """
import gzip, json, sys
with gzip.open(sys.argv[1]) as stream:
    trace = json.load(stream)
timed = [event for event in trace["traceEvents"] if "dur" in event and event["cat"] != "Trace"]
print(json.dumps({"events": len(timed)}))
"""

# Eight fields of an event and thirteen of its arguments: about what the tables need.
_LOAD_WITH_MSGSPEC = """
import gzip, json, sys
from typing import Any
import msgspec

class Args(msgspec.Struct, gc=False):
    external_id: Any = msgspec.field(name="External id", default=None)
    event_index: int | None = msgspec.field(name="Ev Idx", default=None)
    record_id: int | None = msgspec.field(name="Record function id", default=None)
    sequence_number: int | None = msgspec.field(name="Sequence number", default=None)
    correlation: int | None = None
    device: Any = None
    context: Any = None
    stream: Any = None
    n_bytes: int | None = msgspec.field(name="bytes", default=None)
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
    args: Args | None = None

class Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")

with gzip.open(sys.argv[1]) as stream:
    trace = msgspec.json.decode(stream.read(), type=Trace)
timed = [event for event in trace.events if event.dur is not None and event.cat != "Trace"]
print(json.dumps({"events": len(timed)}))
"""


@dataclass(frozen=True)
class Tools:
    compiled: Path
    """Where rankscope's compiled modules are kept."""
    hta_python: Path | None

    def reading(self, path: Path, counts: Counts) -> dict[str, Command]:
        """One trace into tables."""
        events = {"events": counts.events}
        kernels = {"kernels": counts.kernels, "launched": counts.launched, "steps": counts.steps}
        commands = {
            RANKSCOPE: self._own(["-m", "rankscope", "query", str(path), _KERNELS, "--json", "--no-cache"], kernels),
            JSON: self._own(["-c", _LOAD_WITH_JSON, str(path)], events),
            MSGSPEC: self._own(["-c", _LOAD_WITH_MSGSPEC, str(path)], events),
        }
        if self.hta_python is not None:
            rows = {"events": counts.events, "launched": counts.launched, "steps": counts.steps}
            commands[HTA] = self._hta(["-c", _PARSE_WITH_HTA, str(path)], rows)
        return commands

    def diagnosing(self, folder: Path, n_ranks: int, culprit: int) -> dict[str, Command]:
        """The traces of all ranks: rankscope says who is at fault, HTA has them in memory."""
        diagnose = ["-m", "rankscope", str(folder), "--json", "--no-cache"]
        commands = {RANKSCOPE: self.own(diagnose, partial(_check_culprit, culprit))}
        if self.hta_python is not None:
            commands[HTA] = self._hta(["-c", _LOAD_WITH_HTA, str(folder)], {"ranks": n_ranks})
        return commands

    def own(self, arguments: Sequence[str], check: Callable[[Usage], None]) -> Command:
        """A command in our environment."""
        return Command([sys.executable, *arguments], self._environment(), check)

    def _own(self, arguments: Sequence[str], expected: Mapping[str, int]) -> Command:
        return self.own(arguments, partial(check_printed, expected))

    def _hta(self, arguments: Sequence[str], expected: Mapping[str, int]) -> Command:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return Command([str(self.hta_python), *arguments], env, partial(check_printed, expected))

    def _environment(self) -> dict[str, str]:
        """As for installed packages: compiled modules are kept. The first of the repeated runs pays for compiling."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**env, "PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": str(self.compiled)}


def _check_culprit(culprit: int, usage: Usage) -> None:
    if usage.exit_code not in (0, 1):
        raise SystemExit(f"rankscope failed (exit code {usage.exit_code}):\n{usage.output[-2000:]}")
    findings = json.loads(usage.output)["findings"]
    if not findings or findings[0]["ranks"] != [culprit]:
        found = [finding["title"] for finding in findings[:3]]
        raise SystemExit(f"rankscope did not name rank {culprit} first, but: {found}")


def hta_environment(folder: Path) -> Path:
    """The interpreter of an environment that has HTA and what it requires; made when it is not there."""
    python = folder / "bin" / "python"
    if _version(python, "traceinsight") != HTA_VERSION:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *HTA_PACKAGES])
    return python


def hta_versions(python: Path) -> str:
    return ", ".join(f"{package} {_version(python, package)}" for package in ("traceinsight", "pandas"))


def _version(python: Path, package: str) -> str | None:
    if not python.exists():
        return None
    script = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    finished = subprocess.run([python, "-c", script], capture_output=True, text=True)
    return finished.stdout.strip() if finished.returncode == 0 else None


def _run(command: Sequence[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(
            f"cannot make the environment for HTA: {' '.join(command)} failed:\n{finished.stderr[-2000:]}\n"
            "Give one that has it with --env, or leave HTA out with --skip-hta-above 0."
        )
