"""One short file per command: add_arguments(parser), run(args) -> exit code. What each is for is said here, once.

`rankscope --help` is printed from this list alone, so that it imports no command. A command's module imports what it
needs inside its functions.
"""

from __future__ import annotations

from typing import NamedTuple

SHARED_OPTIONS = "reading options"  # the title of a group of options that many commands share, described once


class Command(NamedTuple):
    summary: str
    example: str


# Grouped by what one wants, in the order in which the help lists them.
GROUPS: dict[str, dict[str, Command]] = {
    "Diagnose": {
        "diagnose": Command("find the root cause: ranked findings, each with evidence and a fix", "rankscope traces/"),
        "explain": Command("explain a finding: what it means, why it happens, what to do", "rankscope explain H102"),
        "compile": Command(
            "report what torch.compile did, what it cost and what broke the graph",
            "rankscope compile torch_trace/ -o report",
        ),
        "compare": Command("compare two runs: what is new, gone or slower", "rankscope compare good/ bad/"),
        "demo": Command("simulate a job with a known fault and diagnose it", "rankscope demo --fault skip"),
    },
    "Look closer": {
        "report": Command("write findings and charts as one offline web page", "rankscope report traces/ --open"),
        "serve": Command("serve the report page on 127.0.0.1, for large traces", "rankscope serve traces/ --open"),
        "timeline": Command(
            "write the merged timeline of all ranks for Perfetto", "rankscope timeline traces/ -o timeline.json.gz"
        ),
        "metrics": Command("measure idle time, overlap, kernels and operators", "rankscope metrics traces/ temporal"),
        "fr": Command("show Flight Recorder dumps call by call, ranks side by side", "rankscope fr dumps/ -j"),
    },
    "Collect traces": {
        "record": Command(
            "run a job, collect traces from every rank, then diagnose",
            "rankscope record -o traces -- torchrun --nproc-per-node 8 train.py",
        ),
        "logs": Command("list the log names that TORCH_LOGS and record --logs accept", "rankscope logs recompile"),
    },
    "A job that is running now": {
        "snapshot": Command("make every rank of a recorded job dump its state", "rankscope snapshot traces/"),
        "attach": Command(
            "diagnose a job through torch's debug server", "rankscope attach http://HOST:25999 --watch 10"
        ),
        "desync": Command("show which ranks are behind, from the job's TCP store", "rankscope desync HOST:29500"),
    },
    "Data": {
        "query": Command("run SQL on the tables of all ranks", 'rankscope query traces/ "from ranks"'),
        "tables": Command("list the tables and columns that query and export use", "rankscope tables traces/"),
        "export": Command(
            "write all tables to DuckDB, SQLite, Parquet, CSV, JSON or pickle",
            "rankscope export traces/ -o traces.duckdb",
        ),
    },
    "Simulators (Chakra)": {
        "link": Command("join execution traces with profiler traces", "rankscope link traces/ -o linked/"),
        "chakra": Command("check, show or convert Chakra traces", "rankscope chakra validate et/"),
    },
    "Other": {
        "torchfrtrace": Command("accept torchfrtrace's command line", "rankscope torchfrtrace dumps/ -j"),
        "tlparse": Command("accept tlparse's command line", "rankscope tlparse torch_trace/ -o tl_out"),
        "completion": Command("print a completion script for your shell", "rankscope completion bash"),
        "help": Command("show help on a command or a topic", "rankscope help reading"),
    },
}
COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}
