"""What a file should be, judging by its name or its place: if it is something else, it is damaged, not foreign."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankscope.read.file_names import base_name

PARTS = "manifest.d"  # folder of what each rank tells about itself, of which manifest.json is made


class Expected(NamedTuple):
    reader: str
    what: str


# Names that the collector and torch give, and which of the readers takes them.
_NAMES = (
    (re.compile(r"desync_[0-9]{1,9}\.txt"), Expected("desync", "a desync report")),
    (re.compile(r"stacks_[0-9]{1,9}\.txt"), Expected("thread_stacks", "stacks")),
    (re.compile(r"kineto_(?:trace|clean)_[0-9]{1,9}\.json(?:\.gz)?"), Expected("kineto", "a profile")),
    (re.compile(r"torch_et_[0-9]{1,9}\.json(?:\.gz)?"), Expected("execution_trace", "an execution trace")),
    (re.compile(r"nsys_[0-9]{1,9}\.sqlite"), Expected("nsys", "a trace of Nsight Systems")),
)
# Names that others use as well: only an empty file, or the mark of ours, shows that it should be ours.
_SHARED_NAMES = (
    (re.compile(r"manifest\.json"), Expected("manifest", "the manifest of a run")),
    (re.compile(r"metrics_[0-9]{1,9}\.jsonl"), Expected("metrics", "training metrics")),
    (re.compile(r"host_[0-9]{1,9}\.jsonl"), Expected("host_samples", "samples of a host")),
)
_MARK = re.compile(rb"schema\"\s?:\s?\"(?:rankscope\.)?(manifest|metrics|host)")


def expected(shown: str, head: bytes) -> Expected | None:
    name = base_name(shown)
    for pattern, what in _NAMES:
        if pattern.fullmatch(name):
            return what
    is_ours = not head or _MARK.search(head[:200]) is not None
    if not is_ours:
        return None
    if f"/{PARTS}/" in shown.replace("!", "/") and name.endswith(".json"):
        return _SHARED_NAMES[0][1]
    return next((what for pattern, what in _SHARED_NAMES if pattern.fullmatch(name)), None)
