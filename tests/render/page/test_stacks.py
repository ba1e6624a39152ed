"""Where each rank is now: one tree of all stacks, the odd ranks first, within the room that the page has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.model.finding import Capture, Finding, Report
from rankscope.model.tables import MISSING, Table, Trace
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.render.page.stacks import stacks_view, standing_of

HOSTILE = "<img src=x onerror=alert(1)>"
Frames = tuple[str, ...]  # outermost first: "loop.py:10 step", of torch when the file begins with torch/


def trace_of(stacks: Mapping[Frames, Sequence[int]], source: str = "thread", **more: Any) -> Trace:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(frame for own in stacks for frame in own))}
    frames = []
    for name, number in numbers.items():
        place, function = name.split(" ", 1)
        file, line = place.rsplit(":", 1)
        is_user = not file.startswith("torch/")
        frames.append({"frame_id": number, "file": file, "line": int(line), "function": function, "is_user": is_user})
    rows = [
        {"stack_id": stack, "depth": depth, "frame_id": numbers[frame]}
        for stack, own in enumerate(stacks)
        for depth, frame in enumerate(reversed(own))
    ]
    standings = [
        {"rank": rank, "source": source, "stack_id": stack, **more}
        for stack, ranks in enumerate(stacks.values())
        for rank in ranks
    ]
    standings.sort(key=lambda row: row["rank"])
    tables: dict[str, list[dict[str, Any]]] = {"frames": frames, "stacks": rows, "standings": standings}
    return Trace(("traces",), {name: Table.from_rows(name, made) for name, made in tables.items()})


def contents_of(trace: Trace, options: PageOptions | None = None, world_size: int = 0, culprit: int = -1) -> Contents:
    found = (
        (
            Finding(
                code="H104", rule="rank-stuck", severity="error", certainty="certain", title="stuck", ranks=(culprit,)
            ),
        )
        if culprit >= 0
        else ()
    )
    report = Report("", Capture(("traces",), (), world_size, {}), found, ())
    return Contents(trace, report, options or PageOptions())


def view_of(trace: Trace, options: PageOptions | None = None, world_size: int = 0) -> View:
    return stacks_view(contents_of(trace, options, world_size))


def said(body: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


COMMON = ("loop.py:1 main", "loop.py:9 train")
REDUCE = (*COMMON, "loop.py:20 reduce", "torch/distributed/c10d.py:5 all_reduce")
LOAD = (*COMMON, "data.py:31 load")
SPREAD = {REDUCE: [*range(6), *range(7, 64)], LOAD: [6]}


def test_ranks_stand_on_the_branches_and_the_odd_come_first() -> None:
    body = view_of(trace_of(SPREAD)).body
    words = said(body)
    assert words.index("rank 6 odd") < words.index("load") < words.index("63 ranks (0-5,7-63)") < words.index("reduce")
    assert words.count("odd") == 1
    assert words.count("main loop.py:1") == words.count("train loop.py:9") == 1


def test_whom_the_finding_blames_is_marked() -> None:
    words = said(stacks_view(contents_of(trace_of(SPREAD), culprit=6)).body)
    assert "load data.py:31 rank 6 cause" in words
    assert words.count("cause") == 1


def test_branches_of_equal_size_are_not_odd() -> None:
    words = said(view_of(trace_of({REDUCE: [0, 1], LOAD: [2, 3]})).body)
    assert "odd" not in words
    assert words.index("ranks 0,1") < words.index("ranks 2,3")


def test_a_stack_that_ends_where_others_go_on_is_told_apart() -> None:
    words = said(view_of(trace_of({COMMON: [0], (*COMMON, "x.py:1 deeper"): range(1, 9)})).body)
    assert re.search(r"train loop.py:9 rank 0 ranks 1-8 deeper", words)


def test_frames_of_torch_are_folded_but_for_the_innermost() -> None:
    inner = ("torch/nn/module.py:7 forward",)
    body = view_of(trace_of({(*COMMON, *inner, "loop.py:20 reduce", "torch/c10d.py:5 all_reduce"): [0]})).body
    assert re.findall(r'<li class="foreign">.*?<b>(\w+)</b>', body) == ["forward"]
    assert 'id="foreign-stacks"' in body


def test_sources_are_named() -> None:
    assert "the stack of the main thread (2 ranks)" in said(view_of(trace_of({LOAD: [0, 1]})).body)
    assert "oldest unfinished call" in said(view_of(trace_of({LOAD: [0]}, "waiting")).body)
    assert "has moved on since" in said(view_of(trace_of({LOAD: [0]}, "last")).body)
    assert "ValueError: bad batch" in said(view_of(trace_of({LOAD: [0]}, reason="ValueError: bad batch")).body)


def test_lines_of_code_where_they_may_be_shown(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("\n" * 30 + "    batch = next(self.files)\n")
    shown = view_of(trace_of({LOAD: [0]}), PageOptions(base=str(tmp_path))).body
    assert '<code class="source">batch = next(self.files)</code>' in shown
    for options in (PageOptions(source=False, base=str(tmp_path)), PageOptions(redact=True, base=str(tmp_path))):
        assert "next(self.files)" not in view_of(trace_of({LOAD: [0]}), options).body


def test_ranks_without_a_stack_come_last_with_what_to_collect() -> None:
    words = said(view_of(trace_of({LOAD: [0, 1]}), world_size=4).body)
    assert "No stack from ranks 2,3." in words
    assert "rankscope record" in words


def test_without_any_stack_the_view_says_what_to_collect() -> None:
    view = view_of(Trace(("traces",)))
    assert view.is_absent
    assert "rankscope record" in view.body


def test_a_rank_is_found_by_link() -> None:
    contents = contents_of(trace_of(SPREAD))
    _, link = standing_of(contents, 6)
    assert f'id="{link[1:]}"' in stacks_view(contents).body
    assert standing_of(contents, 99) == (MISSING, "")


def test_what_does_not_fit_is_left_out_and_said() -> None:
    stacks: dict[Frames, Sequence[int]] = {(*COMMON, f"deep.py:{rank} f{rank}"): [rank] for rank in range(2000)}
    contents = contents_of(
        trace_of({**stacks, REDUCE: range(2000, 2100)}), PageOptions(max_bytes=1_000_000), culprit=1999
    )
    view = stacks_view(contents)
    assert len(view.body) + sum(map(len, contents.later.folds)) < 120_000
    words = said(view.body)
    assert "f1999" in words  # who is to blame
    assert "100 ranks (2000-2099)" in words  # and where most are
    [remark] = contents.remarks
    n_left = int(re.findall(r"Stacks: no room for ([\d,]+) more stacks from", remark)[0].replace(",", ""))
    assert 0 < n_left < 2000


def test_a_server_has_more_room() -> None:
    stacks: dict[Frames, Sequence[int]] = {(*COMMON, f"deep.py:{rank} f{rank}"): [rank] for rank in range(2000)}
    contents = contents_of(trace_of(stacks), PageOptions(max_bytes=1_000_000, is_served=True))
    stacks_view(contents)
    assert contents.remarks == []


def test_very_deep_stacks_are_drawn() -> None:
    deep = tuple(f"r.py:{level} f" for level in range(1500))
    contents = contents_of(trace_of({deep: [0], (*deep[:1200], "x.py:1 g"): [1]}))
    body = stacks_view(contents).body
    whole = body + "".join(item for items in contents.later.lists.values() for item in items)
    assert {"rank 0", "rank 1"} <= set(re.findall(r"rank \d", whole))
    assert contents.remarks == []


def test_names_from_a_trace_are_text() -> None:
    body = view_of(trace_of({(f"<b>x.py:3 </script>{HOSTILE}",): [0]}, reason=HOSTILE)).body
    assert "<img" not in body
    assert "<script" not in body
    assert "&lt;img src=x" in body
