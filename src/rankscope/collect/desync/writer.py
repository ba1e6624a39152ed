"""Keeps the position of each of this rank's groups in the job's store, from its own thread: only changes, and not
too often for a store that serves every rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rankscope.collect.desync import layout, recorded
from rankscope.collect.desync.calls import Call, Calls
from rankscope.collect.desync.connections import Connections
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.values import detail_key, encode_detail, encode_state, end_key, start_key

# One store takes the writes of all ranks: at most 2,000 of them write in a second, so 10,000 ranks every 5 seconds.
_SHORTEST_SECONDS = 0.25
_RANKS_PER_SECOND = 2000
_STILL_SECONDS = 1.0  # without a change before torch's recorder is read and details are told
_READ_AGAIN_SECONDS = 5.0
_TELL_AGAIN_SECONDS = 10.0
_TRY_AGAIN_SECONDS = 30.0
_HURRY_SECONDS = 2.0
_JOIN_SECONDS = 2.0


class _Seen(NamedTuple):
    """What a group looked like, and since when."""

    state: tuple[int, bool, int]
    since: float


class Writer:
    def __init__(
        self, calls: Calls, connections: Connections, speaker: layout.Rank, problem: Callable[[str], None]
    ) -> None:
        self.interval = max(_SHORTEST_SECONDS, speaker.world_size / _RANKS_PER_SECOND)
        self._calls = calls
        self._connections = connections
        self._speaker = speaker
        self._problem = problem
        self._written: dict[tuple[int, str], bytes] = {}
        self._seen: dict[int, _Seen] = {}
        self._detailed: dict[int, _Seen] = {}
        self._read_at = 0.0
        self._try_again_at = 0.0
        self._stop, self._hurry, self._has_hurried = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope desync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread: one that comes back from C++ while the interpreter ends could take the process down."""
        self._stop.set()
        self._hurry.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            is_urgent = self._hurry.wait(self.interval)
            self._hurry.clear()
            if not self._stop.is_set():
                self.write(is_urgent=is_urgent)
            self._has_hurried.set()

    def hurry(self) -> None:
        """Has the thread write all that is known, details included, and waits for it a moment."""
        if self._thread.is_alive():
            self._has_hurried.clear()
            self._hurry.set()
            self._has_hurried.wait(_HURRY_SECONDS)

    def write(self, *, is_urgent: bool = False) -> None:
        """Writes the changes to the store. A store that is down is left alone for a while."""
        if time.monotonic() < self._try_again_at and not is_urgent:
            return
        try:
            for group in tuple(self._calls.groups):
                self._write_group(group, is_urgent)
        except Exception as error:  # each kind of store has its own
            self._problem(f"the job's store does not answer: {type(error).__name__}: {error}")
            self._connections.drop()
            self._written.clear()
            self._try_again_at = time.monotonic() + _TRY_AGAIN_SECONDS

    def _write_group(self, group: Group, is_urgent: bool) -> None:
        state = _state(group)
        seen = self._seen.get(group.local_id)
        now = time.monotonic()
        if seen is None or seen.state != state:
            self._seen[group.local_id] = seen = _Seen(state, now)
        is_still = is_urgent or now - seen.since >= _STILL_SECONDS
        if is_still and self._may_know_more(group, now):
            recorded.adopt(self._calls)
            self._read_at = now
        latest = group.latest
        if latest is None:
            return
        values = state_values(group, latest)
        if is_still and self._needs_details(group, state, now):
            values[detail_key(group.name, group.rank)] = encode_detail(layout.detail(group, latest, self._speaker))
            self._detailed[group.local_id] = _Seen(state, now)
        self._send(group, values)

    def _needs_details(self, group: Group, state: tuple[int, bool, int], now: float) -> bool:
        """Details are written once for each state, and again now and then: the main thread may have moved on."""
        last = self._detailed.get(group.local_id)
        return last is None or last.state != state or now - last.since >= _TELL_AGAIN_SECONDS

    def _may_know_more(self, group: Group, now: float) -> bool:
        """Whether torch's recorder may have seen what the hooks did not."""
        latest = group.latest
        newest = group.newest_seq()
        is_behind = newest > (latest.seq if latest is not None else 0)
        is_open = latest is not None and latest.is_pending and (latest.number < 0 or not latest.is_on_cpu)
        if not (is_behind or is_open):
            return False
        return now - self._read_at >= (_STILL_SECONDS if is_behind else _READ_AGAIN_SECONDS)

    def _send(self, group: Group, values: dict[str, bytes]) -> None:
        changed = {key: value for key, value in values.items() if self._written.get((group.local_id, key)) != value}
        if not changed:
            return
        store = self._connections.store_of(group)
        if store is None:
            return
        if store.has_extended_api():
            store.multi_set(list(changed), list(changed.values()))
        else:
            for key, value in changed.items():
                store.set(key, value)
        self._written.update({(group.local_id, key): value for key, value in changed.items()})


def state_values(group: Group, latest: Call) -> dict[str, bytes]:
    """A transfer between two ranks goes by the number of the collective before it, as its own means nothing to others.
    While it waits, that collective is the last one that ended.
    """
    values = {start_key(group.name, group.rank): encode_state(latest.seq, layout.op_name(latest))}
    ended: Any = latest if latest.ended_ns else group.finished
    if ended is not None:
        values[end_key(group.name, group.rank)] = encode_state(ended.seq, layout.op_name(ended))
    return values


def _state(group: Group) -> tuple[int, bool, int]:
    latest = group.latest
    number = latest.created_ns if latest is not None else 0
    return number, latest is not None and latest.is_pending, group.newest_seq()
