"""Behaves as `nsys profile` and `nsys export` are documented to, on machines without Nsight Systems.

Takes only the documented options, as --name=value or --name value. `profile` runs the program with the variable that
nsys sets, writes <output>.nsys-rep (and <output>.sqlite where --export asks for it), never over a file that exists, and
ends with the program's exit code. `export` writes the database. What is in it comes from the file that STAND_IN_EXPORT
names; without it, or with "none", every export fails.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

PROFILE = {"output", "export", "env-var", "trace", "sample", "cpuctxsw", "force-overwrite", "show-output", "stats"}
EXPORT = {"output", "type", "force-overwrite", "lazy"}
SHORT = {"-o": "--output", "-t": "--trace", "-s": "--sample", "-f": "--force-overwrite", "-e": "--env-var"}
TRACES = {"cuda", "nvtx", "osrt", "cublas", "cudnn", "mpi", "opengl", "vulkan", "none"}


def main(words: list[str]) -> int:
    if words[:1] == ["profile"]:
        options, program = parse(words[1:], PROFILE)
        return profile(options, program)
    if words[:1] == ["export"]:
        options, files = parse(words[1:], EXPORT)
        return export(options["type"], Path(options["output"]), Path(files[0]), options.get("force-overwrite"))
    return fail(f"unknown command {words[:1]}")


def parse(words: list[str], known: set[str]) -> tuple[dict[str, str], list[str]]:
    """The options, and what comes after the last of them."""
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        given, has_value, value = words.pop(0).partition("=")
        name = SHORT.get(given, given).removeprefix("--")
        if name not in known:
            sys.exit(fail(f"unrecognised option '{given}'"))
        options[name] = value if has_value else words.pop(0)
    return options, words


def profile(options: dict[str, str], program: list[str]) -> int:
    if not set(options.get("trace", "cuda").split(",")) <= TRACES:
        return fail("Illegal --trace argument")
    output = Path(expand(options["output"]))
    done = subprocess.run(program, env={**os.environ, "NSYS_PROFILING_SESSION_ID": "1"}, check=False)
    report = output.with_name(f"{output.name}.nsys-rep")
    if report.exists() and options.get("force-overwrite") != "true":
        return fail(f"Failed to create '{report}': File exists.")
    report.write_bytes(b"report of " + " ".join(program).encode())
    if options.get("export") == "sqlite":
        export("sqlite", output.with_name(f"{output.name}.sqlite"), report, None)
    return 128 - done.returncode if done.returncode < 0 else done.returncode


def expand(output: str) -> str:
    """%h, %p and %q{NAME}; %% is one percent sign."""
    values = {"%h": socket.gethostname(), "%p": str(os.getpid()), "%%": "%"}
    return re.sub(r"%(%|h|p|q\{\w+\})", lambda found: values.get(found[0]) or os.environ[found[0][3:-1]], output)


def export(kind: str, database: Path, report: Path, force: str | None) -> int:
    content = os.environ.get("STAND_IN_EXPORT", "none")
    if kind != "sqlite" or not report.exists() or content == "none":
        return fail(f"Could not export {report}")
    if database.exists() and force != "true":
        return fail(f"Failed to create '{database}': File exists.")
    shutil.copy(content, database)
    return 0


def fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


def install(folder: Path) -> Path:
    """Puts it into a folder, as nsys."""
    folder.mkdir(exist_ok=True)
    program = folder / "nsys"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(__file__).resolve()}" "$@"\n')
    program.chmod(0o755)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
