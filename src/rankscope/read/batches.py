"""Which files are read together: small traces that share the statements of the database cost what their events cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rankscope.read.cache import is_stored
from rankscope.read.files import Source
from rankscope.read.remote import is_url

Claim = tuple[Source, str]  # the file and the module name of its reader
_BATCH_BYTES = 32 << 20  # of text: twice as much saved little time and took 70 MB more
_TEXT_PER_BYTE = {".gz": 10, ".zst": 10}


def plan_batches(claims: Sequence[Claim], n_jobs: int) -> list[list[Claim]]:
    """All claims, in batches that as many processes can share; a file that is large or needs no reading is alone."""
    batches: list[list[Claim]] = []
    together: dict[str, list[Claim]] = {}
    for claim in claims:
        if _is_joinable(claim):
            together.setdefault(claim[1], []).append(claim)
        else:
            batches.append([claim])
    for alike in together.values():
        batches.extend(_equal_batches(alike, n_jobs))
    return batches


def _equal_batches(claims: Sequence[Claim], n_jobs: int) -> list[list[Claim]]:
    n_bytes = sum(map(_text_bytes, claims))
    n_batches = max(n_jobs, -(-n_bytes // _BATCH_BYTES))
    batches: dict[int, list[Claim]] = {}
    n_taken = 0
    for claim in claims:
        middle = n_taken + _text_bytes(claim) // 2
        batches.setdefault(middle * n_batches // n_bytes, []).append(claim)
        n_taken += _text_bytes(claim)
    return list(batches.values())


def _is_joinable(claim: Claim) -> bool:
    source, module = claim
    return (
        source.remote is None  # fetching it again, should another one be bad, takes longer than statements
        and hasattr(sys.modules[module], "read_together")
        and 0 < _text_bytes(claim) < _BATCH_BYTES // 2
        and not is_url(source.workspace)
        and not is_stored(source.workspace)
    )


def _text_bytes(claim: Claim) -> int:
    source, _ = claim
    return source.n_bytes * _TEXT_PER_BYTE.get(source.path.suffix, 1)
