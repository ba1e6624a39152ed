"""Compares output with a stored file; UPDATE_SNAPSHOTS=1 stores the output instead, to be read in the diff."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    text = re.sub(r"(?<=Checked )\d+ of \d+ rules", "N of N rules", text)  # a new rule changes no text but its own
    path = FOLDER / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; if it should, rerun with UPDATE_SNAPSHOTS=1"
