"""Where dumps that come from a running job are put: a folder that is kept, or one that goes with the command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rankscope.errors import OutputError


def check_dump_folder(folder: str) -> None:
    """Refuses before the job is asked. Dumps of two moments in one folder would be taken for those of one."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder} is a file", "give the name of a new folder")
    if os.path.isdir(folder) and os.listdir(folder):
        raise OutputError(f"{folder} is not empty", "give the name of a new folder")


@contextlib.contextmanager
def dump_folder(chosen: str | None) -> Iterator[str]:
    """The chosen folder, made where it is absent; without a choice one that is removed in the end."""
    if chosen is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
            yield folder
        return
    check_dump_folder(chosen)
    with told_as_output(chosen):
        os.makedirs(chosen, exist_ok=True)
    yield chosen


@contextlib.contextmanager
def told_as_output(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}", "choose another folder with -o") from error
