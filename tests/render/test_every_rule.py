"""Every rule's text on a sample finding, in one file for reviewers: snapshots/every_rule.txt.

The findings are real: simulated jobs, the scenes of the behaviors and the files that the readers are tested with are
loaded and diagnosed, and the first finding of each rule is printed as a user would see it. Rules that none of these
triggers are shown on the hand-made tables of their own tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from behaviors.scenes import SCENES
from capture_building import mixed_capture
from compile_page_building import job_log
from rankscope import pipeline
from rankscope.analyze import RULES
from rankscope.errors import RankscopeError
from rankscope.model.finding import SCHEMA_NAME, Capture, Finding, Report
from rankscope.render import Options
from rankscope.render.terminal import render
from rankscope.simulate import FAULTS, Fault, JobSpec, Mesh, Noise, simulate
from rankscope.simulate.compile_job import COMPILE_FAULT_HELP, simulate_compiling
from rankscope.simulate.profiler import PROFILE_FAULTS, ProfileFault, ProfileSpec, simulate_profile
from render.rule_samples import HAND_MADE
from render.snapshot import check_snapshot

pytestmark = pytest.mark.slow
DATA = Path(__file__).parents[1] / "data"
Builder = Callable[[Path], object]
# Scenes that are scripts, run torch, or repeat a fault of the simulator.
SKIPPED_SCENES = {"everything_logged", "recorded", "nodumps", "healthy", "hung", "stuck", "sizes", "types", "compiled"}
PIPELINED = {"stage-imbalance", "slow-link"}
ALONE = Capture((), (), -1, {})  # of what: a finding on hand-made tables belongs to no capture


def hang(kind: str) -> Builder:
    mesh = Mesh(dp=4 if kind in ("node", "groups", "straggler") else 2, tp=2, pp=2 if kind == "p2p" else 1)
    spec = JobSpec(mesh, steps=8 if kind == "straggler" else 4, ranks_per_host=4, experts=kind == "groups")
    return lambda folder: simulate(spec, Fault(kind, rank=1, step=2)).write(folder)


def holes(folder: Path) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=2), steps=6), Fault("op", rank=1, step=5), Noise(ring=8, lost=1, cut=1)).write(
        folder
    )


def slow(kind: str) -> Builder:
    spec = ProfileSpec(data_parallel=2, stages=4 if kind in PIPELINED else 1, ranks_per_host=2, n_steps=4, n_layers=2)
    return lambda folder: simulate_profile(spec, ProfileFault(kind, 1)).write(folder, gzip=False)


def compiling(kind: str) -> Builder:
    return lambda folder: simulate_compiling(4, kind, None, 0).write(folder)


def captures(folder: Path) -> Iterator[Path]:
    """Folders with traces, the simulator's first: its faults show what a rule is about best."""
    builders: dict[str, Builder] = {f"hang_{kind}": hang(kind) for kind in FAULTS}
    builders |= {f"slow_{kind}": slow(kind) for kind in PROFILE_FAULTS}
    builders |= {f"compile_{kind}": compiling(kind) for kind in COMPILE_FAULT_HELP}
    builders |= {"holes": holes, "page_log": lambda path: job_log(0).write(path)}
    builders |= {name: build for name, build in SCENES.items() if name not in SKIPPED_SCENES and "." not in name}
    builders["mixed"] = mixed_capture
    for name, build in builders.items():
        build(folder / name)
        yield folder / name
    yield from sorted(path for path in DATA.iterdir() if path.is_dir() and path.name != "__pycache__")


def sample_findings(folder: Path) -> dict[str, tuple[str, Report, Finding]]:
    """By code: the capture, the report and the first finding of that rule in it."""
    samples: dict[str, tuple[str, Report, Finding]] = {}
    for capture in captures(folder):
        try:
            report = pipeline.diagnose(pipeline.load([str(capture)]))
        except RankscopeError:
            continue  # a scene about a folder that cannot be read
        for finding in (*report.findings, *report.effects):
            samples.setdefault(finding.code, (capture.name, report, finding))
    for code, sample in HAND_MADE.items():
        finding = sample(folder / code)[0]
        assert finding.code == code
        assert code not in samples, f"{code} is in {samples[code][0]} already: leave it out of HAND_MADE"
        samples[code] = ("hand-made tables", Report(SCHEMA_NAME, ALONE, (finding,), ()), finding)
    return samples


def finding_lines(report: Report, finding: Finding) -> Iterator[str]:
    """The finding alone, without head and foot."""
    alone = Report(report.schema, report.capture, (finding,), ())
    lines = [*render(alone, Options(source=False))]
    yield from lines[2 : len(lines) - 2]


@pytest.mark.slow
def test_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = sample_findings(tmp_path)
    capsys.readouterr()  # some scenes are made by commands, which print
    assert sorted(samples) == sorted(RULES), "give the rule a sample in rule_samples.py"
    parts = ["What each rule says, on the first capture of the test suite that it has a finding in."]
    for code, (capture, report, finding) in sorted(samples.items()):
        parts.append("\n".join((f"{code} {RULES[code].name}, in {capture}", "", *finding_lines(report, finding))))
    text = f"\n\n{'-' * 80}\n".join(parts) + "\n"
    for folder in (tmp_path, DATA):  # no path of one machine in the file
        text = text.replace(f"{folder}/", "")
    text = re.sub(r"\S*rankscope/simulate/example/", "", text)
    check_snapshot("every_rule.txt", text)
