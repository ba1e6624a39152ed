"""The metric specific trace: what is measured of a training, read from its logs, and found in both."""

from __future__ import annotations

from pathlib import Path

from behaviors.row import Behavior


def _has_all_names(_folder: Path, printed: str) -> None:
    wanted = {"loss", "learning_rate", "step_time_s", "host_memory_bytes", "host_memory_available_bytes"}
    assert {name for name in wanted if f"\n{name} " in printed} == wanted, printed


METRICS = (
    Behavior(
        there="collect a metrics trace of each rank along with the others: step time, loss, learning rate, memory",
        commands=(
            ">>> import rankscope, runpy; c = rankscope.collect('traces'); runpy.run_path('train.py'); c.stop()",
            "rankscope metrics traces training",
        ),
        shows=r"^loss +0 +23 +2 +24 ",
        check=_has_all_names,
        needs_torch=True,
    ),
    Behavior(
        there="query the metrics of all ranks as one table",
        commands=('rankscope query numbers "select name, count(distinct rank) as n from metrics group by name"',),
        shows=r"^loss +4$",
    ),
    Behavior(
        there="read metrics that the job logs itself: TensorBoard, Weights & Biases, CSV, JSON lines",
        commands=('rankscope query logged "select source, count(*) as n from files group by source order by source"',),
        shows=r"(?s)metric_log +2\n.*tensorboard +1\n.*wandb +1\n",
    ),
    Behavior(
        there="see which rank's loss became NaN, and in which step",
        commands=("rankscope numbers",),
        shows=r"error\[S211\].* loss of rank 2 is NaN from step 200 on",
        exit_codes=(1,),
    ),
    Behavior(
        there="see that throughput falls over the run, and why",
        commands=("rankscope numbers",),
        shows=r"warning\[P331\](?s:.*)rank 1 spends .* more per step on waiting for its DataLoader",
        exit_codes=(1,),
    ),
    Behavior(
        there="look at all metrics over steps on one page",
        commands=("rankscope report numbers -o numbers.html",),
        shows=r"numbers\.html",
        check=lambda folder, _: _page_has_charts(folder / "numbers.html"),
    ),
)


def _page_has_charts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert all(f"<h3>{name}</h3>" in text for name in ("loss", "step_time_s", "loader_wait_s"))
