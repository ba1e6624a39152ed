"""Takes the pictures in docs/images: reports on jobs of `rankscope demo`, in a real browser.

    python tools/make_screenshots.py               all of them
    python tools/make_screenshots.py map waits     these

Needs playwright and Chromium, as the tests of the pages do.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "rankscope"
IMAGES = ROOT / "docs" / "images"
VIEWPORT = {"width": 1280, "height": 800}
MAX_COLORS = 256
MAX_BYTES = 150_000

# Name of the capture -> how it is made. The names show in the pictures.
JOBS = {
    "job-4711": ("--fault", "op", "--ranks", "1024", "--steps", "24", "--step", "22", "--seed", "2"),
    "job-4712": ("--fault", "slow-kernels"),
    "job-4713": ("--fault", "recompiles"),
}


class Shot(NamedTuple):
    job: str
    link: str  # what is clicked in the page, as a selector; nothing for its top


SHOTS = {
    "findings": Shot("job-4711", ""),
    "map": Shot("job-4711", '.card .links a[href^="#map"]'),
    "waits": Shot("job-4711", 'nav a[href="#waits"]'),
    "stacks": Shot("job-4711", 'nav a[href="#stacks"]'),
    "performance": Shot("job-4712", 'nav a[href="#performance"]'),
    "compile": Shot("job-4713", 'nav a[href="#compile"]'),
}


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    options.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: all): {', '.join(SHOTS)}")
    names = options.parse_args(arguments).names or list(SHOTS)
    unknown = sorted(set(names) - SHOTS.keys())
    if unknown:
        options.error(f"there is no picture called {', '.join(unknown)}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankscope-screenshots-") as folder:
        shutil.copytree(PACKAGE, Path(folder, PACKAGE.name), ignore=shutil.ignore_patterns("__pycache__"))
        pages = {job: report_on(job, Path(folder)) for job in sorted({SHOTS[name].job for name in names})}
        take(names, pages)
    return 0


def report_on(job: str, folder: Path) -> Path:
    """Run beside a copy of the package, whose files the simulated job names: no path of this machine can show."""
    run(folder, "demo", "-o", job, *JOBS[job])
    run(folder, "report", job, "-o", f"{job}.html", "--fail-on", "never", "--no-cache")
    return folder / f"{job}.html"


def run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"rankscope {' '.join(arguments)} failed:\n{done.stderr}")


def take(names: Sequence[str], pages: dict[str, Path]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        settings: dict[str, Any] = {"viewport": VIEWPORT, "device_scale_factor": 1, "color_scheme": "light"}
        for name in names:
            page = browser.new_context(**settings, reduced_motion="reduce", offline=True).new_page()
            show(page, pages[SHOTS[name].job], SHOTS[name].link)
            picture = indexed_png(pixels(page))
            (IMAGES / f"{name}.png").write_bytes(picture)
            print(f"wrote docs/images/{name}.png ({len(picture):,} bytes)")
            if len(picture) > MAX_BYTES:
                sys.exit(f"{name}.png is larger than {MAX_BYTES:,} bytes: show less of the page")
            page.context.close()
        browser.close()


def show(page: Page, path: Path, link: str) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    if link:
        page.locator(link).first.click()
        page.mouse.move(1, 1)  # nothing is to be shown because the pointer happens to be on it
    page.wait_for_timeout(1500)  # nothing says when the last canvas has been drawn
    if problems:
        sys.exit(f"{path.name} failed in the browser: {problems[0]}")


def pixels(page: Page) -> NDArray[np.uint8]:
    """Rows x columns x RGB. The browser unpacks its own picture: the standard library cannot."""
    blank = page.context.new_page()
    shot = base64.b64encode(page.screenshot(animations="disabled", caret="hide")).decode()
    raw = blank.evaluate(
        """async (shot) => {
            const bytes = Uint8Array.from(atob(shot), (char) => char.charCodeAt(0));
            const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
            const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
            context.drawImage(bitmap, 0, 0);
            const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
            const chunks = [];
            for (let at = 0; at < data.length; at += 32768) {
                chunks.push(String.fromCharCode(...data.subarray(at, at + 32768)));
            }
            return btoa(chunks.join(""));
        }""",
        shot,
    )
    rgba = np.frombuffer(base64.b64decode(raw), np.uint8)
    return rgba.reshape(VIEWPORT["height"], VIEWPORT["width"], 4)[:, :, :3]


def indexed_png(rgb: NDArray[np.uint8]) -> bytes:
    """A picture of at most 256 colors: a third of the size of one in true colors, and pages have few."""
    height, width, _ = rgb.shape
    colors, index, counts = np.unique(rgb.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colors
    if len(colors) > MAX_COLORS:
        palette = common_colors(colors, counts)
        index = nearest(colors, palette)[index]
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = index.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 9)
    chunks = ((b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in chunks)


def common_colors(colors: NDArray[np.uint8], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Colors that look alike count together, and the most frequent of them is used for all: text has many shades."""
    _, alike = np.unique(colors >> 3, axis=0, return_inverse=True)
    by_count = np.lexsort((np.arange(len(counts)), -counts))
    _, first = np.unique(alike.reshape(-1)[by_count], return_index=True)
    leaders = by_count[first]
    weights = np.bincount(alike.reshape(-1), counts)
    return colors[leaders[np.argsort(-weights, kind="stable")[:MAX_COLORS]]]


def nearest(colors: NDArray[np.uint8], palette: NDArray[np.uint8]) -> NDArray[np.int64]:
    wide = palette.astype(np.int32)
    batches = np.array_split(colors.astype(np.int32), max(len(colors) // 1000, 1))
    return np.concatenate([((batch[:, None] - wide) ** 2).sum(axis=2).argmin(axis=1) for batch in batches])


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
