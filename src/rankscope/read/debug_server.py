"""torch's debug server of a running job: a frontend on rank 0, and a worker in every rank that does the work.

The workers are asked directly and side by side. Where they cannot be reached from here, as through a tunnel, the pages
of the frontend are taken instead: it asks the workers itself, but sends no call stacks.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

from rankscope.errors import InputError, UsageError
from rankscope.model.numbers import integer, is_number, rank_number
from rankscope.read.bounded_http import Address, NoAnswerError, fetch, parse_address

DEFAULT_PORT = 25999
CALLS, OWN_CALLS, STACKS = "calls", "own_calls", "stacks"  # what a worker can tell

MAX_WORKERS = 1 << 17
MAX_ANSWER_BYTES = 256 << 20  # the rings of real jobs take up to 10 MB
MAX_PAGE_BYTES = 1 << 30  # of all ranks
_MAX_SMALL_BYTES = 1 << 20
_CONNECTIONS = 32
_PATIENCE_S = 60.0  # how long the frontend waits for a worker that does not answer
_MAX_HOSTS = 64  # names that are looked up to see whether they are the host that was given
_MAX_PER_HOST = 64  # workers on one host
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # no answer is compressed: what a bomb unfolds to is never seen
NOT_FOLLOWED = "not contacted, as it is on another host than the one given: add --follow"
_SMALL_JOB = 64

_FRONTEND = b"Torch Distributed Debug Server"
_WORKER = b"torch.distributed.WorkerServer"
_STORED = re.compile(r"(?:^|[\s/])debug_server/rank(\d{1,9}): b['\"](http://[^'\"\s]{1,300})['\"]", re.MULTILINE)
_SECTION = re.compile(r"<h2>Rank (\d{1,9}): (http://[^<\s]{1,300}?)/handler/[^<\s]*</h2>")
_FAILED = re.compile(r"\s*<p>Failed to fetch: status=(\d+)</p>")


class _Question(NamedTuple):
    """One handler of a worker. Those that need the GIL do not answer while some code never releases it."""

    handler: str
    needs_python: bool = False
    query: str = ""


# By what they tell, in the order of asking; the first answer with calls in it is taken. Those with stacks come first.
# The collector of rankscope registers the handlers of its name.
_QUESTIONS: dict[str, tuple[_Question, ...]] = {
    CALLS: (
        _Question("dump_nccl_trace_pickle", needs_python=True),
        _Question("dump_nccl_trace_pickle", query="?includestacktraces=false"),
        _Question("torchcomms_fr_trace_json"),
        _Question("rankscope_recorder", needs_python=True),
        _Question("fr_trace_json"),
    ),
    STACKS: (_Question("dump_traceback", needs_python=True),),
    OWN_CALLS: (_Question("rankscope_trace", needs_python=True),),
}
_PAGES: dict[str, tuple[str, ...]] = {CALLS: ("/fr_trace_nccl_json", "/fr_trace_json"), STACKS: ("/stacks",)}
_AN_ENTRY = b"record_id"  # every entry of a dump has it


class Worker(NamedTuple):
    rank: int
    address: Address


class Job(NamedTuple):
    workers: tuple[Worker, ...]
    frontend: Address | None = None
    held_back: frozenset[Worker] = frozenset()  # named by a server, and on another host than the one given


class Reading(NamedTuple):
    """What one rank answered at one moment; `problems` say what is missing."""

    worker: Worker
    time_ns: int
    contents: Mapping[str, bytes]
    problems: tuple[str, ...] = ()
    is_reached: bool = True


# Finding the workers


def find_job(urls: Sequence[str], seconds: float, *, follow: bool = False) -> Job:
    """The workers behind the URLs: of a frontend, or of workers given one by one as URL or RANK=URL.

    Addresses on other hosts than those of the URLs are contacted only if they are to be followed.
    """
    frontend: Address | None = None
    workers: dict[int, Worker] = {}
    given: list[str] = []
    for position, text in enumerate(urls):
        told_rank, url = _split_rank(text)
        address = parse_address(url, DEFAULT_PORT)
        given.append(address.host)
        if _is_frontend(address, seconds):
            if frontend is not None:
                raise UsageError("two frontends given", "read one job at a time")
            frontend = address
            workers.update({worker.rank: worker for worker in _workers_of(address, seconds)})
        else:
            rank = told_rank if told_rank is not None else _own_rank(address, seconds)
            rank = position if rank is None else rank
            if rank in workers and workers[rank].address != address:
                raise UsageError(f"two workers given for rank {rank}", "specify the rank of each: RANK=URL")
            workers[rank] = Worker(rank, address)
    listed = tuple(workers[rank] for rank in sorted(workers))
    return Job(listed, frontend, frozenset() if follow else _not_of(given, listed))


def _not_of(given: Sequence[str], workers: Sequence[Worker]) -> frozenset[Worker]:
    """The workers on other hosts than those that were given, and more on one of them than it can have.

    A server may name any address: whoever runs this would knock at doors for it.
    """
    known = frozenset().union(*map(_addresses, dict.fromkeys(given)))
    seen: dict[str, bool] = {}
    kept: set[Worker] = set()
    for worker in workers:
        host = worker.address.host
        if host not in seen and len(seen) < _MAX_HOSTS:
            seen[host] = bool(_addresses(host) & known)
        if seen.get(host) and len(kept) < _MAX_PER_HOST * len(given):
            kept.add(worker)
    return frozenset(workers) - kept


def _addresses(host: str) -> frozenset[str]:
    """What a name stands for; this machine's own name stands for the loopback as well."""
    names = {host.lower()}
    with contextlib.suppress(OSError, UnicodeError):
        names |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    if names & {"127.0.0.1", "::1"} or host.lower() == socket.gethostname().lower():
        names |= {"127.0.0.1", "::1", socket.gethostname().lower()}
    return frozenset(names)


