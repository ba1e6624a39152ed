"""How torchfrtrace finds and loads the dumps."""

from __future__ import annotations

from pathlib import Path

from behaviors.row import Behavior

TITLE = "Finding and loading dumps"
INTRO = "How torchfrtrace finds the files in a folder and recognizes what they are."


def _ran_nothing(folder: Path, _: str) -> None:
    assert not (folder / "run-by-pickle").exists()


BEHAVIORS = (
    Behavior(
        there="read every file in a folder and its subfolders",
        commands=("rankscope nested",),
        shows=r"Read 4 Flight Recorder dumps from nested[\s\S]*error\[H102\] \(\w+\) rank 2",
    ),
    Behavior(
        there="infer the common prefix of the file names",
        commands=("rankscope hosts",),
        shows=r"Read 4 Flight Recorder dumps from hosts[\s\S]*error\[H102\] \(\w+\) rank 2",
    ),
    Behavior(
        there="ask for --prefix if the names have no common prefix",
        commands=("rankscope runs",),
        shows=r"D910\] \(\w+\) the dumps here are from 2 jobs or attempts[\s\S]*choose one with --prefix",
    ),
    Behavior(
        there="(--prefix) read the files that have the prefix anywhere in their names",
        commands=("rankscope hosts --prefix mydump_",),
        shows=r"Read 4 Flight Recorder dumps from hosts[\s\S]*error\[H102\] \(\w+\) rank 2",
    ),
    Behavior(
        there="skip files without the prefix",
        commands=("rankscope tables runs -p monday_ --json", "rankscope runs -p monday_"),
        shows=r"Read 4 Flight Recorder dumps from runs[\s\S]*No problems found",
    ),
    Behavior(
        there="take the rank from what follows the prefix",
        commands=('rankscope query hosts -p mydump_ "select rank from ranks order by rank"',),
        shows=r"0\n.*1\n.*2\n.*3",
    ),
    Behavior(
        there="(it makes up `host_rank0`) know the host of a rank, from names and folders",
        commands=('rankscope query nested "select host from ranks where rank = 3"',),
        shows=r"gpu1",
    ),
    Behavior(
        there="keep the host from a name such as gpu0-mydump_1",
        commands=('rankscope query hosts "select host from ranks where rank = 1"',),
        shows=r"gpu0",
    ),
    Behavior(
        there="load the entries, the version and the groups of each dump",
        commands=(
            'rankscope query hung "select version, n_calls, name from ranks join group_config using (rank) limit 3"',
        ),
        shows=r"2\.10 +\d+ +0",
    ),
    Behavior(
        there="(it unpickles whatever is there) never run what a file says",
        commands=("rankscope hostile",),
        shows=r"hostile/nccl_trace_rank_3",
        check=_ran_nothing,
    ),
    Behavior(
        there="(one broken file ends it) continue without a truncated file, and say so",
        commands=("rankscope damaged",),
        shows=r"error\[H102\] \(\w+\) rank 2[\s\S]*nccl_trace_rank_3[\s\S]*is truncated after 87 bytes",
    ),
    Behavior(
        there="fail when the folder does not exist",
        commands=("rankscope torchfrtrace ./nowhere",),
        shows=r"\./nowhere: no such file or folder",
        exit_codes=(2,),
    ),
    Behavior(
        there="fail when nothing was loaded",
        commands=("rankscope nodumps",),
        shows=r"no trace in this file: \S*notes\.txt is text without torch.compile messages, desync",
        exit_codes=(2,),
    ),
    Behavior(
        there="fail when no file has the prefix, and name the prefix",
        commands=("rankscope hung -p other_",),
        shows=r"no file name contains other_ followed by a rank",
        exit_codes=(2,),
    ),
    Behavior(
        there="(-v) print how many files were loaded",
        commands=("rankscope hung",),
        shows=r"Read 8 Flight Recorder dumps from hung",
    ),
)
