"""tlparse, TORCH_TRACE and TORCH_LOGS."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from behaviors.compile_scenes import GUIDE_FILES, LOG_OPTIONS
from behaviors.row import Behavior

TITLE = "tlparse, TORCH_TRACE and TORCH_LOGS"
INTRO = (
    "Reports on what torch.compile did, and the logs that it can write. `rankscope tlparse` takes tlparse's own "
    "command line."
)


def _has_every_file(folder: Path, printed: str) -> None:
    """In the report's folder, and in the list of its first page."""
    names = {path.name for path in (folder / "tl_out").rglob("*") if path.is_file()}
    index = (folder / "tl_out" / "index.html").read_text()
    for wanted in GUIDE_FILES:
        assert [name for name in names if re.fullmatch(rf"{wanted}_\w+\.(txt|json|html)", name)], wanted
        assert re.search(rf"\b{wanted}_\w+\.(txt|json|html)", index), wanted


def _shows_colors(folder: Path, printed: str) -> None:
    index = (folder / "tl_out" / "index.html").read_text()
    for status, label in (("ok", "0/0"), ("break", "1/0"), ("error", "2/0")):
        assert re.search(rf'<a class="chip {status}"[^>]*>\[{label}\]</a>', index), status
    greens = {status: _color(index, status) for status in ("ok", "break", "error")}
    red, green = 0, 1
    assert greens["ok"][green] < 0x90 < greens["break"][green]  # dark and light
    assert max(greens["ok"]) == greens["ok"][green]
    assert greens["error"][red] > 2 * greens["error"][green]


def _color(page: str, status: str) -> tuple[int, ...]:
    found = re.search(rf"\.chip\.{status} {{ background: light-dark\(#(\w\w)(\w\w)(\w\w)", page)
    assert found
    return tuple(int(part, 16) for part in found.groups())


def _is_whole(folder: Path, printed: str) -> None:
    with zipfile.ZipFile(folder / "tl_out.zip") as archive:
        names = archive.namelist()
    assert {"tl_out/index.html", "tl_out/raw.log"} <= set(names)
    assert any(name.startswith("tl_out/-_0_0_0/dynamo_output_graph_") for name in names)


def _has_all_options(folder: Path, printed: str) -> None:
    for option in LOG_OPTIONS:
        assert re.search(rf"\b{option.lstrip('+')}\b", printed), option


def _logged_all(folder: Path, printed: str) -> None:
    logged = (folder / "everything_logged" / "torch_logs_0.txt").read_text()
    # torch 2.13 takes graph_sizes and schedule and logs nothing for them here: sizes are in the compile log.
    own = ("graph_code", "trace_bytecode", "trace_source", "bytecode", "guards", "recompiles_verbose")
    generated = ("aot_graphs", "aot_joint_graph", "output_code", "kernel_code", "perf_hints", "fusion")
    for artifact in (*own, *generated):
        assert f"[__{artifact}]" in logged, artifact
    for module in ("torch/_dynamo/", "torch/_functorch/", "torch/_inductor/", "torch/fx/experimental/symbolic_shapes"):
        assert module in logged, module


def _is_kept(folder: Path, printed: str) -> None:
    logged = (folder / "traces" / "torch_logs_0.txt").read_text()
    assert "[__graph_breaks] Graph break in user code" in logged
    assert "create_symbol" in logged
    assert "[__graph_breaks] Graph break in user code" in printed  # on the job's own stderr, as ever


