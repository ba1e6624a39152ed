from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rankscope.model.finding import Capture, Comparison, Evidence, Report, Side
from rankscope.render import Options
from rankscope.render.terminal import render
from render import sample
from render.snapshot import check_snapshot

NEXT = "rankscope explain H102"


@pytest.fixture
def base(tmp_path: Path) -> str:
    sample.write_sources(tmp_path)
    return str(tmp_path)


def text_of(report: Report, options: Options) -> str:
    return "\n".join(render(report, options)) + "\n"


@pytest.mark.parametrize(
    ("name", "make", "options"),
    [
        ("hang.txt", sample.hang, Options()),
        ("hang-all.txt", sample.hang, Options(show_all=True)),
        ("hang-no-source.txt", sample.hang, Options(source=False)),
        ("hang-color.txt", sample.hang, Options(color=True)),
        ("hang-60-columns.txt", sample.hang, Options(width=60)),
        ("many.txt", sample.many, Options()),
        ("many-80-columns.txt", sample.many, Options(width=80)),
        ("clean.txt", sample.clean, Options(next_command="rankscope fr /shared/job-4711 -j")),
        ("hostile.txt", sample.hostile, Options()),
    ],
)
def test_snapshot(name: str, make: Callable[[], Report], options: Options, base: str) -> None:
    options = options._replace(base=base, next_command=options.next_command or NEXT)
    check_snapshot(name, text_of(make(), options))


def test_the_designed_output_is_what_is_printed(base: str) -> None:
    """The parts of the documented picture, with nothing between them but the stacks."""
    text = text_of(sample.hang(), Options(base=base))
    picture = """\
error[H102] rank 513 called all_gather where its 63 peers called all_reduce
  --> group 12 "dp" (64 ranks: 1,17,33,...,1009), collective 48211, waiting 10 min 0 s
   |   seq     63 ranks                          rank 513
   |   48210   all_reduce  [8192] bf16  done     all_reduce  [8192] bf16  done
   | > 48211   all_reduce  [8192] bf16  waiting  all_gather  [128]  i64   waiting
  --> train/loop.py:212 in clip_gradients    63 ranks
212|         dist.all_reduce(flat_grads, group=dp)
  --> train/loop.py:219 in clip_gradients    rank 513
219|     dist.all_gather(bad_ranks, rank_id, group=dp)
"""
    assert picture in text


@pytest.mark.parametrize("width", [None, 40, 80, 120])
@pytest.mark.parametrize("show_all", [False, True])
def test_nothing_in_a_trace_reaches_the_terminal_unescaped(width: int | None, show_all: bool) -> None:
    for line in render(sample.hostile(), Options(width=width, show_all=show_all)):
        assert line.isprintable(), repr(line)


def test_hostile_text_cannot_add_color_of_its_own() -> None:
    text = text_of(sample.hostile(), Options(color=True))
    stripped = re.sub("\x1b\\[[0-9;]+m", "", text)
    assert all(line.isprintable() for line in stripped.splitlines())
    assert "\x1b[31m" not in text


def test_source_lines_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "loop.py").write_text("\n" * 211 + "evil('\x1b[2J')\n")
    text = text_of(sample.hang(), Options(base=str(tmp_path)))
    assert "212| evil('\\x1b[2J')\n" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_end_at_the_width_of_the_terminal(width: int, base: str) -> None:
    for report in (sample.hang(), sample.many(), sample.clean()):
        for line in render(report, Options(width=width, base=base)):
            assert len(line) <= width, line


def test_sides_that_do_not_fit_follow_below() -> None:
    cells = ("all_reduce [8192] waiting",)
    sides = tuple(Side(f"rank {rank}", (rank,), cells) for rank in range(3))
    finding = msgspec.structs.replace(
        sample.stuck(9), evidence=Evidence(comparison=Comparison("seq", ("5",), sides, mark=0))
    )
    rows = [line for line in render(sample.report(finding), Options(width=70)) if "rank 0" in line or "rank 2" in line]
    assert rows[0].split()[-4:] == ["rank", "0", "rank", "1"]
    assert rows[1].split()[-2:] == ["rank", "2"]


def test_color_changes_nothing_but_the_color(base: str) -> None:
    for report in (sample.hang(), sample.many(), sample.clean()):
        plain = text_of(report, Options(base=base, width=80))
        colored = text_of(report, Options(base=base, width=80, color=True))
        assert colored != plain
        assert re.sub("\x1b\\[[0-9;]+m", "", colored) == plain


def test_equal_stacks_are_one_group(base: str) -> None:
    text = text_of(sample.report(sample.stuck(9)), Options(base=base))
    assert text.count("| stack of") == 1
    assert "stack of ranks 0-2, innermost first" in text


def test_paths_below_the_base_are_shown_relative_to_it(base: str) -> None:
    finding = sample.mismatch()
    location = msgspec.structs.replace(sample.ODD_CALL, file=f"{base}/train/loop.py")
    elsewhere = msgspec.structs.replace(sample.HUNG_CALL, file=f"{base}-other/loop.py")
    finding = msgspec.structs.replace(finding, location=location, peer_location=elsewhere)
    text = text_of(sample.report(finding), Options(base=base))
    assert "--> train/loop.py:219 in" in text
    assert f"--> {base}-other/loop.py:212 in" in text


def test_a_clean_report_says_what_was_checked() -> None:
    text = text_of(sample.clean(), Options())
    assert "Found no problem." in text
    assert "Checked and in order: rank-lost, op-mismatch, size-mismatch, order-deadlock\n" in text
    assert "straggler, clock-skew (no completion times in the dumps); slow-kernel (no profiler trace)" in text


def test_an_empty_capture_still_renders() -> None:
    empty = Report("rankscope.report/1", Capture((), (), 0, {}), (), ())
    assert "Found no problem." in text_of(empty, Options(width=80))


def test_large_line_numbers_keep_the_frame_straight() -> None:
    finding = msgspec.structs.replace(
        sample.mismatch(), location=msgspec.structs.replace(sample.ODD_CALL, line=12345), peer_location=None
    )
    lines = list(render(sample.report(finding), Options()))
    assert {line.index("|") for line in lines if re.match(r" +\|", line)} == {5}
    assert {line.index("-->") for line in lines if "-->" in line} == {4}


def test_the_last_line_names_the_next_command() -> None:
    assert list(render(sample.hang(), Options(next_command=NEXT)))[-1] == f"Next: {NEXT}"
