"""H139: NCCL itself reports that a connection between two hosts broke."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankscope.analyze.logs.events import Event
from rankscope.analyze.logs.links import Link, common_end, links_of
from rankscope.analyze.logs.wording import finding, of_cause
from rankscope.analyze.registry import rule
from rankscope.model.finding import Action, Finding, count_noun
from rankscope.model.tables import Trace

_STATUS = {
    4: "local protection error: memory that is not registered, or was freed",
    10: "remote access error: memory of the peer that is not registered, or was freed",
    12: "retries exceeded: the peer did not answer",
    13: "the receiver was not ready",
}


@rule("H139", "log-network", needs=("log_events",))
def log_network(trace: Trace) -> Iterator[Finding]:
    """NCCL reports that a connection between two hosts broke, and no rank failed before that.

    What it means: the network adapter completed a transfer with an error, or failed. The ranks on both
    ends stop, and all others wait for them.

    Why it happens: a link, a switch or an adapter; the peer's host or process ended without a message; at the first
    collective, the configuration (interface, GID index, routes).

    What to do: look at the log of the peer first. If its ranks only lost the connection, too, check the link between
    the hosts that the finding names. A host that all broken connections have in common is the first suspect.

    What could fool it: if the log of the peer is missing, its process may have ended for another reason.
    """
    for verdict in of_cause(trace, "network"):
        links = links_of(verdict.events)
        suspect = common_end(links)
        if suspect:
            title = f"NCCL lost {count_noun(len(links), 'connection')}, all of them with {suspect}"
        elif len(links) == 1:
            title = f"NCCL lost the connection between {links[0].host} and {links[0].peer}"
        elif links:
            title = f"NCCL lost {count_noun(len(links), 'connection')} between different hosts"
        else:
            title = "a network adapter reports an error"
        action: Action = "restart-without" if suspect else "restart"
        shown = tuple(f"{link.host} - {link.peer}" for link in links[:8])
        yield finding(
            verdict,
            title,
            certain=_meanings(verdict.events),
            likely=("a link, a switch or an adapter failed, or the peer's host or process ended",),
            notes=(f"connections: {', '.join(shown)}",) if len(links) > 1 else (),
            advice=f"test {suspect} before it is used again" if suspect else _advice(links),
            action=action,
            hosts=(suspect,) if suspect else (),
        )


def _meanings(events: Iterable[Event]) -> tuple[str, ...]:
    numbers = sorted({int(event.fields["status"]) for event in events if "status" in event.fields})
    return tuple(f"status {number} ({_STATUS[number]})" for number in numbers if number in _STATUS)


def _advice(links: list[Link]) -> str:
    where = f" ({links[0].host}, {links[0].peer})" if len(links) == 1 else ""
    return f"look at the log of the peer, then check the link between the hosts{where}: ibstat, dmesg"
