"""Linking execution traces with Kineto traces, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import duckdb

from behaviors.row import Behavior


def _has_all_of_the_merged_trace(folder: Path, _: str) -> None:
    """Operators with their inputs from the one trace, times and kernels from the other, and the order between them."""

    def count(table: str, condition: str) -> int:
        path = folder / "linked" / f"{table}.parquet"
        [(found,)] = duckdb.execute(f"SELECT count(*) FROM '{path}' WHERE {condition}").fetchall()
        return int(found)

    assert count("nodes", "duration_ns > 0 AND start_ns > 0 AND inputs <> ''") > 0
    assert count("kernels", "duration_ns > 0") > 0
    assert count("collectives", "op = 'all_reduce' AND n_bytes > 0") > 0
    for kind in ("call", "thread", "launch", "stream", "backward", "data", "collective"):
        assert count("edges", f"kind = '{kind}'") > 0, kind


def _says_nothing_of_slow_operators(_: Path, printed: str) -> None:
    assert "L503" not in printed
    assert "P322" in printed


def _writes_one_file_per_rank(folder: Path, _: str) -> None:
    assert sorted(path.name for path in (folder / "et").iterdir()) == ["trace.0.et", "trace.1.et"]


LINKING = (
    Behavior(
        there="merge the PyTorch execution trace and the Kineto trace of each rank into one",
        commands=("rankscope link pairs",),
        shows=r"torch_et_0.json.gz\s+kineto_trace_0.json.gz",
    ),
    Behavior(
        there="collect both at once, so that the traces align in timing and events: every operator is in both",
        commands=("rankscope link pairs",),
        shows=r"^\s+0\s+\d+\s+100%\s+id",
    ),
    Behavior(
        there="warn if the two were not collected together, or one is missing",
        commands=("rankscope link pairs/torch_et_0.json.gz",),
        shows=r"the execution trace has no matching profiler trace",
    ),
    Behavior(
        there="get operators, times, kernels, collectives and dependencies in one merged trace",
        commands=("rankscope link pairs -o linked",),
        shows=r"Wrote linked/edges.parquet",
        check=_has_all_of_the_merged_trace,
    ),
    Behavior(
        there="look at the merged trace in Perfetto",
        commands=("rankscope link pairs -o linked",),
        shows=r"Wrote linked/trace.json.gz \([\d,]+ events\)",
    ),
    Behavior(
        there="convert the merged trace to a Chakra trace, one file per rank",
        commands=("rankscope export pairs --to chakra -o et",),
        shows=r"Next: rankscope chakra validate et",
        check=_writes_one_file_per_rank,
    ),
    Behavior(
        there="make sure that a simulator can replay the Chakra traces",
        commands=("rankscope export pairs --to chakra -o et", "rankscope chakra validate et"),
        shows=r"^valid: 2 files",
    ),
    Behavior(
        there="take durations from steps without the observer, which slows operators down",
        commands=("rankscope link recorded",),
        shows=r"durations are from steps without the observer, 0 are not",
    ),
    Behavior(
        there="see no warning about slow operators where such steps were recorded as well, nor other numbers",
        commands=("rankscope recorded",),
        shows=r"S202",
        check=_says_nothing_of_slow_operators,
    ),
    Behavior(
        there="take the durations recorded with the observer on",
        commands=("rankscope link recorded --raw-durations",),
        shows=r"durations were measured with the observer on",
    ),
    Behavior(
        there="take durations from clean steps in another folder",
        commands=("rankscope link pairs --durations-from recorded",),
        shows=r"durations are from steps without the observer, 0 are not",
    ),
    Behavior(
        there="find out that an observer ran at the wrong time and recorded no operators",
        commands=("rankscope explain L505",),
        shows=r"has no operators",
    ),
)
