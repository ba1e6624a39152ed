"""What must not leave the house, and what must stay so that a finding can still be read."""

from __future__ import annotations

import pytest

from rankscope.model.tables import Table, Trace
from rankscope.render.page.redaction import Redaction, directories_of, without_source


def redaction(*hosts: str) -> Redaction:
    return Redaction(hosts)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/home/alice/train/loop.py:212 in step", "loop.py:212 in step"),
        ("train/loop.py:212", "loop.py:212"),
        ("../jobs/loop.py", "loop.py"),
        ("~/secret/loop.py", "loop.py"),
        (r"C:\Users\alice\loop.py", "loop.py"),
        (r"\\server\alice\loop.py", "loop.py"),
        ("hdfs://node:8020/user/alice/loop.py", "loop.py"),
        ("s3://alice/jobs/4711", "…"),
        ("could not read /mnt/jobs/4711, see there", "could not read …, see there"),
        ("<code>/home/alice/x.py</code></td></tr>", "<code>x.py</code></td></tr>"),
        ('<a title="/home/alice/x.py">x</a>', '<a title="x.py">x</a>'),
        ("&#x27;/home/alice/x.py&#x27;", "&#x27;x.py&#x27;"),
        ("traces.zip!logs/rank_3.bin", "traces.zip!rank_3.bin"),
    ],
)
def test_directories_go_and_names_of_files_stay(said: str, left: str) -> None:
    assert redaction().clean(said) == left


@pytest.mark.parametrize(
    "said",
    ["12 GB/s", "and/or", "[2/1]", "1/2 of the step", "<br/>", "</td>", "see https://pytorch.org/docs/x.html", "a / b"],
)
def test_what_is_no_path_stays(said: str) -> None:
    assert redaction().clean(said) == said


def test_directories_that_are_known_go_whatever_their_names() -> None:
    files = [{"path": path} for path in ("/mnt/My Drive/secret [1]/rank_0", "jobs/4711/rank_1", "0/rank_2")]
    trace = Trace(("traces/of alice",), {"files": Table.from_rows("files", files)})
    own = Redaction((), directories_of(trace, ["/home/alice"]))
    assert own.clean("/mnt/My Drive/secret [1]/rank_0 and jobs/4711/rank_1") == "rank_0 and rank_1"
    assert (
        own.clean("read traces/of alice/x and /home/alice/loop.py, compiled [0/1]")
        == "read x and loop.py, compiled [0/1]"
    )


def test_hosts_get_numbers_wherever_they_are_named() -> None:
    own = redaction("gpu-1", "gpu-11", "")
    assert own.clean("gpu-11 waits for gpu-1, not for gpu-111") == "host2 waits for host1, not for gpu-111"


def test_data_is_cleaned_all_the_way_down() -> None:
    assert redaction().clean_data({"/a/b.py": ["/c/d.py", 3, None, {"x": ("/e/f.py",)}]}) == {
        "b.py": ["d.py", 3, None, {"x": ["f.py"]}]
    }


def test_without_source_takes_lines_of_code_and_leaves_the_trace_alone() -> None:
    table = Table.from_rows("compile_stacks", [{"file": "a.py", "line": 3, "code": "secret = 1"}])
    trace = Trace((), {"compile_stacks": table})
    assert without_source(trace).table("compile_stacks").text("code").tolist() == [""]
    assert trace.table("compile_stacks").text("code").tolist() == ["secret = 1"]


def test_what_is_shown_relative_to_the_code_loses_its_directories_too() -> None:
    frames = Table.from_rows("frames", [{"file": "/srv/job/of alice/secret model/layer.py"}])
    own = Redaction((), directories_of(Trace(("dumps",), {"frames": frames}), ["", "/srv/job"]))
    assert own.clean("of alice/secret model/layer.py:3 in forward") == "layer.py:3 in forward"
