"""Flight Recorder dumps (pickle and JSON, versions 1.0 to 2.10) -> collectives, groups, counters and stacks.

They are torch's (NCCL, gloo, its hook for other backends), torchcomms' and our own recorder's, all of one layout.
"""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.numbers import MAX_ID, MAX_LONG, MAX_RANKS, integer, whole
from rankscope.model.tables import MISSING, Array, Table
from rankscope.read.files import Source
from rankscope.read.pickle_scan import FloodError
from rankscope.read.recorder_entries import entry_columns
from rankscope.read.recorder_shapes import plain_text
from rankscope.read.torchcomms import RECORDER as TORCHCOMMS
from rankscope.read.torchcomms import is_torchcomms, with_real_states
from rankscope.read.unpickle import BrokenPickleError, RefusedClassError, load_plain, refused, salvage_plain

NAME = "flight_recorder"
ORDER = 1

_DUMP_NAME = re.compile(r"(trace_rank|comm_lib_trace|nccl_trace|_dump_|^rank_|fr_trace)[^/]{0,200}\d", re.IGNORECASE)
_OTHER_FORMAT = re.compile(
    r"kineto|torch_et|torch_trace|\.(log|txt|out|err|stdout|stderr|html?|py|csv)(\.gz|\.zst)?$", re.IGNORECASE
)
_JSON_KEYS = (
    b'"pg_config"',
    b'"pg_status"',
    b'"entries"',
    b'"comm_lib_version"',
    b'"nccl_version"',
    b'"nccl_comm_state"',
)
_PROFILER_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')
_COUNTERS = ("last_enqueued", "last_started", "last_completed")
_NO_COUNTER = -(1 << 62)
_COUNT_COLLECTIVES = frozenset(("nccl", "rccl", "xccl", "hccl"))  # backends that record themselves, as NCCL's does
# What Ray Train writes in place of a dump that it could not take.
_NOT_TAKEN = b"[flight recorder unavailable: "
_NOT_TORCH = "it was not written by torch's recorder, or by a version newer than rankscope supports"
CUT_HINT = "the process ended while writing it, or the copy is incomplete: copy it again if the original is complete"


def sniff(head: bytes, name: str) -> bool:
    if head.startswith(b"\x80") and head[2:3] == b"}":
        return True
    if head.startswith(_NOT_TAKEN):
        return True
    if head.lstrip()[:1] == b"{":
        if any(key in head for key in _PROFILER_KEYS):  # profiler traces describe their process groups as well
            return False
        if sum(key in head for key in _JSON_KEYS) >= 2 or (b'"entries"' in head and b'"collective_seq_id"' in head):
            return True
        if name.replace("!", "/").rsplit("/", 1)[-1].lower().startswith("rank_"):
            return False  # many tools call their JSON so, our manifests included
    # Cut, empty or hostile files still carry the name of a dump: they must be reported, not passed over.
    base = name.replace("!", "/").rsplit("/", 1)[-1]
    return bool(_DUMP_NAME.search(base)) and not _OTHER_FORMAT.search(base)


def read(source: Source) -> Iterator[Table]:
    try:
        dump, problem = _load(source)
        yield from _tables(source, dump, problem)
    except (MemoryError, RecursionError) as error:
        raise BadFileError("needs an absurd amount of memory or nesting", "it is corrupt or malicious") from error


def _load(source: Source) -> tuple[dict[str, Any], str]:
    """The dump, and what is wrong with it although it is usable."""
    if source.rank < 0:
        raise BadFileError("has no rank in its name", "rename it so that it ends in its rank")
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its dump")
    problem = ""
    try:
        with source.open() as stream:
            first = stream.peek(1)[:1]  # type: ignore[attr-defined]
            if first == b"\x80":
                dump = load_plain(stream)
            elif stream.peek(len(_NOT_TAKEN)).startswith(_NOT_TAKEN):  # type: ignore[attr-defined]
                reason = stream.read(400)[len(_NOT_TAKEN) :].decode(errors="replace").strip().removesuffix("]")
                raise BadFileError(
                    f"has an error message instead of a dump: {reason}",
                    "let torch write the dump: TORCH_FR_DUMP_TEMP_FILE",
                )
            else:
                dump = _load_json(stream.read())
    except (RefusedClassError, FloodError) as error:
        raise refused(error) from error
    except (OSError, zlib.error) as error:
        raise BadFileError(f"cannot be read: {error}", "copy the file again") from error
    except (
        EOFError,
        pickle.UnpicklingError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
    ):
        dump, problem = _salvage(source)
    if not isinstance(dump, dict) or not ({"entries", "pg_config", "pg_status", "version"} & dump.keys()):
        raise BadFileError(
            "is not a Flight Recorder dump", "pass a folder with only the dumps, or select them with --prefix"
        )
    return dump, problem


