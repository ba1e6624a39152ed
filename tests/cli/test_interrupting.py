"""Progress and Ctrl-C on a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from cli.running import clean_environment

pytestmark = pytest.mark.slow


def test_ctrl_c_on_a_terminal_says_what_was_being_done_and_what_is_left(tmp_path: Path) -> None:
    """A job so large that it takes longer than the bar needs to appear."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what it starts in the background
        environment = clean_environment({"TERM": "xterm", "COLUMNS": "120"})
        os.execve(sys.executable, [sys.executable, "-m", "rankscope", "demo", "--ranks", "8192"], environment)
    shown, is_stopped = b"", False
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not chunk:
            break
        shown += chunk
        if not is_stopped and b"simulating 8,192 ranks" in shown:
            os.write(terminal, b"\x03")
            is_stopped = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert is_stopped, shown
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"interrupted while simulating 8,192 ranks: nothing was written" in shown
    assert b"Traceback" not in shown
    assert list(tmp_path.iterdir()) == []
