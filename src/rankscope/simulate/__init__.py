"""Simulates a distributed training job and its Flight Recorder dumps, with a known fault or without one."""

from __future__ import annotations

from rankscope.simulate.simulation import Simulation, simulate
from rankscope.simulate.spec import FAULT_HELP, FAULTS, Fault, JobSpec, Mesh, Noise, Truth

__all__ = ["FAULTS", "FAULT_HELP", "Fault", "JobSpec", "Mesh", "Noise", "Simulation", "Truth", "simulate"]
