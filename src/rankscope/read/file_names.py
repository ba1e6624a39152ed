"""What the name of a file says: rank and host. Names of members of an archive may be of any length and content."""

from __future__ import annotations

import re

from rankscope.model.numbers import UNKNOWN, rank_number

COMPILE_LOG_NAME = re.compile(r"dedicated_log_torch_trace_(?:rank_(?P<rank>[0-9]{1,9})(?=[_.]))?", re.IGNORECASE)
_SUFFIXES = frozenset(
    ("json", "jsonl", "txt", "log", "pickle", "pkl", "pt", "bin", "trace", "dump", "sqlite", "nsys-rep", "gz", "zst")
)
_MAX_SUFFIXES = 4  # of one name, such as rank_3.pt.trace.json.gz
_NUMBER = re.compile("[0-9]+")
# Where a name says which of its numbers is the rank, the others are a time, a process or a step.
_CALLED_RANK = re.compile(r"rank[_.-]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_NO_NAME = re.compile(r"[0-9_. -]*")
_TIME = re.compile(r"[0-9]{8}")
# Words that the names of traces are made of. What is left of a name without them and the rank is the host.
_PREFIX_WORDS = re.compile(
    r"((torchcomms_)?fr|comm_lib|[nrx]ccl|nccl2|hccl|gloo|ucc|mpi|rankscope|torchcomms|kineto)?_?"
    r"(trace_rank|trace|clean|rank|dump)"
    r"|torch_(et|logs)|stacks|metrics|desync|nsys",
    re.IGNORECASE,
)


def base_name(shown: str) -> str:
    return shown.replace("!", "/").rsplit("/", 1)[-1]


def rank_and_host(shown: str, prefix: str | None = None) -> tuple[int, str] | None:
    """None when a forced prefix does not fit or no rank follows it."""
    name = base_name(shown)
    compile_log = COMPILE_LOG_NAME.search(name)
    if compile_log and prefix is None:  # what follows the rank is random, and may hold digits
        return rank_number(compile_log["rank"]), ""
    name = _stem(name)
    before = ""
    if prefix is not None:
        before, separator, name = name.partition(prefix)  # anywhere: names may begin with the host or the job
        if not separator:
            return None
    numbers = [(match.start(), match.end()) for match in _NUMBER.finditer(name)]
    numbers = [(start, end) for start, end in numbers if rank_number(name[start:end]) != UNKNOWN]
    if not numbers:
        return None if prefix is not None else (UNKNOWN, "")
    called = next((match.span(1) for match in _CALLED_RANK.finditer(name) if match.span(1) in numbers), None)
    start, end = called or numbers[-1]
    rest = before + name[:start] + name[end:]
    host = _PREFIX_WORDS.sub("", rest, count=1).strip("_-. ")
    return rank_number(name[start:end]), "" if _NO_NAME.fullmatch(host) and _TIME.search(host) else host


def _stem(name: str) -> str:
    """Without the endings that say a format, of which there may be several."""
    for _ in range(_MAX_SUFFIXES):
        stem, dot, suffix = name.rpartition(".")
        if not dot or not stem or suffix.lower() not in _SUFFIXES:
            break
        name = stem
    return name
