"""Run by itself, beside a job: passes on what the job prints, and keeps the beginning and the end of it.

`keep_output.py FILE IN:OUT...`: everything that comes from the descriptor IN goes to OUT unchanged, and to FILE. It is
a separate process, so that the job can keep printing whatever happens to the launcher. Standard library only: it is
started without site-packages.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress

HEAD_BYTES = 16 << 20
TAIL_BYTES = 24 << 20  # twice: of the last two segments at least one is whole
PARTIAL = ".partial"
_CHUNK = 1 << 16
_WINDOW_SIZE = 8  # bytes of struct winsize


class Kept:
    """The file: its head is written as it comes, its tail in two segments that take turns."""

    def __init__(self, path: str, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._path, self._head_bytes, self._tail_bytes = path, head_bytes, tail_bytes
        self._names = (f"{path}.older{PARTIAL}", f"{path}.newer{PARTIAL}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._n_head = self._n_segment = self._n_left_out = 0
        self._segment = -1
        self._is_broken = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Never raises: a full disk costs the copy, not the job's output."""
        with self._lock:
            if self._is_broken:
                return
            try:
                rest = self._into_head(data)
                if rest:
                    self._into_tail(rest)
            except OSError:
                self._is_broken = True

    def _into_head(self, data: bytes) -> bytes:
        room = self._head_bytes - self._n_head
        if room <= 0:
            return data
        write_all(self._file, data[:room])
        self._n_head += len(data[:room])
        return data[room:]

    def _into_tail(self, data: bytes) -> None:
        if self._segment < 0 or self._n_segment >= self._tail_bytes:
            self._next_segment()
        write_all(self._segment, data)
        self._n_segment += len(data)

    def _next_segment(self) -> None:
        older, newer = self._names
        if self._segment >= 0:
            os.close(self._segment)
            self._segment = -1
            with suppress(FileNotFoundError):
                self._n_left_out += os.path.getsize(older)
            os.replace(newer, older)
        self._segment = os.open(newer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._n_segment = 0

    def close(self) -> None:
        """Puts head and tail together; a job that printed nothing leaves no file."""
        with self._lock, suppress(OSError):
            if self._segment >= 0:
                os.close(self._segment)
                if self._n_left_out:
                    write_all(self._file, b"\nrankscope left out %d bytes here\n" % self._n_left_out)
                for name in self._names:
                    self._append(name)
            os.close(self._file)
            if not self._n_head:
                os.unlink(self._path)

    def _append(self, name: str) -> None:
        with suppress(FileNotFoundError), open(name, "rb") as segment:
            while chunk := segment.read(1 << 20):
                write_all(self._file, chunk)
            os.unlink(name)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # whoever started us has made it so: wait until it takes more
            select.select([], [descriptor], [])


def pass_on(source: int, target: int, kept: Kept) -> None:
    """Runs until the last process that can write to the source has ended. If the reader is gone, writes fail too."""
    while True:
        try:
            data = os.read(source, _CHUNK)
        except OSError:  # a terminal's other side is closed
            data = b""
        if not data:
            break
        _follow_size(source, target)
        kept.write(data)
        try:
            write_all(target, data)
        except OSError:
            break
    os.close(source)  # the next write of the job fails as it would have without us


def _follow_size(source: int, target: int) -> None:
    """A terminal's width, which progress bars ask for."""
    if not os.isatty(source):
        return
    import fcntl
    import termios

    with suppress(OSError):
        size = fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(_WINDOW_SIZE))
        if size != fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(_WINDOW_SIZE)):
            fcntl.ioctl(source, termios.TIOCSWINSZ, size)


def main(path: str, *pairs: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)  # they are for the job, whose last words are still to come
    kept = Kept(path)
    streams = [tuple(map(int, pair.split(":"))) for pair in pairs]
    threads = [threading.Thread(target=pass_on, args=(source, target, kept)) for source, target in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
