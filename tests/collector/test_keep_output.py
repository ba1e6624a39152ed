"""What a job under record prints is kept, and comes out as if nothing were between."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rankscope.collect.launching.keep_output import Kept

LIMIT_S = 300


def record(folder: Path, program: str, *options: str, **streams: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rankscope", "record", "-o", str(folder), "--no-diagnose", *options, "--"]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([*command, sys.executable, "-c", program], timeout=LIMIT_S, check=False, **given)  # type: ignore[call-overload,no-any-return]


def kept(folder: Path) -> bytes:
    [path] = folder.glob("output_host_*")
    return path.read_bytes()


def test_bytes_and_exit_code_are_those_of_the_job(tmp_path: Path) -> None:
    program = "import os, sys; os.write(1, bytes(range(256)) * 4000); os.write(2, b'last words'); sys.exit(7)"
    ended = record(tmp_path / "t", program)
    assert ended.returncode == 7
    assert ended.stdout == bytes(range(256)) * 4000
    assert ended.stderr.startswith(b"last words")
    assert sorted(kept(tmp_path / "t")) == sorted(bytes(range(256)) * 4000 + b"last words")


def test_the_order_of_both_streams_is_kept_where_they_are_one(tmp_path: Path) -> None:
    program = "import os\nfor n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"
    ended = record(tmp_path / "t", program, stderr=subprocess.STDOUT)
    lines = b"".join(b"%d\n" % number for number in range(2000))
    assert ended.stdout.startswith(lines)
    assert kept(tmp_path / "t") == lines


def test_half_a_line_comes_out_while_the_job_runs(tmp_path: Path) -> None:
    """Nothing is held back until a line or the job ends."""
    answer = tmp_path / "answer"
    program = f"import os, time\nos.write(1, b'50%')\nwhile not os.path.exists({str(answer)!r}): time.sleep(0.05)"
    command = [sys.executable, "-m", "rankscope", "record", "-o", str(tmp_path / "t"), "--no-diagnose", "--"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, sys.executable, "-c", program], **streams) as job:  # type: ignore[call-overload]
        assert job.stdout is not None
        assert job.stdout.read(3) == b"50%"
        answer.touch()
        assert job.wait(LIMIT_S) == 0


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                shown.append(data)
        except OSError:  # the other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    ended = record(
        tmp_path / "t", "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())", stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    reader.join(LIMIT_S)
    os.close(ours)
    assert ended.returncode == 0
    assert b"".join(shown).startswith(b"True True\r\n")
    assert kept(tmp_path / "t") == b"True True\n"


def test_a_signal_ends_the_job_as_before_and_silence_leaves_no_file(tmp_path: Path) -> None:
    ended = record(tmp_path / "t", "import os; os.kill(os.getpid(), 9)")
    assert ended.returncode == 137
    assert list((tmp_path / "t").glob("output*")) == []


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert record(tmp_path / "t", "print('hello')", "--no", "output").stdout == b"hello\n"
    assert list((tmp_path / "t").glob("output*")) == []


@pytest.mark.parametrize("n_chunks", [1, 9, 10, 11, 35, 100])
def test_head_and_tail_are_kept_within_bounds(n_chunks: int, tmp_path: Path) -> None:
    path = tmp_path / "output"
    copy = Kept(str(path), head_bytes=100, tail_bytes=50)
    chunks = [b"%09d\n" % number for number in range(n_chunks)]
    for chunk in chunks:
        copy.write(chunk)
    copy.close()
    text = path.read_bytes()
    assert os.listdir(tmp_path) == ["output"]
    assert len(text) <= 100 + 2 * 50 + 60
    assert text.startswith(b"".join(chunks[:10]))
    assert text.endswith(b"".join(chunks[-5:]))
    assert (b"left out" in text) == (n_chunks > 20)


def test_a_full_disk_costs_the_copy_only(tmp_path: Path) -> None:
    link = tmp_path / "output"
    link.symlink_to("/dev/full")
    copy = Kept(str(link))
    copy.write(b"data")
    copy.write(b"more")
