"""Captures of real jobs under the collector, and what is in the pages that are written of captures."""

from __future__ import annotations

import base64
import json
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from collected_jobs import end, start_record
from launching import JOBS

from rankscope.cli import main
from render.page.test_blocks import unpacked

TRAINING = JOBS / "collected_training.py"
_BLOCK = re.compile(r'<script type="text/plain" data-block="([^"]*)">([^<]*)</script>')


class Recorded(NamedTuple):
    trained: Path
    hung: Path


def record_jobs(folder: Path) -> Recorded:
    """At the same time: one that trains, compiles and is asked for dumps, and one in which a rank sleeps for ever."""
    trained, hung = folder / "trained", folder / "hung"
    job = (sys.executable, str(TRAINING), "--forks")
    training = start_record(trained, ("--no-diagnose",), (*job, "2", "--compiles", "--asks"))
    hanging = start_record(hung, ("--no-diagnose", "--desync", "--stall", "2"), (*job, "3", "--sleeps", "1"))
    assert hanging.stderr
    for _ in range(3):
        assert next((line for line in hanging.stderr if "no collective has finished" in line), "")
    hanging.send_signal(signal.SIGTERM)
    end(hanging)
    assert end(training).code == 0
    return Recorded(trained, hung)


def written(capture: Path, name: str, *options: str) -> Path:
    """The page beside its capture."""
    path = capture.parent / name
    assert main(["report", str(capture), "-o", str(path), "--fail-on", "never", *options]) == 0
    return path


def texts_of(page: Path) -> dict[str, str]:
    """What the file holds in readable form: the page without its blocks, and what each of them says."""
    whole = page.read_text("utf-8")
    packed = {name: base64.b64decode(data) for name, data in _BLOCK.findall(whole)}
    told = {name: json.dumps(unpacked(data)[0], ensure_ascii=False) for name, data in packed.items()}
    return {"page": _BLOCK.sub("", whole), **told}
