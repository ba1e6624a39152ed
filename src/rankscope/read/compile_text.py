"""Texts that torch.compile writes for people: graph breaks, failed guards, tracebacks -> the columns of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rankscope.model.numbers import integer
from rankscope.model.tables import MISSING
from rankscope.read.recorder_shapes import is_user_frame

Row = dict[str, Any]
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_MARKS = re.compile(r"^[\s^~]+$")
_MAX_LINE = (1 << 31) - 1


class TextFrame(NamedTuple):
    file: str
    line: int
    function: str
    code: str


def traceback_frames(lines: list[str]) -> list[TextFrame]:
    """The frames of a Python traceback, in the order of the text."""
    frames: list[TextFrame] = []
    for position, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is None:
            continue
        following = lines[position + 1] if position + 1 < len(lines) else ""
        code = "" if _FRAME.match(following) or _MARKS.match(following) else following.strip()
        frames.append(
            TextFrame(frame["file"], integer(frame["line"], default=_MAX_LINE), frame["function"] or "", code)
        )
    return frames


def user_frame(frames: list[TextFrame]) -> TextFrame | None:
    """The innermost frame of the user's own code."""
    return next((frame for frame in reversed(frames) if is_user_frame(frame.file)), None)


def located(frame: TextFrame | None) -> Row:
    """The columns file, line, function and code."""
    return {} if frame is None else frame._asdict()


_BREAK_AT = re.compile(
    r"^Graph break (?:\([^)\n]*\) )?(?:in user code at|from user code at|at) (?P<file>.+?):(?P<line>\d+)\s*$", re.M
)
# Up to torch 2.4 the reason stands before the traceback: `Graph break: REASON from user code at:`.
_OLD_BREAK = re.compile(r"\AGraph break: (?P<reason>.*?) ?from user code at:\s*$(?P<frames>.*)", re.M | re.S)
_BREAK_REASON = re.compile(r"^(?:Graph Break Reason|Reason):[ \t]*(?P<reason>.*)$", re.M)
_BREAK_URL = re.compile(r"https?://[^\s:]{0,200}/(?P<id>gb\d+)\.html")
_BREAK_ENDS = ("User code traceback:", "Traceback (most recent call last):", "Stack variable source attribution:")


def parse_graph_break(text: str) -> Row:
    """The columns of graph_breaks that a message has."""
    row: Row = {}
    lines = text.splitlines()
    old = _OLD_BREAK.match(text)
    section = traceback_frames(old["frames"].splitlines()) if old else _section(lines, "User code traceback:")
    caller = user_frame(section)
    where = _BREAK_AT.search(text)
    innermost = section[-1] if section else None
    if where:
        row.update(file=where["file"], line=integer(where["line"], default=_MAX_LINE))
        same = [frame for frame in section if (frame.file, frame.line) == (row["file"], row["line"])]
        innermost = same[-1] if same else TextFrame(row["file"], row["line"], "", "")
    row.update(located(innermost))
    row["is_user"] = is_user_frame(row.get("file", ""))
    if caller is not None and not row["is_user"]:
        row.update(caller_file=caller.file, caller_line=caller.line)
    row.update({"reason": " ".join(old["reason"].split())} if old else _break_reason(text))
    url = _BREAK_URL.search(text)
    if url:
        row.update(break_id=url["id"], url=url.group())
    return row


def _section(lines: list[str], heading: str) -> list[TextFrame]:
    """The frames below a heading, up to the empty line that ends them."""
    starts = [number for number, line in enumerate(lines) if line.strip() == heading]
    if not starts:
        return []
    rest = lines[starts[0] + 1 :]
    end = next((number for number, line in enumerate(rest) if not line.strip()), len(rest))
    return traceback_frames(rest[:end])


