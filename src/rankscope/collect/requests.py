"""A dump on request while the job runs: a file in the run's folder asks for it, and each rank answers in its part
of the manifest when all of its files are written.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from rankscope.collect import manifest
from rankscope.collect.part import Part
from rankscope.collect.run import Run

NAME = "snapshot.request"
ASKED = "asked by "  # begins the reason of a dump on request
_SHORTEST_SECONDS = 0.5
_RANKS_PER_SECOND = 1000  # that look at a folder they may share
_MAX_BYTES = 4096
_POLL_SECONDS = 0.1


class Requests(Part):
    NAME = "requests"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._path = run.folder / NAME
        self._interval = max(_SHORTEST_SECONDS, run.world_size / _RANKS_PER_SECOND)
        self._next_look = 0.0
        self._seen: tuple[int, int] | None = None
        self._answered = ""

    def start(self) -> None:
        self._seen = self._look()  # one that was left behind is not for this run
        self._answered = self._wanted()[0] if self._seen else ""

    def tick(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._interval
        look = self._look()
        if look is None or look == self._seen:
            return
        self._seen = look
        wanted, by = self._wanted()
        if wanted and wanted != self._answered:
            self._answered = wanted
            self.run.dump(ASKED + by, wanted)

    def _look(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _wanted(self) -> tuple[str, str]:
        """The name of the request, and who has made it."""
        try:
            with self._path.open("rb") as file:
                value = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError):  # taken away, or written by another program
            value = None
        request = value if isinstance(value, dict) else {}
        return str(request.get("id", ""))[:100], str(request.get("by", ""))[:100]


def ask(folder: Path, by: str = "rankscope snapshot") -> str:
    """Asks all ranks that write into this folder for a dump; returns what they answer with. OSError: it cannot."""
    name = uuid.uuid4().hex
    partial = manifest.unique_beside(folder / NAME)
    try:
        partial.write_text(json.dumps({"id": name, "by": by, "time_ns": time.time_ns()}) + "\n", encoding="utf-8")
        os.replace(partial, folder / NAME)
    finally:
        partial.unlink(missing_ok=True)
    return name


def take_back(folder: Path) -> None:
    """Removes the request: no rank needs it any more."""
    (folder / NAME).unlink(missing_ok=True)


def wait_for_answers(folder: Path, name: str, seconds: float) -> None:
    """Until all ranks of this host that still run have written their dumps, or for so long."""
    deadline, host = time.monotonic() + seconds, socket.gethostname()
    while time.monotonic() < deadline:
        parts = [part for part in manifest.read_parts(folder) if part.get("host") == host]
        if all(_has_answered(part, name) for part in parts):
            return
        time.sleep(_POLL_SECONDS)


def _has_answered(part: dict[str, Any], name: str) -> bool:
    dumped = part.get("dumped")
    answered = isinstance(dumped, dict) and dumped.get("request") == name
    return answered or part.get("ended_ns") is not None or not Path(f"/proc/{part.get('pid')}").exists()
