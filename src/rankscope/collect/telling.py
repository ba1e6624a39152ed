"""The few lines that the collector puts among those of the job: each begins with its name, and none ever fails."""

from __future__ import annotations

import contextlib
import os

PREFIX = "rankscope: "
_STDERR = 2


def tell(text: str) -> None:
    """Writes to the job's standard error at once and past its buffers, which a hanging thread may hold locked."""
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(_STDERR, f"{text}\n".encode(errors="backslashreplace"))


def tell_line(text: str) -> None:
    tell(PREFIX + text)
