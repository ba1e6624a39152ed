"""Simulates a distributed training job and its Flight Recorder dumps, with known faults or without one."""

from __future__ import annotations

from rankscope.simulate.folders import Part, write_parts
from rankscope.simulate.simulation import Simulation, simulate
from rankscope.simulate.spec import FAULT_HELP, FAULTS, Fault, JobSpec, Mesh, Noise, Truth

__all__ = [
    "FAULTS",
    "FAULT_HELP",
    "Fault",
    "JobSpec",
    "Mesh",
    "Noise",
    "Part",
    "Simulation",
    "Truth",
    "simulate",
    "write_parts",
]
