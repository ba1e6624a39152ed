"""Where a bug stops: one in a reader costs the file, one in a rule costs the rule, never the whole report.

While rankscope is developed, a bug must be seen: the tests and `--debug` let it through.
"""

from __future__ import annotations

import os
import traceback

PLEASE_REPORT = "this is a bug in rankscope: please report it, with the output of the same command and --debug"
_raises = False


def raise_bugs(wanted: bool = True) -> None:
    """From now on a bug in a reader or a rule is raised, in this process and those that read for it."""
    global _raises
    _raises = wanted


def bugs_are_raised() -> bool:
    return _raises


def bug_text(error: BaseException) -> str:
    """What failed, and in which line of the source: enough to find it without the file that shows it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if f"{os.sep}rankscope{os.sep}" in frame.filename), None)
    where = f" in {os.path.basename(last.filename)}:{last.lineno}" if last else ""
    words = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{where}" + (f": {words}" if words else "")
