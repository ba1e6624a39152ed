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
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    host_of = np.array([number[name] for name in names], np.int64)
    noticed = _first_notice(moments, host_of, len(number))
    offsets = np.zeros(len(number))
    errors = np.full(len(number), float(MISSING))
    for _ in range(_ROUNDS if len(number) > 1 else 0):
        common = _nanmedian_columns(noticed - offsets[:, None])
        for host, times in enumerate(noticed):
            residual = times - offsets[host] - common
            residual = residual[~np.isnan(residual)]
            if len(residual) >= MIN_SHARED:
                middle = np.median(residual)
                # The mean, as polling shifts single notices by a whole period; but no outlier beyond that counts.
                offsets[host] += np.clip(residual - middle, -POLL_NS, POLL_NS).mean() + middle
                errors[host] = max(float(residual.std()), POLL_NS / 4) / np.sqrt(len(residual))
    offsets -= np.median(offsets)
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


def _nanmedian_columns(values: Array) -> Array:
    """The median of each column over those that noticed; NaN where nobody did. (np.nanmedian imports numpy.ma.)"""
    ordered = np.sort(values, axis=0)  # NaN goes last
    n_seen = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    middle: Array = (ordered[np.maximum(n_seen - 1, 0) // 2, columns] + ordered[n_seen // 2, columns]) / 2
    return np.where(n_seen > 0, middle, np.nan)