def _load_json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        if content.lstrip()[:1] == b"{":
            raise BadFileError(
                f"is truncated or broken JSON after {len(content):,} bytes: {error}", CUT_HINT
            ) from error
        raise BadFileError("is not a Flight Recorder dump", "remove it from the folder") from error


def _salvage(source: Source) -> tuple[Any, str]:
    """The complete part of a truncated pickle: it has the counters and the oldest calls."""
    n_bytes = f"{source.n_bytes:,} bytes"
    content = bytearray()
    try:
        with source.open() as stream:
            while chunk := stream.read(1 << 20):
                content += chunk
    except (OSError, EOFError, zlib.error):
        pass  # a cut gzip stream: what came before the cut is what there is
    try:
        dump = salvage_plain(bytes(content))
    except (RefusedClassError, FloodError) as error:
        raise refused(error) from error
    except BrokenPickleError as error:
        raise BadFileError(f"is corrupt: it {error} of {n_bytes}, so none of it was used", "copy it again") from error
    if not isinstance(dump, dict) or not (dump.get("entries") or dump.get("pg_status")):
        raise BadFileError(f"is truncated after {n_bytes}: none of it is usable", CUT_HINT)
    return dump, f"is truncated after {n_bytes}"


def _tables(source: Source, dump: dict[str, Any], problem: str) -> Iterator[Table]:
    entries = dump.get("entries", [])
    if problem and isinstance(entries, list):  # the place of the cut may hold a part of an entry
        entries = [entry for entry in entries if isinstance(entry, dict)]
    if not isinstance(entries, list) or not set(map(type, entries)) <= {dict}:
        # What else was changed in it nobody knows: the calls that are left would be compared as if they were all.
        wrong = next((e for e in entries if type(e) is not dict), None) if isinstance(entries, list) else entries
        raise BadFileError(f"has a value of type {type(wrong).__name__} where a dump has its entries", _NOT_TORCH)
    if problem and entries:
        # The last one may be half an entry: fields that follow the cut are absent.
        entries = [entry for entry in entries[:-1] if len(entry) >= len(entries[0])]
    try:
        calls, stacks, frames = entry_columns(entries, source)
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError, IndexError) as error:
        raise BadFileError(
            f"has entries that are not in the format of a dump ({type(error).__name__}: {str(error)[:80]})",
            _NOT_TORCH,
        ) from error
    pg_ids, rows = np.unique(calls.array("pg_id"), return_index=True)
    names = {whole(pg_id): calls.text("group_name")[row] for pg_id, row in zip(pg_ids, rows, strict=True)}
    is_own = isinstance(dump.get("rankscope"), dict)
    recorder = "rankscope" if is_own else TORCHCOMMS if is_torchcomms(calls) else "torch"
    if recorder == TORCHCOMMS:
        calls = with_real_states(calls)
    yield calls
    yield stacks
    yield frames
    yield _config_table(source, dump.get("pg_config"))
    status = _status_table(source, dump.get("pg_status"), names)
    yield status if is_own else _as_collectives(status, calls)
    yield _rank_table(source, dump, calls, recorder)
    if problem:
        kept = f"its {len(calls):,} oldest calls were read, the newest are lost" if len(calls) else "its calls are lost"
        problem = f"{problem}: {kept}"
        row = {**source.file_columns(), "source": NAME, "status": "damaged", "problem": problem, "hint": CUT_HINT}
        yield Table.from_rows("files", [row])


def _config_table(source: Source, config: Any) -> Table:
    rows = []
    for name, value in config.items() if isinstance(config, dict) else ():
        details = value if isinstance(value, dict) else {"ranks": value}
        members = parse_ranks(details.get("ranks", ""))
        if members is not None and isinstance(name, (str, int)):
            row = {"file_id": source.file_id, "rank": source.rank, "name": str(name)}
            description = plain_text(details.get("desc"))
            rows.append({**row, "description": description, "members": msgspec.json.encode(members).decode()})
    return Table.from_rows("group_config", rows)


