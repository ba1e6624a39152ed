"""Reports of compile logs that were made by hand: one of each status, a hostile one, one with many frames."""

from __future__ import annotations

from pathlib import Path

from rankscope.analyze import RULES
from rankscope.model.tables import Trace
from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree.index_page import write_index
from rankscope.render.compile_tree.outputs import TreeOptions, plan_ranks
from rankscope.render.compile_tree.writer import write_tree
from rankscope.simulate.compile_log import TRAIN, USER_SITE, LogBuilder, Site, ids_of

FORWARD = Site(TRAIN, 30, "forward")
LOSS = Site(TRAIN, 50, "loss")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
CODE = "import torch\n\ndef call(args):  # runs it\n    return 'done', 12\n"
OPTIONS = TreeOptions(base="/job", meanings={code: rule.doc.splitlines()[0] for code, rule in RULES.items()})


def job_log(rank: int | None = None) -> LogBuilder:
    """forward: compiled, then twice again. loss: restarted at a graph break, failed, captured nothing, never ended."""
    log = LogBuilder(rank).torch_version()
    log.start("0/0", (USER_SITE, FORWARD)).graph("0/0").cache_miss("0/0", "fkey0", {"graph": "a"})
    log.record("inductor_output_code", {"filename": "/cache/abc.py"}, CODE, **ids_of("0/0")).metrics("0/0", 2.0)
    for number in (1, 2):
        reason = f"tensor 'x' size mismatch at index 0. expected {number}, actual {number + 1}"
        log.start(f"0/{number}", (USER_SITE, FORWARD)).recompile(f"0/{number}", f"0/{number - 1}: {reason}")
        log.graph(f"0/{number}").cache_event(f"0/{number}", "fx_graph_cache_hit", key=f"fkey{number}")
        log.metrics(f"0/{number}", 1.0 + number)
    log.start("1/0", (USER_SITE, LOSS)).graph_break("1/0", TRAIN, 52, "Tensor.item() call", function="loss")
    log.metrics("1/0", 0.5, restart_reasons=["break"], co_name="loss", co_firstlineno=50)
    log.start("2/0", (USER_SITE, LOSS))
    log.metrics("2/0", 0.25, fail_type="RuntimeError", fail_reason="no kernel", co_name="loss", co_firstlineno=50)
    log.start("3/0", (USER_SITE, LOSS)).metrics("3/0", 0.25, graph_op_count=0, co_name="loss", co_firstlineno=50)
    return log.start("4/0", (USER_SITE, LOSS)).span("dynamo", 0.1, "0/0")


def hostile_log() -> LogBuilder:
    """What would run or break the page if any of it were not escaped."""
    site = Site(f"/job/{HOSTILE}.py", 7, HOSTILE, HOSTILE)
    log = LogBuilder().torch_version(HOSTILE).start("0/0", (site, site)).graph("0/0", HOSTILE)
    log.artifact(HOSTILE, HOSTILE, "0/0").artifact("</script><b>", {"key": HOSTILE}, "0/0")
    log.record(f"kind{HOSTILE}", {}, HOSTILE, **ids_of("0/0"))
    log.record("link", {"name": HOSTILE, "url": "javascript:document.title='owned'"}, None, **ids_of("0/0"))
    log.record("inductor_output_code", {"filename": f"/{HOSTILE}.py"}, f"# {HOSTILE}\n'{HOSTILE}'\n", **ids_of("0/0"))
    log.graph_break("0/0", site.file, 7, HOSTILE, function=HOSTILE, code=HOSTILE)
    log.cache_event("0/0", "fx_graph_cache_bypass", key=HOSTILE, cache_bypass_reason=HOSTILE)
    log.metrics(
        "0/0", co_name=HOSTILE, fail_type=HOSTILE, fail_reason=HOSTILE, dynamo_config=f'{{"{"<b>"}": "</script>"}}'
    )
    guard = f"0/0: L['{HOSTILE}'] == '{HOSTILE}'  # {HOSTILE}  # job/train.py:7 in {HOSTILE} (HINT: {HOSTILE})"
    return log.start("0/1", (site, site)).recompile("0/1", guard).metrics("0/1", recompile_reason=guard)


def crowded_log(n_frames: int) -> LogBuilder:
    """Every frame under a line of its own, each compiled twice."""
    log = LogBuilder()
    for frame in range(n_frames):
        for version in (0, 1):
            compile_id = f"{frame}/{version}"
            log.start(compile_id, (USER_SITE, Site(TRAIN, 100 + frame, f"layer_{frame}")))
            if version:
                log.recompile(compile_id, f"{frame}/0: tensor 'x' size mismatch at index 0. expected 2, actual 3")
            log.graph(compile_id).metrics(
                compile_id, 0.01 * (frame + 1), co_name=f"layer_{frame}", co_firstlineno=100 + frame
            )
    return log


def loaded(folder: Path, *logs: LogBuilder) -> Trace:
    for number, log in enumerate(logs):
        log.write(folder / "logs" / f"process{number}")
    return load(folder / "logs", jobs=1)


def report_of(folder: Path, *logs: LogBuilder) -> Path:
    """The folder of the written report."""
    trace = loaded(folder, *logs)
    write_tree(trace, diagnose(trace), str(folder / "report"), OPTIONS)
    return folder / "report"


def index_alone(folder: Path, log: LogBuilder) -> Path:
    """The folder of a report of which only the index is written: a log of many frames has thousands of files."""
    trace = loaded(folder, log)
    [tree] = plan_ranks(trace, OPTIONS)
    (folder / "report").mkdir()
    write_index(trace, diagnose(trace), tree, folder / "report", OPTIONS)
    return folder / "report"