def _split_rank(text: str) -> tuple[int | None, str]:
    rank, equals, url = text.partition("=")
    return (integer(rank), url) if equals and is_number(rank) else (None, text)


def _is_frontend(address: Address, seconds: float) -> bool:
    try:
        content = fetch(address, "/", seconds=seconds, max_bytes=_MAX_SMALL_BYTES).content
    except NoAnswerError as error:
        raise InputError(
            f"{address.url}: {error}",
            "is the job running with its debug server on that port? rankscope record --debug-server PORT starts one",
        ) from error
    if _FRONTEND in content:
        return True
    if _WORKER in content:
        return False
    raise InputError(
        f"{address.url} is not torch's debug server",
        f"pass the address of its frontend: the host of rank 0, port {DEFAULT_PORT} by default",
    )


def _own_rank(address: Address, seconds: float) -> int | None:
    """The rank according to the collector in the worker; torch's own handlers do not know it."""
    try:
        reply = fetch(address, "/handler/rankscope_about", method="POST", seconds=seconds, max_bytes=_MAX_SMALL_BYTES)
        about = json.loads(reply.content) if reply.status == 200 else None
    except (NoAnswerError, ValueError, RecursionError):
        return None
    rank = about.get("rank") if isinstance(about, dict) else None
    return rank if type(rank) is int and 0 <= rank < 1 << 30 else None


def _workers_of(frontend: Address, seconds: float) -> list[Worker]:
    """The page of the store comes first: for the others the frontend waits until all workers have answered."""
    problem = ""
    for path, pattern, patience in (
        ("/tcpstore", _STORED, 0.0),
        ("/wait_counters", _SECTION, _PATIENCE_S),
        ("/stacks", _SECTION, _PATIENCE_S),
    ):
        try:
            reply = fetch(frontend, path, seconds=seconds + patience, max_bytes=MAX_PAGE_BYTES)
        except NoAnswerError as error:
            problem = f"{path}: {error}"
            continue
        if reply.status == 200:
            workers = list(_named_workers(_unescaped(reply.content), pattern))
            if workers:
                return workers
            problem = f"{path} lists no workers"
        else:
            problem = f"{path} answers with status {reply.status}"
    raise InputError(
        f"{frontend.url} does not list the addresses of the workers ({problem})",
        "pass the addresses of the workers themselves; the job prints them when its debug server starts",
    )


def _named_workers(page: str, pattern: re.Pattern[str]) -> Iterator[Worker]:
    for match in islice(pattern.finditer(page), MAX_WORKERS):
        with contextlib.suppress(UsageError):
            yield Worker(rank_number(match[1]), parse_address(match[2], 80))


# Asking them


def read_job(job: Job, seconds: float) -> Iterator[Reading]:
    """What every rank answers; each has `seconds` for all questions. Unreachable ranks come last."""
    from concurrent.futures import ThreadPoolExecutor

    unreached: list[Reading] = []
    n_reached = 0
    with ThreadPoolExecutor(min(_CONNECTIONS, max(len(job.workers), 1))) as pool:
        contacted = [worker for worker in job.workers if worker not in job.held_back]
        unreached += [Reading(each, time.time_ns(), {}, (NOT_FOLLOWED,), is_reached=False) for each in job.held_back]
        for reading in pool.map(lambda worker: read_worker(worker, seconds), contacted):
            if reading.is_reached:
                n_reached += 1
                yield reading
            else:
                unreached.append(reading)
    # Through its pages the frontend sends all ranks at once. Of a large job that is too much for the sake of a few.
    if unreached and job.frontend and (not n_reached or len(job.workers) <= _SMALL_JOB):
        yield from _read_pages(job.frontend, unreached, seconds)
    else:
        yield from unreached


