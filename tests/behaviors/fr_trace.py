"""torch's analyzer of Flight Recorder dumps: fr_trace, installed as torchfrtrace."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from behaviors.row import Behavior

TITLE = "torchfrtrace (fr_trace)"
INTRO = (
    "torch's analyzer of Flight Recorder dumps. `rankscope torchfrtrace` takes its command line word for word; "
    "`rankscope fr` takes its flags and more; `rankscope FOLDER` gives the verdict alone."
)


def _content(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _has_filled_tables(folder: Path, _: str) -> None:
    assert all(_content(folder, "flat.json")[name] for name in ("groups", "memberships", "collectives", "ncclcalls"))


def _has_tracebacks(folder: Path, _: str) -> None:
    flat = _content(folder, "flat.json")
    frames = {row["id"]: row["frames"] for row in flat["tracebacks"]}
    assert all(frames[call["traceback_id"]] for call in flat["ncclcalls"])


def _is_plain_pickle(folder: Path, _: str) -> None:
    assert pickle.loads((folder / "flat.pickle").read_bytes())["collectives"]["collective_name"]


def _has_one_row_per_group(_: Path, printed: str) -> None:
    coalesced = [line for line in printed.splitlines() if "all_gather_coalesced" in line]
    assert len(coalesced) == 1


def _shows_ranks_0_and_2_only(_: Path, printed: str) -> None:
    assert "rank 2" in printed
    assert "rank 1" not in printed
    assert "rank 3" not in printed


def _lists_none(_: Path, printed: str) -> None:
    assert "collective 5:" not in printed


_MERGING = (
    Behavior(
        there="merge the dumps of all ranks into one flat database",
        commands=("rankscope torchfrtrace hung -o flat", "rankscope fr hung -o flat.json"),
        shows=r"Wrote [\d,]+ rows in 5 tables to flat\.json",
        check=_has_filled_tables,
    ),
    Behavior(
        there="match what each rank called with what the others called, as one collective",
        commands=('rankscope query healthy "select count(*) as matched from matches where n_joined = n_members"',),
        shows=r"matched",
    ),
    Behavior(
        there="show where the first mismatch is when ranks of a group make different calls",
        commands=("rankscope torchfrtrace hung",),
        shows=r"error\[H102\] \(\w+\) rank 1 called broadcast where its 7 peers called all_reduce",
    ),
    Behavior(
        there="name a rank that passed a different size",
        commands=("rankscope torchfrtrace sizes",),
        shows=r"error\[H103\] \(\w+\) rank 2 called all_reduce with \[4\] where its 3 peers passed \[1\]",
    ),
    Behavior(
        there="name a rank that passed a different type",
        commands=("rankscope torchfrtrace types",),
        shows=r"error\[H104\] \(\w+\) rank 2 called all_reduce with f64 where its 3 peers passed f32",
    ),
    Behavior(
        there="name the ranks that did not join a collective",
        commands=("rankscope torchfrtrace stuck",),
        shows=r"5 all_reduce: not joined by rank 2[\s\S]*error\[H105\] \(\w+\) rank 2 never reached the all_reduce",
    ),
    Behavior(
        there="compare the totals of an all_to_all, whose ranks may pass different sizes",
        commands=("rankscope torchfrtrace exchange",),
        shows=r"H103\] \(\w+\) the 4 ranks of group 0 .* send 32 elements in an all_to_all but expect 33: rank 0 ",
    ),
    Behavior(
        there="match sends with receives, including batched ones",
        commands=("rankscope torchfrtrace batches",),
        shows=r"error\[H105\] \(\w+\) rank 3 never answered rank 0",
    ),
    Behavior(
        there="print nothing when nothing is wrong",
        commands=("rankscope torchfrtrace healthy",),
        shows=r"No problems found",
        exit_codes=(0,),
    ),
)

_GAPS = (
    Behavior(
        there="(not yet there: tracebacks) keep the call stack of each call",
        commands=("rankscope fr hung -o flat.json",),
        shows=r"flat\.json",
        check=_has_tracebacks,
    ),
    Behavior(
        there="(a known gap: rings that do not begin at zero) match collectives whose oldest calls were dropped",
        commands=("rankscope wrapped",),
        shows=r"error\[H105\] \(\w+\) rank 2 never reached the all_reduce",
    ),
    Behavior(
        there="(a known gap: coalesced collectives) match them as one call, regardless of their sequence numbers",
        commands=("rankscope fr coalesced -j",),
        shows=r"default_pg +1 +all_gather_coalesced \[4\] and 1 more -> \[16\] and 1 more f32 done",
        check=_has_one_row_per_group,
    ),
    Behavior(
        there="(a known gap: status) find the first collective that has not completed, and report it",
        commands=("rankscope fr broadcast",),
        shows=r"2 broadcast: all joined, not completed by rank 3",
    ),
    Behavior(
        there="(a known gap: status) name the rank that has not completed what its peers have",
        commands=("rankscope broadcast",),
        shows=r"error\[H109\] \(\w+\) rank 3 has not completed broadcast .* but ranks 0-2 have",
    ),
)

_USAGE = (
    Behavior(
        there="run it on a folder of dumps, with or without an output file",
        commands=("rankscope torchfrtrace hung", "rankscope torchfrtrace hung -o flat"),
        shows=r"Wrote [\d,]+ collectives of [\d,]+ calls to flat \(torch's layout\)",
    ),
    Behavior(
        there="leave out the output file and still get the analysis, on standard output",
        commands=("rankscope fr hung",),
        shows=r"group +desc +ranks[\s\S]*error\[H102\]",
    ),
    Behavior(
        there="(-o, --output) write the pickle of the flat database that torch's own types read",
        commands=("rankscope fr hung -o flat.pickle --torch-layout",),
        shows=r"flat\.pickle \(torch's layout\)",
    ),
    Behavior(
        there="load that pickle: groups, memberships, tracebacks, collectives and calls",
        commands=(
            "rankscope torchfrtrace hung -o flat",
            ">>> import pickle; types, db = pickle.load(open('flat', 'rb')); "
            "print(type(db).__module__, [len(table) > 0 for table in db])",
        ),
        shows=r"torch\.distributed\.flight_recorder\.components\.types \[True, True, True, True, True\]",
        needs_torch=True,
    ),
    Behavior(
        there="read its output in a program without torch: as plain containers or as a database",
        commands=("rankscope fr hung -o flat.duckdb", "rankscope fr hung -o flat.pickle"),
        shows=r"flat\.pickle \(pickle\)",
        check=_is_plain_pickle,
    ),
    Behavior(
        there="analyze dumps of older versions of the recorder",
        commands=("rankscope layouts",),
        shows=r"error\[H102\] \(\w+\) rank 2 called broadcast where its 3 peers called all_reduce",
    ),
    Behavior(
        there="(it asks for one version on all ranks) see which version each rank wrote",
        commands=('rankscope query layouts "select distinct version from ranks order by version"',),
        shows=r"2\.10",
    ),
    Behavior(
        there="(it asks for fields that older versions lack) judge a dump that records no types",
        commands=("rankscope untyped",),
        shows=r"error\[H105\] \(\w+\) rank 2 never reached the all_reduce",
    ),
)

_FLAGS = (
    Behavior(
        there="(trace_dir) say what is missing when no folder is given",
        commands=("rankscope torchfrtrace",),
        shows=r"needs a folder of dumps",
        exit_codes=(2,),
    ),
    Behavior(
        there="(-j, --just_print_entries) print all calls, ranks side by side",
        commands=("rankscope torchfrtrace hung -j",),
        shows=r"rank 1\b[\s\S]*broadcast",
    ),
    Behavior(
        there="(--selected-ranks) print these ranks only; `fr` takes it without -j as well",
        commands=("rankscope torchfrtrace sizes -j --selected-ranks 0 2",),
        shows=r"rank 0 +rank 2",
        check=_shows_ranks_0_and_2_only,
    ),
    Behavior(
        there="(--pg-filters) print these groups only, by name or description; `fr` takes it without -j as well",
        commands=("rankscope torchfrtrace hung -j --pg-filters default_pg",),
        shows=r"group default_pg: 0 \(8 ranks\)\n\n",
    ),
    Behavior(
        there="(--print_stack_trace) print the stacks of the calls, numbered; `fr` takes it without -j as well",
        commands=("rankscope torchfrtrace hung -j --print_stack_trace",),
        shows=r"stack #0: .*\n    \S+\.py:\d+ in ",
    ),
    Behavior(
        there="(-v, --verbose) print the tables of groups, memberships, collectives and calls",
        commands=("rankscope torchfrtrace sizes -v",),
        shows=r"groups:\n[\s\S]*memberships:\n[\s\S]*collectives:\n[\s\S]*ncclcalls:\n",
    ),
    Behavior(
        there="(--allow-incomplete-ranks) analyze even if dumps are missing",
        commands=("rankscope torchfrtrace incomplete --allow-incomplete-ranks",),
        shows=r"error\[H102\] \(\w+\) rank 2 called broadcast where its 2 peers called all_reduce",
        check=lambda _, printed: _has_no_warning(printed),
    ),
    Behavior(
        there="without it, say which dumps are missing",
        commands=("rankscope torchfrtrace incomplete",),
        shows=r"warning\[D901\] \(\w+\) no readable dump from rank 3",
    ),
    Behavior(
        there="(--mismatch_cap) list at most this many mismatches per group",
        commands=("rankscope torchfrtrace sizes --mismatch_cap 0",),
        shows=r"1 mismatch in 1 group not listed",
        check=_lists_none,
    ),
    Behavior(
        there="(--transform-ft, --group-world-size) turn the ranks of torchft replicas into global ones",
        commands=("rankscope torchfrtrace replicas --transform-ft --group-world-size 4",),
        shows=r"error\[H102\] \(\w+\) rank 5 called broadcast where its 3 peers called all_reduce",
    ),
    Behavior(
        there="refuse --transform-ft without the size of a replica",
        commands=("rankscope torchfrtrace replicas --transform-ft",),
        shows=r"add --group-world-size N",
        exit_codes=(2,),
    ),
    Behavior(
        there="(-p, --prefix) name what comes before the rank; every command that reads takes it",
        commands=("rankscope runs -p tuesday_",),
        shows=r"Read 4 Flight Recorder dumps from runs[\s\S]*error\[H102\] \(\w+\) rank 2",
    ),
    Behavior(
        there="abbreviate its options",
        commands=("rankscope torchfrtrace hung --just --allow",),
        shows=r"rank 1\b[\s\S]*broadcast",
    ),
)


def _has_no_warning(printed: str) -> None:
    assert "D901" not in printed


BEHAVIORS = (*_MERGING, *_GAPS, *_USAGE, *_FLAGS)