def _break_reason(text: str) -> Row:
    """The reason proper is the line above the explanation; older versions have it behind `Reason:`."""
    match = _BREAK_REASON.search(text)
    body = text[match.start() :] if match else text
    for end in _BREAK_ENDS:
        body = body.partition(f"\n{end}")[0]
    lines = [line.strip() for line in body.splitlines()]
    reason = match["reason"].strip() if match else ""
    explained = next((number for number, line in enumerate(lines) if line.startswith("Explanation:")), None)
    if explained is not None:
        above = [line for line in lines[1 if match else 0 : explained] if line]
        reason = above[-1] if above else reason
    reason = re.sub(r"^Unsupported: ", "", reason)
    hints = [line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:")]
    explanation = lines[explained].removeprefix("Explanation:").strip() if explained is not None else ""
    return {"reason": reason, "explanation": explanation, "hints": "\n".join(hints)}


_AGAINST = re.compile(r"^(?P<id>!?[\d/]+(?:_\d+)?): ")
_SIZE = re.compile(
    r"^tensor '(?P<subject>.+?)' (?P<what>size|stride|dtype|rank|requires_grad|dispatch key set|Tensor device index|"
    r"device) mismatch(?: at index (?P<index>\d+))?\. [Ee]xpected (?P<expected>.+?)(?:, actual (?P<actual>.+?))?$"
)
_SIZE_CAUSES = {"requires_grad": "gradient", "dispatch key set": "state", "Tensor device index": "device"}
_PLACE = re.compile(r"# (?P<file>[^\s#]+):(?P<line>\d+) in (?P<function>[^(\n]+)")
_HINT = "(HINT: "
_MAX_GUARD = 4096  # characters: patterns below may go over a text more than once
_EQUAL = re.compile(r"^(?P<left>.+?) (?:==|!=|is) (?P<right>.+)$", re.S)
_CALL = re.compile(r"^_{2,3}\w+\((?P<subject>[^,()]+)[,)]|^len\((?P<counted>[^()]+)\)")
_CAUSES = (
    ("size", re.compile(r"\bs\d+\b|\bu\d+\b|\.size\(\)\[|\.stride\(\)\[|\.shape\[|storage_offset\(\)")),
    (
        "state",
        re.compile(
            r"GLOBAL_STATE|___check_global_state|GradMode|grad_mode|torch_function|deterministic|default_device", re.I
        ),
    ),
    ("keys", re.compile(r"dict_contains|dict_keys|\.keys\(\)|___dict_version|list_iterator|^len\(|tuple_iterator_len")),
    ("type", re.compile(r"___check_type_id|^type\(|expected type of|check_type|__class__")),
    (
        "identity",
        re.compile(r"___check_obj_id|^id\(|check_obj_id|___check_current_backend|weakref| is (?!None)(?!not None)"),
    ),
)
_SUBJECT = re.compile(
    r"L\['(?P<local>[^']+)'\](?P<path>[\w.\[\]'()]*)|G\['(?P<global>[^']+)'\](?P<gpath>[\w.\[\]'()]*)"
)


def parse_recompile_reasons(text: str, reasons: list[str]) -> Iterator[Row]:
    """The columns of recompiles, one row per earlier version whose guard failed."""
    for reason in reasons or [text]:
        for part in _split_reasons(reason):
            yield _recompile_reason(part)


def _split_reasons(reason: str) -> list[str]:
    """One text may hold several, each beginning with the version that it speaks of."""
    pieces: list[str] = []
    for line in reason.splitlines():
        line = re.sub(r"^\s*- (?=!?[\d/]+(?:_\d+)?: )", "", line)
        if not pieces or _AGAINST.match(line):
            pieces.append(line)
        else:
            pieces[-1] += "\n" + line
    return pieces


def _recompile_reason(reason: str) -> Row:
    against = _AGAINST.match(reason)
    row: Row = {"against": against["id"] if against else ""}
    body = reason[against.end() :] if against else reason
    guard, _, stack = body.partition("\nUser stack trace:")
    guard, _, hint = guard[:_MAX_GUARD].partition(_HINT)
    if hint:
        row["hint"] = hint.rstrip().removesuffix(")")
    guard, remark, comment = guard.partition("  # ")  # the line of code and its place, or a remark on the guard
    match = _PLACE.search(comment)
    if match:
        row.update(code=comment[: match.start()].strip(), file=match["file"], function=match["function"].strip())
        row["line"] = integer(match["line"], default=_MAX_LINE)
    elif remark:
        row.setdefault("hint", comment.strip())
    guard = guard.strip()
    frame = user_frame(traceback_frames(stack.splitlines()))
    row.update(located(frame))
    return {**row, "guard": guard, **classify_guard(guard)}


def classify_guard(guard: str) -> Row:
    """What kind of condition it is, about what, and the two values, as far as the text shows."""
    size = _SIZE.match(guard)
    if size:
        what = size["what"]
        index = integer(size["index"]) if size["index"] else MISSING
        row = {"cause": _SIZE_CAUSES.get(what, what), "subject": plain_name(size["subject"]), "dimension": index}
        return {**row, "expected": size["expected"].rstrip("."), "actual": (size["actual"] or "").rstrip(".")}
    cause = next((name for name, pattern in _CAUSES if pattern.search(guard)), "")
    equal = _EQUAL.match(guard)
    subject = plain_name(equal["left"]) if equal else _named(guard)
    if cause == "size":
        index_found = re.search(r"(?:size|stride)\(\)\[(\d+)\]|shape\[(\d+)\]", guard)
        index = integer(next(filter(None, index_found.groups()))) if index_found else MISSING
        tensor = re.match(
            r"(?:L\['([^']+)'\]|([A-Za-z_][\w.]*))\.(?:size\(\)|stride\(\)|shape)\[", guard.lstrip("0123456789 <=>")
        )
        subject = (tensor.group(1) or tensor.group(2)) if tensor else subject
        expected = equal["right"].strip() if equal else guard
        return {"cause": cause, "subject": subject, "dimension": index, "expected": expected}
    if not cause:
        cause = "value" if equal or re.match(r"^(not )?[\w.\[\]'\"]+$", guard) else "other"
    return {"cause": cause, "subject": subject, "expected": equal["right"].strip() if equal else ""}


def _named(guard: str) -> str:
    called = _CALL.match(guard)
    match = _SUBJECT.search(guard)
    if called:
        return plain_name(called["subject"] or called["counted"])
    return plain_name(match.group()) if match else ""


def plain_name(expression: str) -> str:
    """`L['self'].mode` -> `self.mode`: as the user's code has it."""
    return re.sub(r"\b[LG]\['([^']+)'\]", r"\1", expression.strip())