def read_worker(worker: Worker, seconds: float) -> Reading:
    time_ns = time.time_ns()
    conversation = _Conversation(worker.address, time.monotonic() + seconds)
    try:
        known = _handler_names(worker.address, seconds)
    except NoAnswerError as error:
        return Reading(worker, time_ns, {}, (str(error),), is_reached=not error.is_unreachable)
    contents: dict[str, bytes] = {}
    for what, questions in _QUESTIONS.items():
        for question in questions:
            content = conversation.ask(question) if question.handler in known else None
            if content and _is_fuller(content, contents.get(what)):
                contents[what] = content
            if what == CALLS and _AN_ENTRY in contents.get(what, b""):
                break
    return Reading(worker, time_ns, contents, tuple(conversation.problems))


class _Conversation:
    """Questions to one worker, one after the other, within one limit of time."""

    def __init__(self, address: Address, deadline: float) -> None:
        self.problems: list[str] = []
        self._address, self._deadline = address, deadline
        self._is_python_silent = False

    def ask(self, question: _Question) -> bytes | None:
        left = (self._deadline - time.monotonic()) / 2  # so that time remains for the questions after a silent one
        if left <= 0 or (question.needs_python and self._is_python_silent):
            return None
        path = f"/handler/{question.handler}{question.query}"
        try:
            reply = fetch(self._address, path, method="POST", seconds=left, max_bytes=MAX_ANSWER_BYTES)
        except NoAnswerError as error:
            self._is_python_silent = self._is_python_silent or question.needs_python
            held = "; some code may be holding the GIL" if question.needs_python else ""
            self.problems.append(f"{question.handler}: {error}{held}")
            return None
        if reply.status != 200:
            self.problems.append(f"{question.handler} answers with status {reply.status}")
            return None
        if reply.content.startswith(_PACKED):
            self.problems.append(f"{question.handler} answers with compressed data, which was not unpacked")
            return None
        return reply.content


def _is_fuller(content: bytes, other: bytes | None) -> bool:
    """Whether to take an answer in place of another one, which may be without calls."""
    return other is None or (_AN_ENTRY in content and _AN_ENTRY not in other)


def _handler_names(address: Address, seconds: float) -> frozenset[str]:
    reply = fetch(address, "/handler/", seconds=seconds, max_bytes=_MAX_SMALL_BYTES)
    try:
        names = json.loads(reply.content) if reply.status == 200 else None
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list):
        raise NoAnswerError("is not a worker of torch's debug server")
    return frozenset(name for name in names if isinstance(name, str))


# The pages of the frontend


def _read_pages(frontend: Address, unreached: Sequence[Reading], seconds: float) -> Iterator[Reading]:
    answers: dict[str, dict[int, bytes]] = {}
    problems: list[str] = []
    time_ns = time.time_ns()
    for what, paths in _PAGES.items():
        for path in paths:
            try:
                reply = fetch(frontend, path, seconds=seconds + _PATIENCE_S, max_bytes=MAX_PAGE_BYTES)
            except NoAnswerError as error:
                problems.append(f"{path} of the frontend: {error}")
                continue
            if reply.status != 200:
                problems.append(f"{path} of the frontend answers with status {reply.status}")
                continue
            for rank, content in page_sections(reply.content).items():
                if _is_fuller(content, answers.setdefault(what, {}).get(rank)):
                    answers[what][rank] = content
    for reading in unreached:
        rank = reading.worker.rank
        contents = {what: of_ranks[rank] for what, of_ranks in answers.items() if rank in of_ranks}
        # What cannot be reached from here is no problem where the frontend could reach it.
        missing = () if contents.keys() == _PAGES.keys() else (*reading.problems, *problems)
        yield Reading(reading.worker, time_ns, contents, missing, is_reached=bool(contents))


def page_sections(page: bytes) -> dict[int, bytes]:
    """The answer of each rank on a page. Ranks that failed have none, nor has one that the page's end cuts off."""
    text = _unescaped(page)
    starts = list(_SECTION.finditer(text))
    sections: dict[int, bytes] = {}
    for match, following in zip_longest(starts, starts[1:]):
        section = text[match.end() : following.start() if following else None]
        _, begins, shown = section.partition("<pre>")
        shown, ends, _ = shown.rpartition("</pre>")
        if begins and ends and not _FAILED.match(section):
            sections[rank_number(match[1])] = shown.encode("utf-8", "replace")
    return sections


def _unescaped(page: bytes) -> str:
    return html.unescape(page.decode("utf-8", "replace"))
