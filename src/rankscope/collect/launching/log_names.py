"""The names that TORCH_LOGS takes, from the registry of the torch that the job will run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankscope.errors import InputError

_LIMIT_S = 120
_MARK = "rankscope-log-names:"
# Runs in the job's Python, which may have no rankscope. Whatever that prints besides is left out by the mark.
_QUESTION = f"""
import importlib.util, json, sys
import torch
from torch._logging._internal import log_registry as known
def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
loggers = {{name: list(modules) for name, modules in known.log_alias_to_log_qnames.items()}}
artifacts = {{name: known.artifact_descriptions.get(name, "") for name in known.artifact_names}}
modules = [name for name in sys.argv[1:] if is_module(name)]
print({_MARK!r} + json.dumps({{"torch": torch.__version__, "loggers": loggers, "artifacts": artifacts,
    "modules": modules}}))
"""


# How torch's guide spells a name -> the name that torch takes.
GUIDE_NAMES = {"aot_joint_graphs": "aot_joint_graph"}


class LogName(NamedTuple):
    name: str
    kind: str  # a log has levels (+name, -name), an artifact is on or off
    text: str


class LogNames(NamedTuple):
    torch: str
    names: tuple[LogName, ...]
    modules: frozenset[str]
    """Those of the names asked for that are modules: torch takes them, too."""

    def wrong(self, asked: Sequence[str]) -> list[str]:
        known = {"all", *self.modules, *(name.name for name in self.names)}
        return [name for name in asked if name not in known]


def split_names(logs: str) -> list[str]:
    """`+dynamo,-inductor,recompiles` without the signs."""
    return [word.strip().lstrip("+-") for word in logs.split(",") if word.strip()]


def as_torch_has_them(logs: str) -> str:
    """With names of torch's guide that torch itself does not take replaced by those that it does."""
    return ",".join(re.sub(r"\w+$", lambda name: GUIDE_NAMES.get(name[0], name[0]), word) for word in logs.split(","))


def is_well_formed(logs: str) -> bool:
    """As torch reads them: anything else ends the job while it imports torch."""
    return all(re.fullmatch(r"[+-]?\w[\w.]*", word.strip()) for word in logs.split(","))


def ask_torch(python: str, asked: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> LogNames:
    """InputError: that Python cannot import torch, or its torch has no registry."""
    quiet = {name: value for name, value in environment.items() if not name.startswith(("TORCH_LOGS", "RANKSCOPE_"))}
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, *asked],
            env=quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"could not run {python} to list torch's logs: {error}") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise InputError(f"{python} could not list torch's logs: {last}")
    return _parsed(answers[-1].removeprefix(_MARK))


def _parsed(answer: str) -> LogNames:
    names = json.loads(answer)
    loggers = [
        LogName(name, "log", f"messages of {', '.join(modules)}") for name, modules in sorted(names["loggers"].items())
    ]
    if "torch" in names["loggers"]:  # which torch takes under both names
        loggers.insert(0, LogName("all", "log", "messages of all components"))
    guide = {name: f" (also called {other})" for other, name in GUIDE_NAMES.items()}
    artifacts = [
        LogName(name, "artifact", (" ".join(text.split()) or "no description") + guide.get(name, ""))
        for name, text in sorted(names["artifacts"].items())
    ]
    return LogNames(names["torch"], (*loggers, *artifacts), frozenset(names["modules"]))
