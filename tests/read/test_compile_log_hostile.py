"""Logs made to hurt: long texts that a careless pattern would go over again and again, and far too much of anything.

Each is read in a process with little time and memory: who does not come to an end there is killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.simulate.compile_log import LogBuilder, ids_of
from read.cage import diagnose_caged

pytestmark = pytest.mark.slow
pytest.importorskip("resource")

LONG = 100_000
REASONS = {
    "comments": "0/0: x" + "  # " * LONG,
    "places": "0/0: x" + "  # a # b:1 in " * LONG,
    "hints": "0/0: x" + " (HINT: " * LONG,
    "spaces": "0/0: x" + " " * 4 * LONG,
    "equations": "0/0: " + "a == " * LONG,
    "tensors": "0/0: tensor '" + "x' size mismatch. expected " * LONG,
    "names": "0/0: " + "L['x']" * LONG,
    "versions": "0/0: a\n" * LONG,
    "brackets": "0/0: " + "[" * LONG,
}
BREAKS = {
    "places": "Graph break in user code at " + "a:1 " * LONG,
    "old": "Graph break: " + " from user code at: " * LONG,
    "parentheses": "Graph break (" * LONG,
    "addresses": "https://" * LONG,
    "page": "https://" + "gb1/" * LONG,
    "hints": "Hint: a\n" * LONG,
    "marks": "^ ~" * LONG + "x",
}
ERRORS = {
    "tracebacks": "Traceback (most recent call last):\n" * LONG,
    "frames": '  File "a.py", line 1, in f\n' * LONG,
    "causes": "from user code:\n" * LONG,
    "indented": " " * LONG + "x",
}
TEXTS = [
    *(pytest.param("recompile_reasons", text, id=f"reason-{name}") for name, text in REASONS.items()),
    *(pytest.param("dynamo_graph_break_reason", text, id=f"break-{name}") for name, text in BREAKS.items()),
    *(pytest.param("dynamo_error", text, id=f"error-{name}") for name, text in ERRORS.items()),
]


def assert_comes_to_an_end(folder: Path) -> None:
    ran = diagnose_caged(folder, "1")

    assert ran.returncode in (0, 1, 2), f"ended with {ran.returncode}: {ran.stderr[-500:]}"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_hostile_texts_are_read_in_one_go(tmp_path: Path, name: str, text: str) -> None:
    LogBuilder(0).start().artifact(name, text, "0/1").metrics("0/1").write(tmp_path)

    assert_comes_to_an_end(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\n" * 5_000_000,
        b"\t\n" * 2_000_000,
        b"V1116 06:18:20.896000 1 " * 200_000,
        b"V1116 06:18:20.896000 1 x:1] {" * 150_000,
        b'V1116 06:18:20.896000 1 x:1] {"a": ' + b"[" * 5_000_000,
        b'V1116 06:18:20.896000 1 x:1] {"a": {}}\n' * 100_000,
        b'V1116 06:18:20.896000 1 x:1] {"a": {}, "frame_id": ' + b"9" * 4_000_000 + b"}\n",
        b'V1116 06:18:20.896000 1 x:1] {"dynamo_start": {"stack": [' + b'{"line": 1},' * 50_000 + b"{}]}}\n",
    ],
    ids=["newlines", "tabs", "prefixes", "braces", "depth", "records", "digits", "frames"],
)
def test_too_much_of_anything_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    LogBuilder(0).start().raw(content).raw(b"\n").metrics().write(tmp_path)

    assert_comes_to_an_end(tmp_path)


def test_a_stream_of_more_ranks_than_files_may_be_open(tmp_path: Path) -> None:
    logs = (LogBuilder(rank).record("aot_joint_graph", {}, "x", **ids_of("0/0")).content() for rank in range(2000))
    lines = [f"[rank{rank}]: ".encode() + line for rank, log in enumerate(logs) for line in log.splitlines(True)]
    (tmp_path / "stderr.log").write_bytes(b"".join(lines))

    assert_comes_to_an_end(tmp_path)
