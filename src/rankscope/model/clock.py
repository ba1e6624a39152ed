"""Puts the ranks' clocks on one axis: offsets per host, estimated from moments that several ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Array

MIN_SHARED = 3
# Watchdogs look every 100 ms, each at its own phase: two ranks notice one event up to that far apart on equal clocks.
POLL_NS = 100_000_000
_ROUNDS = 3


class Offsets(NamedTuple):
    """Per rank, in nanoseconds: what to subtract from its times, and how sure that is (MISSING: taken as it is)."""

    offset_ns: Array
    error_ns: Array


def estimate_offsets(hosts: Sequence[str], moments: Array) -> Offsets:
    """Compares when the hosts noticed the same events.

    `moments` has one row per rank and one column per shared event: the time at which the rank noticed it, or 0 where it
    did not. Ranks of one host share a clock, and the first of them to notice counts; a rank without a host has its own.
    Offsets are relative to the median host. Differences within a polling period need no wrong clock to explain them:
    they are left alone, as clocks of a cluster are usually kept together far better than that.
    """
    names = [host or f"#{position}" for position, host in enumerate(hosts)]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    host_of = np.array([number[name] for name in names], np.int64)
    noticed = _first_notice(moments, host_of, len(number))
    offsets = np.zeros(len(number))
    errors = np.full(len(number), float(MISSING))
    for _ in range(_ROUNDS if len(number) > 1 else 0):
        common = median(noticed - offsets[:, None])
        for host, times in enumerate(noticed):
            residual = times - offsets[host] - common
            residual = residual[~np.isnan(residual)]
            if len(residual) >= MIN_SHARED:
                middle = median(residual)
                # The mean, as polling shifts single notices by a whole period; but no outlier beyond that counts.
                usual = np.clip(residual - middle, -POLL_NS, POLL_NS)
                offsets[host] += middle + usual.mean()
                errors[host] = max(float(usual.std()), POLL_NS / 4) / np.sqrt(len(usual))
    offsets -= median(offsets)
    is_small = np.abs(offsets) <= np.maximum(POLL_NS, 4 * errors)
    offsets[is_small] = 0.0
    errors[is_small] = MISSING
    return Offsets(offsets.astype(np.int64)[host_of], errors.astype(np.int64)[host_of])


def _first_notice(moments: Array, host_of: Array, n_hosts: int) -> Array:
    """Per host the earliest notice of each event, relative to the first of all; NaN where it noticed none."""
    seen = moments > 0
    origin = int(moments[seen].min()) if seen.any() else 0
    times = np.where(seen, (moments - origin).astype(np.float64), np.inf)
    earliest = np.full((n_hosts, moments.shape[1]), np.inf)
    np.minimum.at(earliest, host_of, times)
    return np.where(np.isinf(earliest), np.nan, earliest)


def median(values: Array, axis: int = 0) -> Array:
    """The median of those that are not NaN, and NaN where there is none. (numpy's own imports all of numpy.ma.)"""
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)  # NaN goes last
    n_seen = np.count_nonzero(~np.isnan(ordered), axis=0)
    low, high = np.maximum(n_seen - 1, 0) // 2, n_seen // 2
    high = np.minimum(high, len(ordered) - 1)
    lower, upper = (np.take_along_axis(ordered, rows[None], 0)[0] for rows in (low, high))
    return np.where(n_seen > 0, (lower + upper) / 2, np.nan)
