"""Measures the page of `rankscope report`: what it costs to write, its size, and how soon its map is drawn.

python bench/report.py              all cases, some minutes
python bench/report.py --quick      one small case, to see that everything runs
python bench/report.py --write      puts the table into bench/README.md
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import REPEATS, Command, Usage, measure_in_turns, processor, replace_between
from report_tables import write_wide_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
MARKERS = ("<!-- measured report: begin -->", "<!-- measured report: end -->")
MAX_MEGABYTES = 10.0
MAX_OPEN_SECONDS = 3.0
N_ZOOMS = 12
STEPS = 60  # of the simulated jobs: some 1,500 calls of each rank
_LIMIT_SECONDS = 600.0
_ZOOM = """async () => {
  const canvas = document.querySelector("#map canvas"), box = canvas.getBoundingClientRect();
  const began = performance.now();
  const where = { clientX: box.left + box.width * 0.7, clientY: box.top + box.height / 2 };
  canvas.dispatchEvent(new WheelEvent("wheel", { ...where, deltaY: -60, cancelable: true }));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""


@dataclass(frozen=True)
class Case:
    """A simulated hang; with `n_columns`, one group that made so many collectives, with times that are all noise."""

    n_ranks: int
    n_columns: int = 0

    @property
    def name(self) -> str:
        return f"{self.n_ranks:,} ranks" + (f" x {self.n_columns:,} collectives" if self.n_columns else "")


CASES = (Case(8), Case(128), Case(1024), Case(1024, 10_000))
QUICK = (Case(8),)


@dataclass(frozen=True)
class Result:
    case: Case
    n_bytes: int
    usage: Usage | None  # of the command; the page of noise is made from tables, not from files
    open_s: float
    zoom_ms: Sequence[float]


def main() -> int:
    options = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        results = [_measure(case, Path(scratch) / f"case-{number}") for number, case in enumerate(options.cases)]
    text = "\n".join([_describe_machine(), "", *_table(results), "", *_verdicts(results)])
    print(text)
    if options.write:
        replace_between(README, MARKERS, text)
    return 0 if all(reached for _, reached in _targets(results)) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Size, cost and open time of the report page.")
    parser.add_argument(
        "--quick", dest="cases", action="store_const", const=QUICK, default=CASES, help="one small case"
    )
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    options = parser.parse_args()
    if options.write and options.cases is QUICK:
        parser.error("--write needs all cases: the table must come from one run")
    return options


def _measure(case: Case, folder: Path) -> Result:
    folder.mkdir()
    page = folder / "report.html"
    usage = None
    if case.n_columns:
        write_wide_page(page, case.n_ranks, case.n_columns)
    else:
        usage = _write_page(case, folder, page)
    open_s, zoom_ms = _look_at(page)
    _note(f"{case.name}: {page.stat().st_size / 1e6:.2f} MB, drawn after {open_s:.2f} s")
    return Result(case, page.stat().st_size, usage, open_s, zoom_ms)


def _write_page(case: Case, folder: Path, page: Path) -> Usage:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "RANKSCOPE_CACHE": str(folder / "cache")}
    rankscope, traces = [sys.executable, "-m", "rankscope"], str(folder / "traces")
    demo = [*rankscope, "demo", "--fault", "skip", "--steps", str(STEPS), "--ranks", str(case.n_ranks), "-o", traces]
    report = [*rankscope, "report", traces, "--force", "-o", str(page)]
    _note(f"{case.name}: making the dumps")
    subprocess.run(demo, env=env, check=True, stdout=subprocess.DEVNULL)
    measured = measure_in_turns({"report": Command(report, env, _check)}, _LIMIT_SECONDS, _note)
    return measured["report"]


def _check(usage: Usage) -> None:
    """The hang has to be found: a page that says nothing is quickly written."""
    if usage.exit_code != 1 or "error[H106]" not in usage.output:
        raise SystemExit(f"exit code {usage.exit_code}:\n{usage.output[-2000:]}")


def _look_at(page: Path) -> tuple[float, list[float]]:
    """Seconds until the map is drawn, the best of several, and the milliseconds of each step of a zoom."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium") or "", args=["--no-sandbox"])
        seconds, tab = zip(*(_opened(browser, page) for _ in range(REPEATS)), strict=True)
        zooms = [float(tab[-1].evaluate(_ZOOM)) for _ in range(N_ZOOMS)]
        browser.close()
    return min(seconds), zooms


def _opened(browser: Browser, page: Path) -> tuple[float, Page]:
    tab = browser.new_context(offline=True, viewport={"width": 1280, "height": 800}).new_page()
    began = time.monotonic()
    tab.goto(page.as_uri() + "#map")
    tab.wait_for_selector("#map canvas[data-drawn]", timeout=_LIMIT_SECONDS * 1e3)
    return time.monotonic() - began, tab


def _targets(results: Sequence[Result]) -> Iterator[tuple[str, bool]]:
    for result in results:
        size = result.n_bytes / 1e6
        yield f"{result.case.name}: page within {MAX_MEGABYTES:g} MB: {size:.2f} MB", size <= MAX_MEGABYTES
        drawn = f"{result.case.name}: map drawn within {MAX_OPEN_SECONDS:g} s: {result.open_s:.2f} s"
        yield drawn, result.open_s <= MAX_OPEN_SECONDS


def _verdicts(results: Sequence[Result]) -> list[str]:
    return [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in _targets(results)]


def _describe_machine() -> str:
    return f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}, headless Chromium, file://."


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| capture | CPU to write | peak memory | page | map drawn after | a step of zoom, median | slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        usage, zooms = result.usage, sorted(result.zoom_ms)
        cost = [f"{usage.cpu_s:.2f} s", f"{usage.peak_bytes / 1e6:,.0f} MB"] if usage else ["", ""]
        speed = [f"{result.open_s:.2f} s", f"{zooms[len(zooms) // 2]:.0f} ms", f"{zooms[-1]:.0f} ms"]
        lines.append(f"| {' | '.join([result.case.name, *cost, f'{result.n_bytes / 1e6:.2f} MB', *speed])} |")
    return lines


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
