"""Cutting a trace into parts: whatever the size of the parts and the layout of the text, no event is lost or torn."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import BadFileError
from rankscope.read import event_stream
from rankscope.read.event_stream import EventStream, whole_events

# Text that looks like what the cutter looks for.
_TRAPS = ['}, {"ph": "X"', "]", '"traceEvents": [', "\\", '"', "\n  },\n  {", "名"]
_VALUES = st.one_of(st.integers(), st.sampled_from(_TRAPS), st.lists(st.integers(), max_size=3))
_EVENTS = st.lists(
    st.fixed_dictionaries({"ph": st.sampled_from(["X", "i", "M"]), "name": st.sampled_from(_TRAPS), "args": _VALUES}),
    max_size=30,
)


def read_all(text: str) -> tuple[list[Any], EventStream]:
    stream = EventStream(io.BytesIO(text.encode()))
    parts = [b"".join(part) for part in stream]
    return [event for part in parts for event in json.loads(part)], stream


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PART_BYTES", 200)
    monkeypatch.setattr(event_stream, "_CHUNK_BYTES", 64)


@settings(deadline=None)
@given(_EVENTS, st.sampled_from([None, 2, 0]), st.booleans())
def test_no_event_is_lost_or_torn(events: list[Any], indent: int | None, is_late: bool) -> None:
    around = {"schemaVersion": 1, "note": '"traceEvents" is below'}
    behind = {"baseTimeNanoseconds": 5, "more": [{"a": 1}, {"a": 2}]}
    document = {**around, "traceEvents": events, **behind} if is_late else {**around, **behind, "traceEvents": events}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "PART_BYTES", 200)
        patch.setattr(event_stream, "_CHUNK_BYTES", 64)
        found, stream = read_all(json.dumps(document, indent=indent))
    assert found == events
    assert stream.around["baseTimeNanoseconds"] == 5
    assert stream.problem == ""


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("first", ["name", "ph", "cat"])
def test_events_may_begin_with_any_key(first: str) -> None:
    events = [{first: "X", "number": number, "ts": 1} for number in range(100)]
    stream = EventStream(io.BytesIO(json.dumps({"traceEvents": events}).encode()))
    parts = [json.loads(b"".join(part)) for part in stream]
    assert [event for part in parts for event in part] == events
    assert len(parts) > 10


@pytest.mark.usefixtures("small_parts")
def test_a_cut_text_gives_the_events_before_the_cut() -> None:
    events = [{"ph": "X", "number": number} for number in range(50)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    for cut in range(text.index("[") + 1, len(text) - 1):
        found, stream = read_all(text[:cut])
        assert found == events[: len(found)]
        assert len(json.dumps(events[: len(found) + 1])) + text.index("[") >= cut
        assert "truncated" in stream.problem


@pytest.mark.parametrize(("text", "problem"), [("", "is empty"), ('{"schemaVersion": 1}', "no traceEvents")])
def test_what_holds_no_events_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadFileError, match=problem):
        read_all(text)


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PART_BYTES", 200)
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 1 << 20)
    with pytest.raises(BadFileError, match="an event of more than 1 MB"):
        read_all('{"traceEvents": [{"ph": "' + "x" * (12 << 20))


def test_of_a_broken_part_the_events_that_are_whole_are_kept() -> None:
    broken = b'[{"ph": "X", "n": 1}, {"ph": "X", "n": oops}, {"ph": "X", "n": 3}, {"ph": "\\ud800"}]'
    assert json.loads(whole_events(broken)) == [{"ph": "X", "n": 1}, {"ph": "X", "n": 3}, {"ph": "\ufffd"}]
