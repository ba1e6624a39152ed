"""Matches collectives by their position in the step, if every member made the same calls in it.

This does not need ends that are close: with gloo they are many milliseconds apart on a busy machine, and without
sequence numbers calls of one kind follow each other faster than ends may differ. It is trusted if all members agree in
nearly all steps, and if calls matched this way also ran at the same time: a trace with only a sample of the calls may
have as many of them per step as another, but hardly in many steps or on many ranks.
"""

from __future__ import annotations

import numpy as np

from rankscope.analyze.comm.alignment import TOLERANCE_NS, Track, can_be_one
from rankscope.analyze.comm.rows import CommRows, extremes, numbered, occurrence
from rankscope.model.clock import MIN_SHARED, median
from rankscope.model.tables import MISSING, Array

_MOST_STEPS = 0.9
_MOST_CALLS = 0.8
_MIN_AGREEING = 6  # steps of members beside the first that agree with it
_NOWHERE_NS = 1e18


def match_by_step(rows: CommRows, event: Array, clock: Array) -> Array:
    """Per row the number of its logical call where the steps show it, else what `event` says."""
    is_open = (event == MISSING) & (rows.domain != MISSING)
    chosen = _in_steps(rows, np.flatnonzero(is_open & (rows.is_on_host | ~rows.is_p2p)))
    matched = event.copy()
    if not len(chosen):
        return matched
    domain, step, process = rows.domain[chosen], rows.step[chosen], rows.process[chosen]
    turn = occurrence(process, step, domain)
    _, number = numbered(domain, step, turn)
    is_good = _agreeing_steps(rows.signature[chosen], number, (domain, step, process))
    is_good &= np.isin(domain, _good_domains(rows, chosen, is_good))
    chosen, number = chosen[is_good], number[is_good]
    kept = _ran_together(rows, chosen, number, clock)
    matched[chosen[kept]] = number[kept] + (int(event.max(initial=-1)) + 1)
    return matched


def _in_steps(rows: CommRows, chosen: Array) -> Array:
    """Calls of steps; those of processes that mark none, all together."""
    marking = np.unique(rows.process[rows.step != MISSING])
    in_steps: Array = chosen[(rows.step[chosen] != MISSING) | ~np.isin(rows.process[chosen], marking)]
    return in_steps


def _agreeing_steps(signature: Array, number: Array, columns: tuple[Array, Array, Array]) -> Array:
    """Per row: all processes that made calls of this domain in this step made the same ones in the same order."""
    lowest, highest = extremes(number, signature)
    domain, step, process = columns
    _, run = numbered(domain, step)
    one_per_process, _ = numbered(run, process)
    n_processes = np.bincount(run[one_per_process])[run]
    differs = (lowest != highest)[number] | (np.bincount(number)[number] != n_processes)
    good: Array = (np.bincount(run, differs) == 0)[run]
    return good


def _good_domains(rows: CommRows, chosen: Array, is_good: Array) -> Array:
    """Those in which nearly all steps agree; on the device so many that chance is ruled out."""
    domain, step, process = rows.domain[chosen], rows.step[chosen], rows.process[chosen]
    first, run = numbered(domain, step)
    step_is_good = is_good[first]
    one_per_process, _ = numbered(run, process)
    n_members = np.bincount(run[one_per_process])
    domains, of_step = np.unique(domain[first], return_inverse=True)
    of_step = of_step.reshape(-1)
    share = np.bincount(of_step, step_is_good) / np.bincount(of_step)
    n_agreeing = np.bincount(of_step, (n_members - 1) * step_is_good)
    is_enough = (n_agreeing >= _MIN_AGREEING) | np.isin(domains, domain[rows.is_on_host[chosen]])
    good: Array = domains[(share >= _MOST_STEPS) & is_enough]
    return good


def _ran_together(rows: CommRows, chosen: Array, number: Array, clock: Array) -> Array:
    """The rows of domains whose calls nearly all can be one, once clocks are moved by their median difference."""
    if not len(chosen):
        return np.zeros(0, bool)
    _, first, back = np.unique(number, return_index=True, return_inverse=True)
    reference = chosen[first][back.reshape(-1)]
    origin = int(rows.start_ns.min())
    start, end = ((times - origin).astype(np.float64) for times in (rows.start_ns, rows.end_ns))
    shift = _shifts(rows, chosen, reference, clock)
    close = np.zeros(len(chosen), bool)  # to run together is enough
    known = Track(rows.signature[reference], start[reference], end[reference], close)
    moved = Track(rows.signature[chosen], start[chosen] - shift, end[chosen] - shift, close)
    fits = can_be_one(known, moved, TOLERANCE_NS)
    is_other = chosen != reference
    domain = rows.domain[chosen]
    n_fitting, n_others = np.bincount(domain, fits & is_other), np.bincount(domain, is_other)
    is_trusted = (n_others > 0) & (n_fitting >= _MOST_CALLS * n_others)
    kept: Array = is_trusted[domain]
    return kept


def _shifts(rows: CommRows, chosen: Array, reference: Array, clock: Array) -> Array:
    """By how much the ends of a process lie behind those of a reference on another clock, in each domain."""
    shift = np.zeros(len(chosen))
    other = np.flatnonzero(clock[chosen] != clock[reference])
    _, pair = numbered(rows.domain[chosen[other]], rows.process[chosen[other]])
    apart = (rows.end_ns[chosen[other]] - rows.end_ns[reference[other]]).astype(np.float64)
    order = np.argsort(pair, kind="stable")
    for same_pair in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1) if len(order) else ():
        # Few calls would be moved to where they fit.
        shift[other[same_pair]] = median(apart[same_pair]) if len(same_pair) >= MIN_SHARED else _NOWHERE_NS
    return shift
