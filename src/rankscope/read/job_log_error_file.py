"""The error.json that torchrun keeps for each process that ended with an exception (@record)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING
from rankscope.read.job_log_lines import Line

_NAME = re.compile(r"(?:^|[/\\!])error\.json$")
_MAX_BYTES = 1 << 22
_HINT = "the process ended while writing it: the traceback is in its stderr.log, too"


def is_error_file(head: bytes, name: str) -> bool:
    return bool(_NAME.search(name)) and head.lstrip()[:1] == b"{" and b'"message"' in head


def error_lines(content: bytes) -> Iterator[Line]:
    """The traceback as the process would have printed it; nobody caught it, or there would be no file."""
    if len(content) > _MAX_BYTES:
        raise BadFileError("is larger than any traceback", _HINT)
    try:
        message = msgspec.json.decode(content, type=dict[str, Any]).get("message")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFileError("is not valid JSON", _HINT) from error
    moment_ns = MISSING
    text = message if isinstance(message, str) else ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        details = extra if isinstance(extra, dict) else {}
        text = str(details.get("py_callstack") or message.get("message") or "")
        stamp = str(details.get("timestamp", ""))
        moment_ns = int(stamp) * 10**9 if stamp.isdecimal() and len(stamp) < 11 else MISSING
    for line in text.splitlines():
        yield Line(line, time_ns=moment_ns, is_dated=True, is_zoned=True, is_hooked=True)
