"""Why a version did not fit a call, in words, and what to do about each kind of cause."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankscope.analyze.compile.chains import Row, Version, cause_key
from rankscope.analyze.compile.sites import Site
from rankscope.analyze.compile.wording import listed, shortened, times

_STATE = re.compile(r"changed: (?P<what>[\w, ]+)")
_NUMBER = re.compile(r"^-?\d+(\.\d+)?(e-?\d+)?$")
_CROSSES_BREAK = re.compile(r"^___stack\d+")
_ARGUMENT = re.compile(r"^args\[(\d+)\]$")  # as torch's wrapper of a module has them
_MAX_GUARD = 80


class Cause(NamedTuple):
    """Recompilations caused by one and the same condition."""

    guard: Row  # of the first of them
    versions: list[Version]

    @property
    def values(self) -> list[str]:
        """What the versions were compiled for, in order, where the log says so."""
        values: list[str] = []
        for version in self.versions:
            assert version.guard
            values += [version.guard["expected"], version.actual]
        return [value for value in values if value]

    @property
    def is_absorbed(self) -> bool:
        return all(version.is_absorbed for version in self.versions)


def causes_of(versions: list[Version]) -> list[Cause]:
    """The most frequent first."""
    groups: dict[tuple[str, str, int], Cause] = {}
    for version in versions:
        guard = version.guard
        if guard is not None and version.number > 0:
            groups.setdefault(cause_key(guard), Cause(guard, [])).versions.append(version)
    return sorted(groups.values(), key=lambda cause: -len(cause.versions))


def phrase(cause: Cause, site: Site) -> str:
    """`the size of x (dimension 0) changed: 2, 3, 4`."""
    guard, values = cause.guard, listed(cause.values)
    subject, kind = _ARGUMENT.sub(r"argument \1", guard["subject"]), guard["cause"]
    shown = f": {values}" if values else ""
    if kind in ("size", "stride") and subject:
        where = f" (dimension {guard['dimension']})" if guard["dimension"] >= 0 else ""
        return f"the {kind} of {subject}{where} changed{shown}"
    if kind == "value" and subject:
        if _CROSSES_BREAK.match(subject):
            return f"a value that crosses a graph break changed{shown}"
        return f"the value of {subject} changed{shown}"
    if is_wrapped(guard, site):
        return "a different module or function was compiled"
    if kind == "state":
        what = _STATE.search(guard["guard"])
        return (
            f"torch's global state changed ({what['what'].strip() if what else shortened(guard['guard'], _MAX_GUARD)})"
        )
    simple = {
        "rank": f"the number of dimensions of {subject} changed{shown}",
        "dtype": f"the dtype of {subject} changed{shown}",
        "device": f"the device of {subject} changed{shown}",
        "gradient": f"whether {subject} requires gradients changed",
        "type": f"the type of {subject} changed",
        "identity": f"{subject} was a different object",
        "keys": f"the length or the keys of {subject} changed",
    }
    if subject and kind in simple:
        return simple[kind]
    return f"`{shortened(guard['guard'], _MAX_GUARD)}` did not hold"


def counted(cause: Cause, site: Site) -> str:
    """`recompiled 7 times because the size of x (dimension 0) changed: 2, 3, 4`."""
    return f"recompiled {times(len(cause.versions))} because {phrase(cause, site)}"


def cell(version: Version) -> str:
    """What did not fit, for one line of a comparison."""
    guard = version.guard
    if guard is None:
        return "first version" if version.number == 0 else "no reason was logged"
    name = guard["subject"] or shortened(guard["guard"], _MAX_GUARD)
    if guard["dimension"] >= 0:
        name += f".{guard['cause']}({guard['dimension']})"
    elif guard["subject"] and guard["cause"] not in ("value", "other"):
        name = f"{guard['cause']} of {name}"
    if guard["expected"]:
        name += f": {shortened(guard['expected'], 40)} -> {shortened(version.actual, 40) or 'other'}"
    return name + (" (dynamic from now on)" if version.is_absorbed else "")


def remedy(cause: Cause, site: Site) -> str:
    """The next step that fits the kind of cause."""
    guard = cause.guard
    if is_wrapped(guard, site):
        return (
            "compile each module once, outside the loop. All modules go through one torch wrapper and share its "
            "recompile limit: if there are many, set torch._dynamo.config.recompile_limit above their number"
        )
    subject, kind = guard["subject"] or "it", guard["cause"]
    if kind == "size":
        where = f", {guard['dimension']}" if guard["dimension"] >= 0 else ", DIMENSION"
        return (
            f"call torch._dynamo.mark_dynamic({subject}{where}) on the tensor before the first call, or compile with "
            "dynamic=True (dynamic=False forces one version per size); or pad to a few sizes"
        )
    if kind == "value":
        return _remedy_for_value(subject, cause.values)
    fixed = {
        "stride": f"give {subject} the same memory layout on every call, for example with .contiguous()",
        "rank": f"give {subject} the same number of dimensions on every call, or compile one function for each",
        "dtype": f"convert {subject} to one dtype before the call, or compile one function for each dtype",
        "device": f"keep {subject} on one device, or compile one function for each device",
        "gradient": f"keep requires_grad of {subject} the same on every call, or compile one function for each case",
        "type": f"pass {subject} with the same type on every call",
        "identity": f"create {subject} once, outside the loop: a lambda, partial or object created for each call "
        "never fits the version compiled for the previous one",
        "keys": f"give {subject} the same length and keys on every call, or pass its items as tensors",
        "state": "always call it in the same mode: gradient mode, autocast, default dtype and deterministic mode are "
        "guarded; compile one function for training and one for inference",
    }
    return fixed.get(kind, "make the guarded condition the same on every call, or compile one function for each case")


def is_wrapped(guard: Row, site: Site) -> bool:
    """Torch wraps what it compiles in a function of its own, whose `fn` is then guarded."""
    return site.is_call and guard["cause"] == "identity" and guard["subject"] == "fn"


def _remedy_for_value(subject: str, values: list[str]) -> str:
    if _CROSSES_BREAK.match(subject):
        return "remove the graph break before this line: the value then stays inside one graph"
    if values and all(_NUMBER.match(value) for value in values):
        if "." in subject:
            return (
                f"keep {subject} in a tensor, or set torch._dynamo.config.allow_unspec_int_on_nn_module = True if it "
                "is an integer attribute of a module"
            )
        return (
            f"pass {subject} as a tensor, or keep it dynamic: set torch._dynamo.config.specialize_int and "
            "specialize_float to False, and make no branch depend on its value"
        )
    if "." in subject:
        return f"set {subject} once before the first call, or compile one function for each of its values"
    return f"compile one function for each value of {subject}, or branch on it outside the compiled function"
