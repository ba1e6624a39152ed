"""Words that the findings about compile logs share."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.model.finding import count_noun, format_duration

_MAX_TEXT = 160
_MAX_VALUES = 6


def shortened(text: str, limit: int = _MAX_TEXT) -> str:
    """One line, with the middle cut out if it is long: both ends say more than the beginning alone."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def first_line(text: str, limit: int = _MAX_TEXT) -> str:
    return shortened(next((line for line in text.splitlines() if line.strip()), ""), limit)


def listed(values: Iterable[str], limit: int = _MAX_VALUES) -> str:
    """Distinct values in the order they came: 2, 3, 4, ... (12 values)."""
    distinct = list(dict.fromkeys(value for value in values if value))
    if len(distinct) <= limit:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:limit])}, ... ({len(distinct)} values)"


def times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count:,} times"


def cost_on(cost_ns: int, n_ranks: int) -> str:
    """What a rank lost; if there are several, the one that lost most."""
    return f"{format_duration(cost_ns)} on the slowest rank" if n_ranks > 1 else format_duration(cost_ns)


def most(counts: dict[int, int]) -> int:
    """The largest value of any rank."""
    return max(counts.values(), default=0)


def ranks_of(keys: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in set(keys) if rank >= 0))


def run_note(run: int, runs: Iterable[int]) -> tuple[str, ...]:
    """Which run of the job it is, if the capture holds several."""
    n_runs = len(set(runs))
    return (f"this is run {run} of the {count_noun(n_runs, 'run')} in this capture, counting from 0",) * (n_runs > 1)
