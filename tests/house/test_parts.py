"""Parts register themselves: the examples of CONTRIBUTING.md, installed as a package of their own, work like ours."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from source_tree import ROOT, SourceFile, on_every_file, source_files

from rankscope.errors import RankscopeError
from rankscope.model import parts
from rankscope.model.parts import Catalogue, own_modules
from rankscope.read import other_readers, own_readers
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

EXAMPLES = Path(__file__).parent / "examples"
DECORATORS = {"rule", "table", "metric", "view"}
LOG = "time_ns,rank,xid,message\n1000,1,79,fallen off the bus\n2000,1,79,<b>again</b>\n3000,0,13,page fault\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with one: the examples, and what pip writes about them."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLES, site / "device_watch", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "device_watch" / "__init__.py").write_text("", encoding="utf-8")
    described = site / "device_watch-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: device-watch\nVersion: 1.0\n", encoding="utf-8")
    (described / "entry_points.txt").write_text("[rankscope.parts]\ndevices = device_watch\n", encoding="utf-8")
    return site


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "errors.csv").write_text(LOG, encoding="utf-8")
    return folder


def run(installed: Path, *arguments: object, code: int = 0) -> str:
    """What a command prints in an environment that has the package."""
    path = os.pathsep.join((str(installed), str(ROOT / "src")))
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_folder_with_nothing_but_a_new_source_is_read_and_diagnosed(installed: Path, logs: Path) -> None:
    report = json.loads(run(installed, logs, "--json"))
    assert report["capture"]["sources"] == {"device_errors": 1}
    assert report["capture"]["ranks"] == [0, 1]
    checks = {check["rule"]: check for check in report["checks"]}
    assert checks["device-failed"]["why"] == "no Flight Recorder dumps in this capture"
    assert checks["file-damaged"]["status"] == "ran"


def test_a_new_rule_joins_a_new_source_with_ours(installed: Path, logs: Path) -> None:
    simulate(JobSpec(Mesh(dp=2)), Fault("stuck", rank=1)).write(logs)
    findings = json.loads(run(installed, logs, "--json", code=1))["findings"]
    [found] = [finding for finding in findings if finding["code"] == "X690"]
    assert found["rule"] == "device-failed"
    assert found["evidence"]["facts"]["xid"] in (79, 13)


def test_a_capture_without_the_new_source_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    simulate(JobSpec(Mesh(dp=2)), Fault("stuck", rank=1)).write(tmp_path)
    checks = json.loads(run(installed, tmp_path, "--json", code=1))["checks"]
    assert {"rule": "device-failed", "status": "skipped", "why": NO_LOGS} in checks


NO_LOGS = "no device error logs in this capture: put those of the hosts beside the traces"


def test_new_parts_are_listed_like_ours(installed: Path) -> None:
    assert "X690  device-failed" in run(installed, "explain")
    assert "What could fool it: an error that the driver recovered from" in run(installed, "explain", "X690")
    tables = run(installed, "tables")
    assert all(f"{name}: " in tables for name in ("device_errors", "last_errors", "error_counts"))
    assert "device_errors" in run(installed, "metrics")
    assert ".tsv" in run(installed, "diagnose", "--help")


def test_a_new_metric_and_new_tables_are_measured_and_queried(installed: Path, logs: Path) -> None:
    rows = json.loads(run(installed, "metrics", logs, "device_errors", "--json"))
    assert [(row["rank"], row["n_errors"]) for row in rows] == [(1, 2), (0, 1)]
    asked = run(installed, "query", logs, "select rank, time_ns from last_errors order by rank", "--json")
    assert json.loads(asked) == [{"rank": 0, "time_ns": 3000}, {"rank": 1, "time_ns": 2000}]


def test_a_new_output_writes_files_of_its_extension(installed: Path, logs: Path) -> None:
    simulate(JobSpec(Mesh(dp=2)), Fault("stuck", rank=1)).write(logs)
    written = logs.parent / "answer.tsv"
    run(installed, logs, "-o", written, code=1)
    first, *lines = written.read_text(encoding="utf-8").splitlines()
    assert first == "severity\tcode\tranks\ttitle"
    assert any("\tX690\t" in line for line in lines)


def test_a_new_view_is_on_the_page_and_escapes_what_it_shows(installed: Path, logs: Path) -> None:
    simulate(JobSpec(Mesh(dp=2)), Fault("stuck", rank=1)).write(logs)
    page = logs.parent / "page.html"
    run(installed, "report", logs, "-o", page, code=1)
    html = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;again&lt;/b&gt;" in html
    places = [html.index(f'<section id="{anchor}"') for anchor in ("map", "device-errors", "capture")]
    assert places == sorted(places), "it is where its place says"


def test_entry_points_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Counter[str]()

    def entry_points() -> list[str]:
        searched["times"] += 1
        return []

    parts.other_modules.cache_clear()
    other_readers.cache_clear()
    monkeypatch.setattr(parts, "_entry_points", entry_points)
    for _ in range(1000):
        assert other_readers() == ()
    assert parts.other_modules() == ()
    assert searched["times"] == 1


def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    parts.other_modules.cache_clear()
    monkeypatch.setattr(parts, "_entry_points", lambda: ["no_such_module_at_all"])
    with pytest.raises(RankscopeError, match="no_such_module_at_all"):
        parts.other_modules()
    parts.other_modules.cache_clear()


def test_a_name_is_given_once() -> None:
    twice: Catalogue[int] = Catalogue(lambda: iter([("H102", "ours", 1), ("H102", "theirs", 2)]))
    with pytest.raises(RankscopeError, match="H102 is used twice: in ours and in theirs"):
        len(twice)


@on_every_file
def test_what_a_part_says_about_itself_is_literal(source: SourceFile) -> None:
    for node in ast.walk(source.tree):
        for call in _decorators(node):
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                ast.literal_eval(argument)


def test_the_scan_finds_every_decorated_function() -> None:
    """What is read from the text is what Python sees, whatever stands between the decorator and the function."""
    seen = {
        (".".join(source.module_parts), node.name)
        for source in source_files()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and any(True for _ in _decorators(node))
    }
    rooms = ("analyze", "render.page")
    found = {(part.module, part.function) for room in rooms for each in own_modules(room) for part in each.declared}
    assert found == seen
    assert len(found) > 100


def _decorators(node: ast.AST) -> list[ast.Call]:
    listed = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    calls = [each for each in listed if isinstance(each, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in DECORATORS]


def test_a_small_dump_loads_no_analysis_that_it_does_not_need(tmp_path: Path) -> None:
    simulate(JobSpec(Mesh(dp=2)), Fault("stuck", rank=1)).write(tmp_path)
    script = "import sys; from rankscope.cli import main; main(); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    rooms = {name.split(".")[2] for name in loaded if name.startswith("rankscope.analyze.") and name.count(".") > 2}
    assert rooms == {"hangs"}
    readers = {unloaded.module for unloaded in own_readers()} & loaded
    assert readers == {"rankscope.read.flight_recorder", "rankscope.read.manifest"}
    assert not loaded & {"http.client", "ssl", "numpy.ma", "duckdb"}
