"""The command line that all jobs share: where the dumps go, and which rank goes wrong in which way."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

FAULTY_STEP = 7


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int

    def is_here(self, kind: str) -> bool:
        return self.kind == kind and self.rank == dist.get_rank()

    def strikes(self, kind: str, step: int) -> bool:
        return step == FAULTY_STEP and self.is_here(kind)


@dataclass(frozen=True)
class JobOptions:
    dumps: Path
    fault: Fault
    collective_timeout: timedelta | None


def parse_job_options() -> JobOptions:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--culprit", type=int, default=-1)
    parser.add_argument("--collective-timeout", type=lambda text: timedelta(seconds=float(text)), help="in seconds")
    given = parser.parse_args()
    return JobOptions(given.dumps, Fault(given.fault, given.culprit), given.collective_timeout)
