"""Connections between hosts that NCCL reports as broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rankscope.analyze.logs.events import Attempt, Event

_FLUSHED = 5  # follows an earlier error of the same connection


class Link(NamedTuple):
    host: str
    peer: str


def broken_links(attempt: Attempt) -> list[Event]:
    """The first errors of connections, without those that only follow them."""
    return [event for event in attempt.of("network") if event.fields.get("status") != _FLUSHED]


def links_of(events: Iterable[Event]) -> list[Link]:
    named = {Link(event.host, str(event.fields.get("peer", ""))) for event in events}
    return sorted(link for link in named if link.host and link.peer)


def common_end(links: list[Link]) -> str:
    """The host or address that all broken connections have; empty where one connection broke, or several ends fit."""
    counts = Counter(end for link in links for end in set(link))
    ends = [end for end, count in counts.items() if count == len(links)]
    return ends[0] if len(links) > 1 and len(ends) == 1 else ""