def parse_ranks(ranks: Any) -> list[int] | None:
    """`"[0, 1, 2]"` or a real list -> [0, 1, 2]; None when it is neither. Never evaluated."""
    if isinstance(ranks, str):
        try:
            ranks = msgspec.json.decode(ranks)
        except (msgspec.DecodeError, UnicodeError):
            return None
    if isinstance(ranks, (list, tuple)) and all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):
        return list(ranks)
    return None


def _status_table(source: Source, status: Any, names: dict[int, str]) -> Table:
    rows = []
    for key, counters in status.items() if isinstance(status, dict) else ():
        pg_id = _counter(key, MAX_ID)
        if pg_id < 0 or not isinstance(counters, dict):
            continue  # one unreadable counter must not cost the calls
        if f"{_COUNTERS[0]}_collective" not in counters:
            continue  # cut off right here: that is not "has enqueued nothing"
        values = [_counter(counters.get(f"{name}_collective", MISSING), MAX_LONG) for name in _COUNTERS]
        if _NO_COUNTER not in values:
            row: dict[str, Any] = {"file_id": source.file_id, "rank": source.rank, "pg_id": pg_id}
            rows.append({**row, **dict(zip(_COUNTERS, values, strict=True)), "group_name": names.get(pg_id, "")})
    return Table.from_rows("group_status", rows)


def _counter(value: Any, most: int) -> int:
    """A number, or the text of one, as JSON has it where a pickle has numbers as keys."""
    number = integer(value, most, default=_NO_COUNTER) if isinstance(value, str) else value
    return max(number, MISSING) if type(number) is int and _NO_COUNTER < number <= most else _NO_COUNTER


def _as_collectives(status: Table, calls: Table) -> Table:
    """Some counters count sends and receives as well, which have no sequence number: here they count collectives."""
    backends = calls.text("backend")
    is_gloo, is_native = (
        np.array([name in names for name in backends.values], bool)[backends.codes] if len(calls) else np.empty(0, bool)
        for names in (("gloo",), _COUNT_COLLECTIVES)
    )
    if is_native.all() or not len(status):
        return status
    counters = {name: status.array(name).copy() for name in _COUNTERS}
    for row, pg_id in enumerate(status.array("pg_id").tolist()):
        of_group = np.flatnonzero(~is_native & (calls.array("pg_id") == pg_id))
        op_ids, seqs = calls.array("op_id")[of_group], calls.array("seq")[of_group]
        if not len(of_group) or not _counts_ops(op_ids, seqs, counters["last_enqueued"][row], is_gloo[of_group[0]]):
            continue
        for counter in counters.values():
            newest = whole(np.searchsorted(op_ids, counter[row], side="right")) - 1
            if newest >= 0:
                counter[row] = seqs[newest]
            elif counter[row] >= 0:  # older than what the ring has kept
                counter[row] = max(whole(counter[row] - (op_ids[0] - seqs[0])), 0) if is_gloo[of_group[0]] else MISSING
    return status.replaced(counters)


def _counts_ops(op_ids: Array, seqs: Array, last_enqueued: int, is_gloo: bool) -> bool:
    """Whether a counter holds the number of an operation, not that of a collective."""
    if is_gloo:
        return not (op_ids < seqs).any()  # other versions of torch count otherwise
    # The hook for other backends counts so; whoever else records itself may count either.
    return bool((np.diff(op_ids) > 0).all() and last_enqueued == op_ids[-1] != seqs[-1])


def _rank_table(source: Source, dump: dict[str, Any], calls: Table, recorder: str) -> Table:
    record_ids = calls.array("record_id")
    header = dump.get("rankscope")  # only our own recorder says whose dump it is
    known: dict[str, Any] = header if isinstance(header, dict) else {}
    written_ns = known.get("written_ns")
    row = {
        "rank": source.rank,
        "host": plain_text(known.get("host")) or source.host,
        "file_id": source.file_id,
        "recorder": recorder,
        "version": plain_text(dump.get("version")),
        "comm_version": plain_text(dump.get("comm_lib_version", dump.get("nccl_version"))),
        "n_calls": len(calls),
        "n_dropped": max(whole(record_ids[0]), 0) if len(calls) else 0,
        "last_created_ns": whole(calls.array("created_ns").max()) if len(calls) else MISSING,
        "written_ns": written_ns if type(written_ns) is int and 0 < written_ns < 1 << 62 else MISSING,
        "clock_offset_ns": 0,
        "clock_error_ns": MISSING,
    }
    return Table.from_rows("ranks", [row])
