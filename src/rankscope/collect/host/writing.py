"""Lines that are added to a file as long as a job runs, whatever happens to its disk and its open files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class Lines:
    """Opened for each write: what the job forks cannot write it a second time, and a job that closes all files does
    not find our lines in the next file that it opens.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.n_bytes, self.is_open = path, 0, False

    def create(self, first: bytes) -> None:
        """OSError if it cannot."""
        with self.path.open("wb") as stream:
            stream.write(first)
        self.n_bytes, self.is_open = len(first), True

    def append(self, lines: Sequence[bytes]) -> str:
        """What went wrong, or nothing; then nothing of these lines is in the file."""
        content = b"".join(lines)
        if not content or not self.is_open:
            return ""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            return error.strerror or str(error)
        try:
            n_written = os.write(descriptor, content)
            if n_written == len(content):
                self.n_bytes += n_written
                return ""
            os.ftruncate(descriptor, self.n_bytes)  # half a line is of no use
            return "the disk is full"
        except OSError as error:
            return error.strerror or str(error)
        finally:
            os.close(descriptor)
