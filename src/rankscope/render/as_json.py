"""The report as JSON, for programs. The keys are the records' own; docs/ holds their schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from rankscope.model.finding import Report
from rankscope.render import Options

EXTENSION = "json"
# JSON itself escapes only the controls below space. Pure ASCII suits every stream, and no terminal obeys it.
_NOT_ASCII = re.compile(r"[^\x00-\x7e]+")


def render(report: Report, options: Options) -> Iterator[str]:
    yield dumps(msgspec.to_builtins(report, enc_hook=_plain_value))


def dumps(value: Any) -> str:
    """Indented JSON in ASCII, safe to print anywhere."""
    try:
        encoded = msgspec.json.encode(value, enc_hook=_plain_value)
    except UnicodeEncodeError:  # a dump may hold lone surrogates, which no UTF-8 text can
        encoded = msgspec.json.encode(_without_surrogates(value), enc_hook=_plain_value)
    text = msgspec.json.format(encoded, indent=2).decode()
    return _NOT_ASCII.sub(_as_escapes, text)


def schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    described = msgspec.json.schema(Report)
    finding = described["$defs"]["Finding"]
    for name in ("code", "rule"):  # in Python they are filled in last; in JSON they are always there
        del finding["properties"][name]["default"]
        finding["required"].append(name)
    finding["required"].sort(key=list(finding["properties"]).index)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described}


def _as_escapes(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _plain_value(value: Any) -> Any:
    """Facts come from columns, so they may be numpy's numbers and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a finding holds a {type(value).__name__}, which has no JSON form")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]
    return value
