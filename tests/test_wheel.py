"""The wheel, installed in an environment without a checkout, without the tools of development and without torch.

Every command runs there, types reach its users, and the pages that people follow are followed word by word.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from cli.test_desync import tracked
from fresh_environment import ROOT, FreshEnvironment, make_environment, wheel_metadata
from live_serving import calls_json, serving_job
from rankscope import __version__
from rankscope.cli import build_parser
from rankscope.commands import COMMANDS
from read.store_server import StoreServer

pytestmark = pytest.mark.slow

PAGES = ("README.md", "docs/index.md", "docs/quickstart.md", "docs/skill/SKILL.md")
SHELL_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```$")
SITUATION = re.compile(r"(?m)^\| [^|]+ \| (`rankscope.+) \|$")
HAS_TORCH = find_spec("torch") is not None
# The files that the pages speak of, as a reader who follows them would have them.
SCENES = (
    "rankscope demo -o dumps --fault op --ranks 8",
    "rankscope demo -o compiled --fault recompiles",
    "rankscope demo -o good --fault none --ranks 8",
    "rankscope demo -o bad --fault op --ranks 8",
    "rankscope demo -o traces --fault data-loading --ranks 2 --steps 2 --execution-traces",
)
# Until it has said its address: it runs until it is ended.
SERVE = """\
rankscope serve dumps --port 0 --json > served.txt & server=$!
until grep http served.txt; do kill -0 $server; sleep 0.1; done
kill $server; wait $server || true"""
# The commands that no page shows: one short run of each.
SMOKE = {
    "serve": SERVE,
    "torchfrtrace": "rankscope torchfrtrace dumps",
    "tlparse": "rankscope tlparse compiled -o tl_out --no-browser",
    "link": "rankscope link traces -o linked",
    "chakra": """\
rankscope export traces --to chakra -o et
if python -c 'import google.protobuf' 2> /dev/null; then rankscope chakra validate et
else rankscope chakra validate et 2>&1 | grep -F "pip install 'rankscope[chakra]'"; fi""",
    "logs": "rankscope logs --help",
    "completion": "rankscope completion bash",
    "help": "rankscope help reading",
}
TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    return make_environment(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def recorded() -> set[str]:
    """The jobs that were recorded already: pages that show the same one share it, as each takes seconds."""
    return set()


@pytest.fixture(scope="module")
def scenes(environment: FreshEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    for line in SCENES:
        type_line(environment, line, folder)
    return folder


@pytest.fixture
def workplace(scenes: Path, tmp_path: Path) -> Path:
    """The scenes, and what a user has: a log, and a training script."""
    folder = tmp_path / "workplace"
    shutil.copytree(scenes, folder)
    shutil.copy(ROOT / "tests" / "data" / "desync" / "desync_0.txt", folder / "train.log")
    folder.joinpath("train.py").write_text(TRAIN, encoding="utf-8")
    return folder


@contextmanager
def hung_job() -> Iterator[dict[str, str]]:
    """What the addresses on the pages stand for -> where a job's store and its debug server answer."""
    with ExitStack() as stack:
        store = stack.enter_context(StoreServer(tracked((0, 1, 2, 3), behind=1)))
        served = stack.enter_context(serving_job([{"fr_trace_json": calls_json(3)}, {"fr_trace_json": calls_json(2)}]))
        yield {"http://HOST:25999": served.url, "HOST:29500": f"127.0.0.1:{store.port}"}


def type_line(environment: FreshEnvironment, line: str, folder: Path) -> str:
    extra = {"PATH": f"{environment.bin}:{torchrun_folder(folder)}:/usr/bin:/bin", "GLOO_SOCKET_IFNAME": "lo"}
    done = environment.run(line, folder, extra)
    assert done.returncode in (0, 1), f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
    assert done.stdout or done.stderr or ">" in line, f"{line} says nothing"
    return done.stdout


def torchrun_folder(folder: Path) -> Path:
    """The job's own Python: it has torch, and need not have rankscope."""
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    if HAS_TORCH and not programs.joinpath("torchrun").exists():
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"\n'
        programs.joinpath("torchrun").write_text(text)
        programs.joinpath("torchrun").chmod(0o755)
    return programs


