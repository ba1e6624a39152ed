"""Simulates a training job on GPUs and the profiler traces of its ranks, with a known fault or without one.

spec, fault, noise   what is asked for
operators            the kernels of the model and how long they take
program, schedule    what the host of a rank does in a step
mesh, fault, run     the groups, and the conditions of the run
device, engine       when everything happens
measure, truth       what is known about it
layout, page, numbering, collective_args, events, document    how the profiler writes it down
simulation           all of it together
"""

from __future__ import annotations

from rankscope.simulate.profiler.layout import LAYOUTS
from rankscope.simulate.profiler.numbering import Numbering
from rankscope.simulate.profiler.simulation import ProfileSimulation, simulate_profile
from rankscope.simulate.profiler.spec import (
    PROFILE_FAULT_HELP,
    PROFILE_FAULTS,
    ProfileFault,
    ProfileNoise,
    ProfileSpec,
)
from rankscope.simulate.profiler.truth import CollectiveTruth, HostClock, ProfileTruth, RankStep

__all__ = [
    "LAYOUTS",
    "PROFILE_FAULTS",
    "PROFILE_FAULT_HELP",
    "CollectiveTruth",
    "HostClock",
    "Numbering",
    "ProfileFault",
    "ProfileNoise",
    "ProfileSimulation",
    "ProfileSpec",
    "ProfileTruth",
    "RankStep",
    "simulate_profile",
]
