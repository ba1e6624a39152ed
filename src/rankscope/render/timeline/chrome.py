"""Chrome's trace format: how events are put into a file, and how SQL writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from rankscope.model.sql import quote_text

if TYPE_CHECKING:
    from typing import BinaryIO

# The clock of the trace from which a row of `e` is.
JOIN_CLOCK = "LEFT JOIN profile_clocks AS c ON c.file_id = e.file_id AND c.rank IS NOT DISTINCT FROM e.rank"
# Perfetto takes names as of time 0, and shows processes in the order in which it meets them: names have to be first.
LEAD_NS = 1000
ROWS_AT_ONCE = 10_000  # single writes would cost more than the compression


class EventFile:
    """The events of one file, written as they come. `tail` is what is only known at the end."""

    def __init__(self, out: BinaryIO, head: Mapping[str, Any]) -> None:
        self.n_events = 0
        self._out = out
        out.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[')

    def write(self, lines: Sequence[str]) -> None:
        if lines:
            self._out.write(((",\n" if self.n_events else "\n") + ",\n".join(lines)).encode())
            self.n_events += len(lines)

    def write_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        left = iter(events)
        while batch := [msgspec.json.encode(event).decode() for event in islice(left, ROWS_AT_ONCE)]:
            self.write(batch)

    def close(self, tail: Mapping[str, Any] | None = None) -> None:
        self._out.write(b"\n]" + (b"," + msgspec.json.encode(tail)[1:] if tail else b"}") + b"\n")


def label(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    """An event that says something about a process or a thread."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def common_clock(column: str) -> str:
    """A time on the clock that all ranks share, `c` being profile_clocks. What lay within another span still does."""
    drifted = f"CASE WHEN isfinite(c.drift_ppb) THEN round(c.drift_ppb / 1e9 * ({column} - c.at_ns))::BIGINT END"
    return f"({column} - coalesce(c.offset_ns, 0) - coalesce({drifted}, 0))"


def microseconds(nanoseconds: str) -> str:
    """SQL: a number of microseconds with all its digits, of nanoseconds that are not negative."""
    return f"(({nanoseconds}) // 1000)::VARCHAR || '.' || lpad((({nanoseconds}) % 1000)::VARCHAR, 3, '0')"


def json_text(value: str) -> str:
    """SQL: a text as JSON; NULL where it is empty."""
    return f"to_json(nullif({value}, ''))::VARCHAR"


def json_members(numbers: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """SQL: the members of a JSON object. What is NULL or empty is left out."""
    written = {name: f"({value})::VARCHAR" for name, value in numbers.items()}
    written |= {name: json_text(value) for name, value in texts.items()}
    members = [f"{quote_text(msgspec.json.encode(name).decode() + ':')} || {value}" for name, value in written.items()]
    return f"concat_ws(',', {', '.join(members)})" if members else "''"
