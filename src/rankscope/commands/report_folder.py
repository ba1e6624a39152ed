"""A folder that a report is written to: aside first, then renamed, so that what is there is always whole.

An older folder gives way only when it holds a report and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator

from rankscope.errors import OutputError

# What reports of rankscope and of tlparse have at their top.
_OF_A_REPORT = re.compile(
    r"index\.html|failures_and_restarts\.html|provenance_tracking_[-\d_]+\.html|raw\.log|raw\.jsonl|payloads|dump_file"
    r"|(chromium_events|chromium_trace_with_runtime|compile_directory|collective_schedules|collectives_parity"
    r"|runtime_estimations|execution_order\w*|graph_execution\w*)\.json"
    r"|rank_(\d+|unknown)|[-\d]+(_[-\d]+){3}|unknown_\d+"
)


def check_folder(path: str, force: bool) -> None:
    """Refuses before the work is done, not after."""
    if not os.path.lexists(path):
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(parent):
            raise OutputError(f"the folder {parent} does not exist", f"create it first: mkdir -p {parent}")
        return
    if not os.path.isdir(path):
        raise OutputError(f"{path} is a file", "give the name of a folder, or of a new .html file")
    held = sorted(os.listdir(path))
    if not held:
        return
    foreign = [name for name in held if not _OF_A_REPORT.fullmatch(name)]
    if foreign or "index.html" not in held:
        what = f"such as {foreign[0]}" if foreign else "and no index.html"
        raise OutputError(
            f"{path} has files that are not part of a report, {what}: rankscope does not remove them",
            "choose another folder with -o",
        )
    if not force:
        raise OutputError(f"{path} exists already", "choose another folder with -o, or add --overwrite to replace it")


@contextlib.contextmanager
def new_folder(path: str, force: bool) -> Iterator[str]:
    """Gives the folder to write to. It takes the name `path` when all went well, and vanishes when not."""
    target = os.path.realpath(path)
    part = f"{target}.partial-{secrets.token_hex(4)}"
    try:
        os.mkdir(part)
        yield part
        _replace(part, target, force)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", "choose a folder that you can write to") from error
    finally:
        if os.path.lexists(part):
            shutil.rmtree(part, ignore_errors=True)


def _replace(part: str, target: str, force: bool) -> None:
    check_folder(target, force)  # again: the work may have taken long
    old = f"{target}.old-{secrets.token_hex(4)}"
    if os.path.lexists(target):
        os.rename(target, old)
    os.rename(part, target)
    if os.path.lexists(old):
        shutil.rmtree(old)
