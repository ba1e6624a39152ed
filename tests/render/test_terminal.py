from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rankscope.model.finding import Capture, Comparison, Evidence, Location, Report, Side, StackGroup
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
        ("hang-verbose.txt", sample.hang, Options(verbose=True)),
        ("hang-quiet.txt", sample.hang, Options(quiet=True)),
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
    """The parts of the documented picture, with nothing between them."""
    text = text_of(sample.hang(), Options(base=base))
    picture = """\
error[H102] (certain) rank 513 called all_gather where its 63 peers called all_reduce
   = fix:     make the condition the same on all ranks
  --> group 12 "dp" (64 ranks: 1,17,33,...,1009), collective 48211, waiting 10 min 0 s
   |   seq     63 ranks                          rank 513
   |   48210   all_reduce  [8192] bf16  done     all_reduce  [8192] bf16  done
   | > 48211   all_reduce  [8192] bf16  waiting  all_gather  [128]  i64   waiting
  --> train/loop.py:212 in clip_gradients    63 ranks
212|         dist.all_reduce(flat_grads, group=dp)
   | called from loop.py:98 in train_step, loop.py:40 in train, main.py:12 in main
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
    assert "stack of ranks 0-2, innermost frame first" in text


def test_paths_below_the_base_are_shown_relative_to_it(base: str) -> None:
    finding = sample.mismatch()
    location = msgspec.structs.replace(sample.ODD_CALL, file=f"{base}/train/loop.py")
    elsewhere = msgspec.structs.replace(sample.HUNG_CALL, file=f"{base}-other/loop.py")
    finding = msgspec.structs.replace(finding, location=location, peer_location=elsewhere)
    text = text_of(sample.report(finding), Options(base=base))
    assert "--> train/loop.py:219 in" in text
    assert "--> loop.py:212 in" in text


def test_a_clean_report_says_what_was_checked() -> None:
    text = text_of(sample.clean(), Options())
    assert "No problems found.\nChecked 4 of 7 rules; -v lists the others and why they were skipped\n" in text
    text = text_of(sample.clean(), Options(verbose=True))
    assert "Checked, no problem: rank-lost, op-mismatch, size-mismatch, order-deadlock\n" in text
    assert "Not checked: straggler, clock-skew (no completion times in the dumps)\n" in text
    assert "Not checked: slow-kernel (no profiler trace)\n" in text


def test_a_clear_hang_fits_on_a_screen(base: str) -> None:
    hang = sample.report(sample.mismatch(), effects=(sample.stuck(900),))
    assert (
        len(text_of(hang, Options(base=base, next_command=NEXT, page_command="rankscope report x")).splitlines()) <= 25
    )


def test_head_and_foot_are_one_line_each(base: str) -> None:
    lines = text_of(sample.hang(), Options(base=base)).splitlines()
    assert lines[:2] == [
        "Read 1,022 Flight Recorder dumps from /shared/job-4711: 1,022 of 1,024 ranks, "
        "2026-01-15 14:02:00 to 14:12:14 UTC",
        "",
    ]
    assert lines[-3] == ""


def test_notes_are_brief_beside_problems(base: str) -> None:
    report = sample.report(sample.mismatch(), sample.stuck(9, "info"))
    brief = text_of(report, Options(base=base))
    assert "info[H101] (likely) rank 9 never reached" in brief
    assert "= fix:     look at the stack of rank 9" in brief
    assert "busy or blocked" not in brief
    assert "Found 1 error, 1 note (1 in brief: --all)." in brief
    assert "busy or blocked" in text_of(report, Options(base=base, verbose=True))
    assert "busy or blocked" in text_of(sample.report(sample.stuck(9, "info")), Options(base=base))


def test_quiet_prints_titles_and_fixes_only(base: str) -> None:
    assert text_of(sample.hang(), Options(base=base, quiet=True)).splitlines() == [
        "error[H102] (certain) rank 513 called all_gather where its 63 peers called all_reduce",
        "   = fix:     make the condition the same on all ranks",
        "warning[D901] (certain) no dump from ranks 77, 78 (host gpu-0009); the verdict does not depend on them",
    ]
    assert text_of(sample.clean(), Options(quiet=True)) == "No problems found.\n"


FRAMEWORK = "/opt/venv/lib/python3.11/site-packages/lightning/loops/fit.py"


def framed(*files: str) -> Report:
    frames = tuple(Location(file, number, f"f{number}") for number, file in enumerate(files, start=1))
    evidence = Evidence(stacks=(StackGroup((0, 1, 2), "waiting", frames),))
    return sample.report(msgspec.structs.replace(sample.stuck(9), evidence=evidence))


def stack_shown(report: Report, *, show_all: bool = False) -> list[str]:
    lines = [line.strip() for line in render(report, Options(show_all=show_all))]
    start = next(at for at, line in enumerate(lines) if "stack of" in line)
    return [line[1:].strip() for line in lines[start:] if line.startswith("|")]


def test_frames_of_frameworks_are_folded_between_the_users() -> None:
    report = framed("/home/me/job/model.py", *[FRAMEWORK] * 12, "/home/me/job/train.py")
    assert stack_shown(report) == [
        "stack of ranks 0-2, waiting, innermost frame first:",
        "model.py:1 in f1",
        "... 12 frames in lightning ...",
        "train.py:14 in f14",
    ]
    assert "lightning/loops/fit.py:2 in f2" in stack_shown(report, show_all=True)


def test_frames_of_frameworks_never_push_out_the_users() -> None:
    report = framed(*(file for number in range(6) for file in (FRAMEWORK, f"/home/me/job/part{number}.py")))
    assert [line for line in stack_shown(report) if "part" in line] == [
        f"part{number}.py:{2 * number + 2} in f{2 * number + 2}" for number in range(4)
    ]
    assert stack_shown(report)[-1] == "... 2 more frames (--all)"


def test_a_stack_of_frameworks_alone_is_shown() -> None:
    assert stack_shown(framed(*[FRAMEWORK] * 2))[1:] == [
        "lightning/loops/fit.py:1 in f1",
        "lightning/loops/fit.py:2 in f2",
    ]


def test_code_elsewhere_is_shown_relative_to_its_deepest_common_folder() -> None:
    report = framed("/data/job/src/model/net.py", "/data/job/src/train.py", "/usr/lib/python3.11/runpy.py")
    assert stack_shown(report)[1:] == ["model/net.py:1 in f1", "train.py:2 in f2", "... 1 frame in Python ..."]
    assert "Code paths are relative to /data/job/src" in text_of(report, Options(verbose=True))


def test_a_printed_report_is_its_text_and_its_repr_one_line() -> None:
    report = sample.hang()
    assert str(report) == text_of(report, Options(base=os.getcwd())).rstrip("\n")
    assert repr(report) == (
        "<Report: 1 error, 1 warning; first: H102 'rank 513 called all_gather where its 63 peers called all_reduce'>"
    )
    assert repr(sample.clean()) == "<Report: no findings>"
    assert "\n" not in repr(sample.hostile())


def test_an_empty_capture_still_renders() -> None:
    empty = Report("rankscope.report/1", Capture((), (), 0, {}), (), ())
    assert "No problems found." in text_of(empty, Options(width=80))


def test_large_line_numbers_keep_the_frame_straight() -> None:
    finding = msgspec.structs.replace(
        sample.mismatch(), location=msgspec.structs.replace(sample.ODD_CALL, line=12345), peer_location=None
    )
    lines = list(render(sample.report(finding), Options()))
    assert {line.index("|") for line in lines if re.match(r" +\|", line)} == {5}
    assert {line.index("-->") for line in lines if "-->" in line} == {4}


def test_the_last_line_names_the_next_command() -> None:
    assert list(render(sample.hang(), Options(next_command=NEXT)))[-1] == f"Next: {NEXT}"


def test_commands_name_the_capture_as_one_would_type_it(base: str) -> None:
    finding = msgspec.structs.replace(
        sample.mismatch(), help="`rankscope metrics PATH overlap` shows each rank of PATH"
    )
    report = sample.report(finding)
    for paths, typed in (
        ((f"{base}/my traces",), "'my traces'"),
        (("/elsewhere/traces",), "/elsewhere/traces"),
        (("a", "b"), "a b"),
        (("a", "b", "c", "d"), "PATH"),
    ):
        capture = msgspec.structs.replace(report.capture, paths=paths)
        text = text_of(msgspec.structs.replace(report, capture=capture), Options(base=base))
        assert f"   = fix:     `rankscope metrics {typed} overlap` shows each rank of PATH\n" in text
