"""What a job under `record` prints goes through a process that keeps it; to the job nothing looks different."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_OUT, _ERR = 1, 2
_WAIT_S = 2.0  # for processes that outlive the job: what they print later is still passed on


def output_path(folder: Path) -> Path:
    """A file name that is still free: other launchers of the job may write to the same folder."""
    host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:60]
    names = (f"output_host_{host}{suffix}" for suffix in ("", *(f"_{number}" for number in range(2, 10_000))))
    return next(path for name in names if not (path := folder / name).exists())


class KeptOutput:
    """A pipe where our output is a pipe or a file, a terminal where it is one; one for both streams if they are one."""

    def __init__(self, path: Path) -> None:
        self._ours: list[int] = []
        self._jobs: dict[int, int] = {}
        self._relay: subprocess.Popen[bytes] | None = None
        pairs = []
        try:
            if _is_same_file():
                source, self._jobs[_OUT] = self._channel(_OUT)
                self._jobs[_ERR] = self._jobs[_OUT]
                pairs.append(f"{source}:{_OUT}")
            else:
                for stream in (_OUT, _ERR):
                    source, self._jobs[stream] = self._channel(stream)
                    pairs.append(f"{source}:{stream}")
            program = Path(__file__).parents[1] / "collect" / "launching" / "keep_output.py"
            self._relay = subprocess.Popen(
                [sys.executable, "-I", "-S", str(program), str(path), *pairs],
                pass_fds=self._ours,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self.job_started()
            raise
        finally:
            for descriptor in self._ours:
                os.close(descriptor)

    @property
    def stdout(self) -> int:
        return self._jobs[_OUT]

    @property
    def stderr(self) -> int:
        return self._jobs[_ERR]

    def job_started(self) -> None:
        """The job has its ends: ours would keep the channels open."""
        for descriptor in set(self._jobs.values()):
            os.close(descriptor)
        self._jobs.clear()

    def wait(self) -> None:
        """Until everything that the job printed has come out."""
        if self._relay is not None:
            with suppress(subprocess.TimeoutExpired):
                self._relay.wait(_WAIT_S)

    def _channel(self, stream: int) -> tuple[int, int]:
        """(where we read, where the job writes)"""
        source, target = _terminal_like(stream) if os.isatty(stream) else os.pipe()
        self._ours.append(source)
        return source, target


def _is_same_file() -> bool:
    """True for 2>&1 and for a terminal: then the order of both streams is kept too."""
    out, err = os.fstat(_OUT), os.fstat(_ERR)
    return (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)


def _terminal_like(stream: int) -> tuple[int, int]:
    """A terminal with the same settings and size, which leaves line ends to the real one."""
    import fcntl
    import pty
    import termios

    source, target = pty.openpty()
    settings = termios.tcgetattr(stream)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(target, termios.TCSANOW, settings)
    fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(8)))
    return source, target