BEHAVIORS = (
    Behavior(
        there="`tlparse /tmp/tracedir --latest`: report on the latest log in a folder, by default into `tl_out`",
        commands=("rankscope tlparse two_runs --latest",),
        shows=r"Report: tl_out/index.html",
    ),
    Behavior(
        there="do the same for all ranks of the newest run in the folder",
        commands=("rankscope compile two_runs --latest",),
        shows=r"The report covers the newest run; 1 log of 1 earlier run is left out",
    ),
    Behavior(
        there="`tlparse <log_file>`: report on one log; `-o my_folder`: into another folder",
        commands=("rankscope compile two_runs/dedicated_log_torch_trace_first.log -o my_folder",),
        shows=r"Report: my_folder/index.html",
    ),
    Behavior(
        there="tlparse's other options",
        commands=("rankscope tlparse --help",),
        shows=r"(?s)--overwrite.*--strict .*--strict-compile-id.*--no-browser.*--custom-header-html.*--verbose"
        r".*--plain-text.*--export.*--inductor-provenance.*--all-ranks-html",
    ),
    Behavior(
        there="a report for each rank of a distributed job",
        commands=("rankscope compile compiled -o tl_out", ">>> import glob; print(sorted(glob.glob('tl_out/rank_*')))"),
        shows=r"rank_0.*rank_1",
    ),
    Behavior(
        there="open the report in the browser: here only with `--open`",
        commands=("rankscope compile --help",),
        shows=r"--open +open the report in a browser",
    ),
    Behavior(
        there="attach a zip with the whole output, not just index.html; or one page with everything (`-o r.html`)",
        commands=("rankscope compile catalog -o r.html", "rankscope compile catalog -o tl_out.zip"),
        shows=r"Report: tl_out.zip",
        check=_is_whole,
    ),
    Behavior(
        there="attach the trace log itself: the report has an unchanged copy",
        commands=("rankscope compile catalog", ">>> print(open('tl_out/raw.log').read())"),
        shows=r"dynamo_output_graph",
    ),
    Behavior(
        there="the warning that logs and reports hold the model's code, but no weights",
        commands=("rankscope compile catalog",),
        shows=r"contains your model's code, but no weights",
    ),
    Behavior(
        there="a page that can be shared: without source code, folder names and host names",
        commands=("rankscope report catalog -o shared.html --redact", ">>> print(open('shared.html').read()[:400000])"),
        shows=r"Source lines, directories and host names were left out",
    ),
    Behavior(
        there="help in the report that explains its contents",
        commands=("rankscope compile catalog", ">>> print(open('tl_out/index.html').read())"),
        shows=r"(?s)Compile ids, phases and files explained.*Compile ids</h3>.*From Python to kernels.*Files</h3>",
    ),
    Behavior(
        there="what code was compiled: the stack trie; frames dark green `[0/0]`, graph-broken light green, failed red",
        commands=("rankscope compile catalog", ">>> print(open('tl_out/index.html').read())"),
        shows=r'<div class="trie">',
        check=_shows_colors,
    ),
    Behavior(
        there="how many graph breaks and compiled regions there are, and where",
        commands=("rankscope compile graph_broken",),
        shows=r"warning\[C404\] \(\w+\) graph break in .*",
    ),
    Behavior(
        there="how often a frame was recompiled, and why",
        commands=("rankscope compile compiled",),
        shows=r"\[C401\] .* (times|recompile limit|versions)",
    ),
    Behavior(
        there="whether a compilation failed",
        commands=("rankscope compile catalog",),
        shows=r"error\[C405\] \(\w+\) compiling .* failed with RuntimeError: no kernel for this operator",
    ),
    Behavior(
        there="what torch measured for a frame: `compilation_metrics`",
        commands=('rankscope query catalog "select compile_id, status, duration_ns from compilations"',),
        shows=r"(?s)0/0.*1/0.*2/0",
    ),
    Behavior(
        there="every file of tlparse's table, from `dynamo_output_graph` to `dynamo_cpp_guards_str`, by its name; "
        "`aot_autograd_cache_hit` also as torch writes it, `aotautograd_cache_hit`",
        commands=("rankscope compile catalog",),
        shows=r"Report: tl_out",
        check=_has_every_file,
    ),
    Behavior(
        there="the same files of a real job: training, inference, and both again from the caches",
        commands=("rankscope compile everything_logged",),
        shows=r"cache hits",
        check=_has_every_file,
        needs_torch=True,
    ),
    Behavior(
        there="cache keys, hits and misses, and which part of the key made a lookup miss",
        commands=('rankscope query catalog "select artifact, also_named, outcome, key from cache_events"',),
        shows=r"(?s)aotautograd_cache_miss.*aot_autograd_cache_miss",
    ),
    Behavior(
        there='`TORCH_LOGS="<option1>,<option2>,..." python foo.py`, with a file per rank; '
        "`torch._logging.set_logs(graph_breaks=True, dynamic=logging.DEBUG)` in the job is kept as well",
        commands=("rankscope record -o traces --only compile-log --logs recompiles,guards -- python sets_logs.py",),
        shows=r"torch logs +1 rank, 1 file",
        check=_is_kept,
        needs_torch=True,
    ),
    Behavior(
        there="list every TORCH_LOGS option, from `+all` to `fusion`",
        commands=("rankscope logs",),
        shows=r"Logs of torch",
        check=_has_all_options,
        needs_torch=True,
    ),
    Behavior(
        there="the text of all these options at once, read and judged",
        commands=("rankscope everything_logged --all",),
        shows=r"(?s)Read 1 compile log, 1 manifest, 1 TORCH_LOGS file.*C409",
        check=_logged_all,
        needs_torch=True,
    ),
    Behavior(
        there="TORCH_LOGS text that a job printed: graph breaks, recompilations, guards, dynamic shapes",
        commands=("rankscope texts --all",),
        shows=r"\[C404\] \(\w+\) graph break",
    ),
    Behavior(
        there="the full list of options, with what each of them logs",
        commands=("rankscope logs graph_sizes",),
        shows=r"graph_sizes +Prints the sizes of all FX nodes",
        needs_torch=True,
    ),
    Behavior(
        there="first an overview of a large model, then a single component: from the findings to the records",
        commands=("rankscope compile compiled", 'rankscope query compiled "from recompiles limit 3"'),
        shows=r"(?s)compile_id.*(3 rows)",
    ),
)
