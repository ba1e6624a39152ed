"""Measures the page of `rankscope report`: what it costs to write, its size, and how soon its map is drawn.

python bench/report.py              all cases, a few minutes
python bench/report.py --quick      one small case, to see that everything runs
python bench/report.py --write      puts the table into bench/README.md

The floors: what `rankscope DIR` takes without a page, and how soon Chromium shows a page with nothing in it. The peer,
where it is installed: Plotly's heat map of as many cells.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from measuring import REPEATS, Command, Usage, finish, measure_in_turns, processor
from report_tables import write_wide_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
MARKERS = ("<!-- measured report: begin -->", "<!-- measured report: end -->")
MAX_MEGABYTES = 10.0
MAX_OPEN_SECONDS = 3.0
N_ZOOMS = 12
MAP = "#map canvas[data-drawn]"
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
    diagnosis: Usage | None  # the same without a page
    open_s: float
    empty_s: float  # until Chromium shows an empty page
    zoom_ms: Sequence[float]
    peer: tuple[int, float] | None = None  # bytes of Plotly's page, and seconds until it is drawn


def main() -> int:
    options = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        results = [_measure(case, Path(scratch) / f"case-{number}") for number, case in enumerate(options.cases)]
    text = "\n".join([_describe_machine(), "", *_table(results), "", *_verdicts(results)])
    return finish(text, (README, MARKERS) if options.write else None, _targets(results))


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
    usages: dict[str, Usage] = {}
    if case.n_columns:
        write_wide_page(page, case.n_ranks, case.n_columns)
    else:
        usages = _write_page(case, folder, page)
    with _chromium() as browser:
        empty = folder / "empty.html"
        empty.write_text("<!DOCTYPE html><title>empty</title><p>nothing")
        empty_s, _ = _opened(browser, empty, "p")
        open_s, tab = _opened(browser, page, MAP)
        zoom_ms = [float(tab.evaluate(_ZOOM)) for _ in range(N_ZOOMS)]
        peer = _plotly(browser, case, folder) if case.n_columns else None
    _note(f"{case.name}: {page.stat().st_size / 1e6:.2f} MB, drawn after {open_s:.2f} s")
    n_bytes = page.stat().st_size
    return Result(case, n_bytes, usages.get("report"), usages.get("diagnose"), open_s, empty_s, zoom_ms, peer)


def _write_page(case: Case, folder: Path, page: Path) -> dict[str, Usage]:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "RANKSCOPE_CACHE": str(folder / "cache")}
    rankscope, traces = [sys.executable, "-m", "rankscope"], str(folder / "traces")
    demo = [*rankscope, "demo", "--fault", "skip", "--steps", str(STEPS), "--ranks", str(case.n_ranks), "-o", traces]
    report = [*rankscope, "report", traces, "--force", "-o", str(page)]
    _note(f"{case.name}: making the dumps")
    subprocess.run(demo, env=env, check=True, stdout=subprocess.DEVNULL)
    diagnose = [*rankscope, "diagnose", traces]
    commands = {"report": Command(report, env, _check), "diagnose": Command(diagnose, env, _check)}
    return measure_in_turns(commands, _LIMIT_SECONDS, _note)


def _check(usage: Usage) -> None:
    """The hang has to be found: a page that says nothing is quickly written."""
    if usage.exit_code != 1 or "error[H106]" not in usage.output:
        raise SystemExit(f"exit code {usage.exit_code}:\n{usage.output[-2000:]}")


@contextmanager
def _chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium") or "", args=["--no-sandbox"])
        yield browser
        browser.close()


def _opened(browser: Browser, page: Path, drawn: str) -> tuple[float, Page]:
    """Seconds until what is to be drawn is there, the best of several, and the last tab."""
    seconds = []
    for _ in range(REPEATS):
        tab = browser.new_context(offline=True, viewport={"width": 1280, "height": 800}).new_page()
        began = time.monotonic()
        tab.goto(page.as_uri() + "#map")
        tab.wait_for_selector(drawn, timeout=_LIMIT_SECONDS * 1e3)
        seconds.append(time.monotonic() - began)
    return min(seconds), tab


def _plotly(browser: Browser, case: Case, folder: Path) -> tuple[int, float] | None:
    """The peer's page of as many cells, which also are all noise: one byte each, with its library inside."""
    try:
        from plotly import graph_objects
    except ImportError:
        _note("Plotly is not installed: pip install plotly to measure beside it")
        return None
    cells = np.random.default_rng(0).integers(0, 16, (case.n_ranks, case.n_columns), np.uint8)
    page = folder / "plotly.html"
    graph_objects.Figure(graph_objects.Heatmap(z=cells)).write_html(page, include_plotlyjs=True)
    return page.stat().st_size, _opened(browser, page, ".heatmaplayer image")[0]


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
        "| capture | CPU | relative to `rankscope DIR` | peak memory | page | map drawn | empty page "
        "| zoom, median | slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        zooms = sorted(result.zoom_ms)
        speed = [f"{result.open_s:.2f} s", f"{result.empty_s:.2f} s"]
        speed += [f"{zooms[len(zooms) // 2]:.0f} ms", f"{zooms[-1]:.0f} ms"]
        lines.append(f"| {' | '.join([result.case.name, *_cost(result), _megabytes(result.n_bytes), *speed])} |")
        if result.peer:
            n_bytes, open_s = result.peer
            lines.append(f"| the same number of cells by Plotly | | | | {_megabytes(n_bytes)} | {open_s:.2f} s | | | |")
    return lines


def _cost(result: Result) -> list[str]:
    if not result.usage or not result.diagnosis:
        return ["", "", ""]
    ratio = result.usage.cpu_s / result.diagnosis.cpu_s
    return [f"{result.usage.cpu_s:.2f} s", f"{ratio:.2f}", f"{result.usage.peak_bytes / 1e6:,.0f} MB"]


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.2f} MB"


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
