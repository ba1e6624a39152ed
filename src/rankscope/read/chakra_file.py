"""Reads Chakra's files: whole, or node by node. A file is untrusted input: no length in it is believed unchecked."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rankscope.errors import BadFileError, InputError, UsageError
from rankscope.model import chakra, protobuf
from rankscope.model.chakra import ChakraFile, ChakraNode, ChakraStream
from rankscope.model.numbers import rank_number
from rankscope.model.protobuf import WireError
from rankscope.read.chakra_messages import Decoder, MessageError
from rankscope.read.files import Source

_READ_BYTES = 1 << 20
_MAX_LENGTH_BYTES = 10
_ID = protobuf.key(chakra.NODE_ID, protobuf.VARINT)
_JSON = re.compile(rb'\s*[{\[]\s*["{\[\]}]')
_NAME = re.compile(r"(?:(?P<prefix>.*)\.)?(?P<rank>\d{1,9})\.et(?:\.gz)?", re.IGNORECASE)
_ENDINGS = (".et", ".et.gz")
_FORMAT_HINT = "pass Chakra protobuf files (<prefix>.<rank>.et), plain or gzip"
_JSON_HINT = "to convert execution traces: rankscope export DIR --to chakra"
_CUT_HINT = "the file is incomplete: write or copy it again"


def read_chakra(path: str | os.PathLike[str]) -> ChakraFile:
    stream = stream_chakra(path)
    return ChakraFile(stream.path, stream.version, stream.attributes, list(stream.nodes))


def stream_chakra(path: str | os.PathLike[str]) -> ChakraStream:
    """The metadata is read at once, a node on demand."""
    shown = os.fspath(path)
    decoder, records = Decoder(), _records(shown)
    first = next(records, None)
    if first is None:
        raise BadFileError(f"{shown} is empty", _FORMAT_HINT)
    try:
        version, attributes = decoder.metadata(first[1])
    except MessageError as error:
        raise BadFileError(
            f"{shown} is not a Chakra trace: its first message is not GlobalMetadata ({error})", _FORMAT_HINT
        ) from error
    return ChakraStream(shown, version, attributes, _nodes(shown, decoder, records))


def find_chakra_files(paths: Sequence[str]) -> list[str]:
    """Files as given; of a folder its traces, of a prefix those of all ranks, by rank."""
    files: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            files.update(dict.fromkeys(_of_folder(path)))
        elif os.path.exists(path):
            files[path] = None
        else:
            files.update(dict.fromkeys(_of_prefix(path)))
    return list(files)


def _of_folder(folder: str) -> list[str]:
    names = [name for name in os.listdir(folder) if name.lower().endswith(_ENDINGS)]
    if not names:
        raise InputError(f"no Chakra trace (<prefix>.<rank>.et) in {folder}", "pass the folder that contains them")
    matches = [match for match in map(_NAME.fullmatch, names) if match]
    prefixes = sorted({match["prefix"] or "" for match in matches})
    if len(prefixes) > 1:
        first = os.path.join(folder, prefixes[0])
        raise UsageError(
            f"{folder} has the traces of {len(prefixes)} jobs: {', '.join(prefixes)}", f"pass a prefix: {first}"
        )
    return [os.path.join(folder, name) for name in sorted(names, key=_rank_and_name)]


def _of_prefix(prefix: str) -> list[str]:
    folder, start = os.path.split(prefix.removesuffix("."))
    names = os.listdir(folder or os.curdir) if os.path.isdir(folder or os.curdir) else []
    matches = (match for match in map(_NAME.fullmatch, names) if match and match["prefix"] == start)
    chosen = sorted((match.string for match in matches), key=_rank_and_name)
    if not chosen:
        raise InputError(f"{prefix}: no such file or folder, and no {os.path.basename(prefix)}.<rank>.et", _FORMAT_HINT)
    return [os.path.join(folder, name) for name in chosen]


def _rank_and_name(name: str) -> tuple[int, str]:
    match = _NAME.fullmatch(name)
    return rank_number(match["rank"]) if match else -1, name


# Messages of the file


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """Every message: where its content starts, and the content."""
    try:
        with _opened(path) as stream:
            yield from _split(stream, path)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", _CUT_HINT) from error


def _opened(path: str) -> BinaryIO:
    try:
        return Source(Path(path), path, os.stat(path).st_size).open()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", _FORMAT_HINT) from None
    except BadFileError as error:
        raise BadFileError(f"{path} {error.message}", error.hint) from error


def _split(stream: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Never holds more than one message and one block: a length that the file does not have reads the file at most."""
    block, at, base, number = stream.read(_READ_BYTES), 0, 0, 0
    if _JSON.match(block):
        raise BadFileError(f"{path} is JSON, not Chakra's protobuf", _JSON_HINT)
    while True:
        if len(block) - at < _MAX_LENGTH_BYTES:
            base += at
            block, at = block[at:] + stream.read(_READ_BYTES), 0
            if not block:
                return
        try:
            length, at = protobuf.decode_varint(block, at)
            if length > protobuf.MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {length:,} bytes")
        except WireError as error:
            raise BadFileError(
                f"{path}: {error} at byte {base + at:,}, where {_what(number)} should start", _CUT_HINT
            ) from error
        if length > len(block) - at:
            base += at
            block, at = _filled(block[at:], stream, length), 0
        if length > len(block):
            raise BadFileError(
                f"{path} is truncated: of {_what(number)} at byte {base:,} only {len(block):,} of {length:,} bytes "
                "are present",
                _CUT_HINT,
            )
        yield base + at, block[at : at + length]
        at += length
        number += 1


def _filled(block: bytes, stream: BinaryIO, n_bytes: int) -> bytes:
    """Grows by what is there, not by what was announced."""
    pieces, n_found = [block], len(block)
    while n_found < n_bytes:
        piece = stream.read(_READ_BYTES)
        if not piece:
            break
        pieces.append(piece)
        n_found += len(piece)
    return b"".join(pieces)


def _what(number: int) -> str:
    return "its metadata" if number == 0 else f"node {number:,} of the file"


# Nodes


def _nodes(path: str, decoder: Decoder, records: Iterator[tuple[int, bytes]]) -> Iterator[ChakraNode]:
    for number, (start, data) in enumerate(records, start=1):
        try:
            yield decoder.node(data)
        except MessageError as error:
            raise BadFileError(
                f"{path}: {error} in {_what(number)}, which starts at byte {start:,}{_id_phrase(data)}",
                "the file is damaged or not a Chakra trace: write or copy it again",
            ) from error


def _id_phrase(data: bytes) -> str:
    """The id of a node that is damaged further on."""
    try:
        key, raw = next(protobuf.fields(data))
    except (WireError, StopIteration):
        return ""
    return f" and has the id {raw}" if key == _ID else ""
