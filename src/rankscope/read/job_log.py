"""What a job printed -> the table log_events: one row per message that says how it went wrong.

A log is searched in blocks for a dozen words, one of which is in every message of interest. Only lines that have one
are looked at, with the lines that belong to them; training output costs no more than the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.read.files import Source
from rankscope.read.job_log_error_file import is_error_file
from rankscope.read.job_log_scan import JobLog

NAME = "job_log"
ORDER = 4
NAMES_TELL_RANK = False

_SNIFFED = re.compile(
    rb"Traceback \(most recent call last\):|Watchdog caught collective|ProcessGroup[A-Z]\w*\.cpp:\d"
    rb"|torch\.distributed\.|slurmstepd: error|srun: error|NVRM: Xid|NCCL (?:INFO|WARN) |ChildFailedError"
    rb"|^\[(?:rank|default)\d{1,9}\]:",
    re.MULTILINE,
)
# Names of captured output without an extension; torch_logs looks through all that end with .log, .txt, .out and .err.
_TEXT_NAME = re.compile(r"(?:^|/)(?:stdout|stderr|output|console|slurm-\d{1,12})(?:[._-][\w-]{0,80})?$", re.IGNORECASE)
_KEPT_NAME = re.compile(r"(?:^|/)output_host_[\w-]{1,80}(?:\.gz)?$")  # by `rankscope record`, beside all else
_HINT = "give the output of the job: what its ranks and the launcher wrote to stdout and stderr"
_CONTROLS = bytes([*range(9), *range(14, 27)])


def sniff(head: bytes, name: str) -> bool:
    if (is_kept(name) and head) or is_error_file(head, name):
        return True
    if not head or not _is_text(head) or head.lstrip()[:2] in (b'{"', b"[{"):
        return False
    from rankscope.read import compile_log, desync, metric_log, thread_stacks, torch_logs  # which read this way too

    if not (_SNIFFED.search(head) or _TEXT_NAME.search(name)):
        return False
    return not any(other.sniff(head, name) for other in (compile_log, thread_stacks, desync, torch_logs, metric_log))


def is_kept(name: str) -> bool:
    """Output that `rankscope record` kept: its stacks, reports and compile messages are in files of their own."""
    return bool(_KEPT_NAME.search(name))


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and len(head.translate(None, _CONTROLS)) * 50 >= len(head) * 49


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it printed anything")
    log = JobLog(source)
    if is_error_file(source.head(), source.shown):
        log.scan_error_file()
        problem = ""
    else:
        problem = log.scan_file()
    events = log.tables()
    reports = [] if problem or is_kept(source.shown) else list(log.reports())
    is_told = bool(reports) or log.has_messages
    if not is_told and (problem or not _TEXT_NAME.search(source.shown)):
        raise BadFileError(problem or "has no message about a failure", _HINT)
    yield from events
    yield from reports
    row = {**source.file_columns(), "source": NAME, "status": "read"}
    if problem:
        row.update(status="damaged", problem=problem, hint="copy it again if the original is complete")
    elif not is_told and not is_kept(source.shown):
        row.update(status="ignored", problem="is text without a message about a failure")
    yield Table.from_rows("files", [row])


def in_output(source: Source) -> Iterator[Table]:
    """The events of a text, which may be another reader's file: nothing where there are none."""
    log = JobLog(source)
    log.scan_file()  # whoever reads the file itself says what is wrong with it
    yield from log.tables()
