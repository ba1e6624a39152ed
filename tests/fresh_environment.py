"""An environment with rankscope's wheel and what the wheel asks for, nothing else; built without a network.

The dependencies are those of the environment that runs the tests, linked by name: whatever the wheel does not declare
is not there.
"""

from __future__ import annotations

import email
import email.message
import os
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300


@dataclass(frozen=True)
class FreshEnvironment:
    folder: Path
    wheel: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def run(self, line: str, folder: Path, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Types a line into a shell that finds the programs of this environment and the system's, no others."""
        environment = {
            "PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheel.parent),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **(extra or {}),
        }
        return subprocess.run(
            ["bash", "-euc", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def make_environment(folder: Path) -> FreshEnvironment:
    """Builds the wheel, makes the environment and types `pip install rankscope` there."""
    made = FreshEnvironment(folder / "environment", build_wheel(folder / "dist"))
    _finish([sys.executable, "-m", "venv", "--without-pip", str(made.folder)])
    _link_dependencies(made.wheel, Path(sysconfig.get_path("purelib", vars={"base": str(made.folder)})))
    # pip of the environment that runs the tests, working on the fresh one: installing a second pip takes seconds.
    made.bin.joinpath("pip").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pip --python {shlex.quote(str(made.python))} "$@"\n'
    )
    made.bin.joinpath("pip").chmod(0o755)
    done = made.run("pip install rankscope", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def build_wheel(folder: Path) -> Path:
    _finish([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _finish(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"


def wheel_metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def _link_dependencies(wheel: Path, site_packages: Path) -> None:
    for name in sorted(_all_dependencies(wheel)):
        installed = metadata.distribution(name)
        tops = {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in sorted(tops):
            link = site_packages / top
            if not link.exists():
                link.symlink_to(Path(str(installed.locate_file(top))))


def _all_dependencies(wheel: Path) -> set[str]:
    """What the wheel declares, without its extras, and what that needs in turn."""
    names = set[str]()
    pending: list[str] = wheel_metadata(wheel).get_all("Requires-Dist") or []
    while pending:
        requirement = Requirement(pending.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in names:
            names.add(requirement.name)
            pending += metadata.distribution(requirement.name).requires or []
    return names