def shell_lines(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = (line.partition("  #")[0].strip() for block in SHELL_BLOCK.findall(text) for line in block.splitlines())
    return [line for line in lines if line]


def situation_lines(page: str) -> list[str]:
    """The commands in the last column of the tables that say what to run."""
    cells = SITUATION.findall((ROOT / page).read_text(encoding="utf-8"))
    return [command for cell in cells for command in re.findall(r"`(rankscope [^`]+)`", cell)]


def follow(environment: FreshEnvironment, lines: list[str], folder: Path, recorded: set[str]) -> None:
    assert lines
    with hung_job() as addresses:
        for line in lines:
            if "torchrun" in line:
                if line in recorded or not HAS_TORCH:
                    continue
                recorded.add(line)
            if line.startswith("rankscope snapshot "):  # needs a recorded job that still runs: tests/e2e/test_dumps.py
                build_parser().parse_args(shlex.split(line)[1:])
                continue
            for shown, real in addresses.items():
                line = line.replace(shown, real)
            type_line(environment, made_line(line), folder)


def made_line(line: str) -> str:
    """What `make` would type, with the installed rankscope in place of the checkout's; nothing for other targets."""
    if not line.startswith("make "):
        return line
    dry = subprocess.run(["make", "-n", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = [typed for typed in dry.stdout.splitlines() if typed.startswith(".venv/bin/rankscope ")]
    return " && ".join(typed.removeprefix(".venv/bin/") for typed in ours) or f"echo {shlex.quote(line)}"


def test_wheel_holds_the_package_and_nothing_else(environment: FreshEnvironment) -> None:
    with zipfile.ZipFile(environment.wheel) as archive:
        names = archive.namelist()
    assert "rankscope/py.typed" in names
    assert "rankscope/render/assets/page.css" in names
    assert {name.split("/")[0] for name in names} == {"rankscope", f"rankscope-{__version__}.dist-info"}
    fields = wheel_metadata(environment.wheel)
    assert {url.split(",")[0] for url in fields.get_all("Project-URL", [])} >= {"Homepage", "Changelog", "Issues"}
    assert "Programming Language :: Python :: 3.14" in fields.get_all("Classifier", [])


def test_nothing_of_the_development_is_there(environment: FreshEnvironment, tmp_path: Path) -> None:
    names = ("torch", "pytest", "mypy", "hatchling", "pyarrow", "pandas", "fsspec")
    probe = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert type_line(environment, f"python -c {shlex.quote(probe)}", tmp_path) == "[]\n"
    assert type_line(environment, "rankscope --version", tmp_path).startswith(f"rankscope {__version__} (Python ")


def test_every_command_that_no_page_shows_runs(
    environment: FreshEnvironment, workplace: Path, recorded: set[str]
) -> None:
    shown = {command_of(line) for page in PAGES for line in (*shell_lines(page), *situation_lines(page))}
    assert set(SMOKE) == set(COMMANDS) - shown
    follow(environment, list(SMOKE.values()), workplace, recorded)


def command_of(line: str) -> str:
    first = (line.removeprefix("rankscope").split() or [""])[0]
    return first if first in COMMANDS or not line.startswith("rankscope ") else "diagnose"


def test_types_reach_the_users_of_the_package(environment: FreshEnvironment, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rankscope\n\n"
        "trace = rankscope.load('dumps')\n"
        "report = rankscope.diagnose(trace)\n"
        "reveal_type(trace)\n"
        "reveal_type(report)\n"
        "report.findings[0].title + 1\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(environment.python), "script.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    problems = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert 'Revealed type is "rankscope.model.tables.Trace"' in checked.stdout, checked.stdout + checked.stderr
    assert 'Revealed type is "rankscope.model.finding.Report"' in checked.stdout
    assert [line.split(":")[1] for line in problems] == ["7"], checked.stdout  # the only mistake in it


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_pages_can_be_followed_from_nothing(
    page: str, environment: FreshEnvironment, tmp_path: Path, recorded: set[str]
) -> None:
    folder = tmp_path / "workplace"
    folder.mkdir()
    folder.joinpath("train.py").write_text(TRAIN, encoding="utf-8")
    follow(environment, shell_lines(page), folder, recorded)


def test_skill_can_be_followed(environment: FreshEnvironment, workplace: Path, recorded: set[str]) -> None:
    follow(environment, shell_lines("docs/skill/SKILL.md"), workplace, recorded)


def test_each_situation_has_a_command_that_works(
    environment: FreshEnvironment, workplace: Path, recorded: set[str]
) -> None:
    """The pages lead by the same situations: what several of them show is typed once."""
    by_page = {page: situation_lines(page) for page in PAGES if page != "docs/quickstart.md"}
    assert min(map(len, by_page.values())) >= 9
    follow(environment, list(dict.fromkeys(chain(*by_page.values()))), workplace, recorded)


def test_json_is_as_the_skill_reads_it(environment: FreshEnvironment, workplace: Path) -> None:
    report = json.loads(type_line(environment, "rankscope dumps --json", workplace))
    first = report["findings"][0]
    assert (report["schema"], first["code"], first["certainty"]) == ("rankscope.report/1", "H102", "certain")
    assert {"ranks", "location", "help", "evidence", "severity"} <= set(first)
    assert {check["status"] for check in report["checks"]} <= {"ran", "skipped"}
