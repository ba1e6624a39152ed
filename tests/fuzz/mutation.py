"""Inputs with one thing wrong: a field of the structure, a word of the text, some bytes, or the file's name."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import sqlite3
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

NUMBERS = (-1, 0, 1, 1 << 31, (1 << 31) - 1, 10**17, (1 << 63) - 1, 1 << 63, 1 << 80, -(1 << 62), 0.5, 1e308, -1e308)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "text",
    "²",
    "٣",
    "9" * 5000,
    "\x1b[31m",
    "\ud800",
    [],
    [[]],
    {},
    {"a": 1},
    [None] * 50,
)
NOT_JSON = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[" * 2000, b'{"a":' * 2000, b"\xff\xfe", b"\0" * 64)
WORDS = (
    "²",
    "9" * 40,
    "9" * 5000,
    "-1",
    "2147483647",
    "NaN",
    "",
    "\0",
    "\x1b[2J",
    "x" * 3000,
    "../../etc/passwd",
    "１",
)
NAMES = (
    "{}",
    "{}.gz",
    "{}²",
    "{}_1700000000",
    "rank_999999999",
    "{}\x1b[31m",
    "=cmd()",
    "{}.{}",
    "-{}",
    "{}" + "9" * 150,
)
MEMBERS = (
    "{}",
    "rank_1/{}",
    "../../{}",
    "/etc/{}",
    "a/" * 300 + "{}",
    "{}" + ".gz" * 40,
    "{}\n\x1b[31m",
    "nccl_trace_rank_999999999",
    "1a" * 2000,
    "{}²",
    "C:\\{}",
    "",
)


def mutated(chance: random.Random, name: str, content: bytes) -> tuple[str, bytes]:
    """Another name and content: mostly the structure changes, as random bytes are refused at once."""
    is_packed = content[:2] == b"\x1f\x8b"
    plain = gzip.decompress(content) if is_packed else content
    if chance.random() < 0.65:
        changed = _structured(chance, plain)
    else:
        changed = _bytes(chance, plain)
    if is_packed and chance.random() < 0.7:
        changed = gzip.compress(changed, 1)
        if chance.random() < 0.1:
            changed = _bytes(chance, changed)
    if chance.random() < 0.1:
        return _archived(chance, name, chance.choice((content, changed)))
    stem = chance.choice(NAMES).replace("{}", name) if chance.random() < 0.1 else name
    return stem.replace("/", "_")[:250], changed


def _archived(chance: random.Random, name: str, content: bytes) -> tuple[str, bytes]:
    """The file in an archive, once or twice, under any name; often in another archive, or with some bytes changed."""
    for _ in range(chance.choice((1, 1, 1, 2, 6))):
        members = [(chance.choice(MEMBERS).replace("{}", name), content) for _ in range(chance.randint(1, 3))]
        extension = chance.choice((".zip", ".tar", ".tar.gz"))
        content = _zip(chance, members) if extension == ".zip" else _tar(chance, members)
        if chance.random() < 0.4:
            content = _bytes(chance, content)
        content = gzip.compress(content, 1) if extension == ".tar.gz" else content
        name = "job" + extension
    return name, content


def _zip(chance: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    written = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(written, "w", chance.choice((0, 8))) as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name or "/", content)
    return written.getvalue()


def _tar(chance: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=chance.choice((0, 1, 2))) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if chance.random() < 0.1:
                member.type, member.linkname = chance.choice((b"1", b"2", b"3", b"5", b"6")), "/etc/passwd"
            with contextlib.suppress(ValueError):  # a name that this form of tar does not take
                archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _structured(chance: random.Random, content: bytes) -> bytes:
    if content[:1] == b"\x80":
        return _pickle(chance, content)
    if content[:16] == b"SQLite format 3\0":
        return _sqlite(chance, content)
    if content.lstrip()[:1] in (b"{", b"["):
        return _json(chance, content)
    if b"\0" in content[:200]:
        return _bytes(chance, content)
    return _text(chance, content)


def _pickle(chance: random.Random, content: bytes) -> bytes:
    return pickle.dumps(_changed(chance, pickle.loads(content)), protocol=chance.choice((2, 2, 2, 4)))


def _json(chance: random.Random, content: bytes) -> bytes:
    try:
        return _encoded(chance, json.loads(content))
    except ValueError:
        lines = content.split(b"\n")
    places = [place for place, line in enumerate(lines) if line.strip()[:1] == b"{"]
    place = chance.choice(places[:3] if chance.random() < 0.3 else places) if places else 0
    try:
        lines[place] = _encoded(chance, json.loads(lines[place]))
    except ValueError:
        return _text(chance, content)
    return b"\n".join(lines)


def _encoded(chance: random.Random, value: Any) -> bytes:
    mark = "\x7fmutated\x7f"
    if chance.random() < 0.2:
        value = _changed(chance, value, mark)
        return json.dumps(value).encode().replace(json.dumps(mark).encode(), chance.choice(NOT_JSON))
    return json.dumps(_changed(chance, value)).encode("utf-8", "surrogatepass")


def _changed(chance: random.Random, value: Any, new: Any = None) -> Any:
    """The value with one item somewhere in it replaced, left out or doubled."""
    replacement = chance.choice(chance.choice((NUMBERS, ODD))) if new is None else new
    place, parents = value, list[tuple[Any, Any]]()
    while isinstance(place, (dict, list)) and place and (len(parents) < 1 or chance.random() < 0.85):
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        parents.append((place, key))
        place = place[key]
    if not parents:
        return replacement
    holder, key = parents[-1]
    action = chance.random()
    if action < 0.1 and new is None:
        del holder[key]
    elif action < 0.15 and new is None and isinstance(holder, list):
        holder.insert(key, replacement)
    elif action < 0.2 and new is None and isinstance(holder, dict):
        holder[str(chance.choice(WORDS))] = holder.pop(key)
    else:
        holder[key] = replacement
    return value


def _text(chance: random.Random, content: bytes) -> bytes:
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    place = chance.randrange(len(lines))
    action = chance.random()
    if action < 0.6:
        words = list(re.finditer(r"[0-9]+|[A-Za-z_]+", lines[place]))
        if words:
            word = chance.choice(words)
            lines[place] = lines[place][: word.start()] + chance.choice(WORDS) + lines[place][word.end() :]
    elif action < 0.7:
        del lines[place]
    elif action < 0.8:
        lines[place:place] = [lines[place]] * chance.choice((1, 50))
    elif action < 0.9:
        other = chance.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = lines[place] + chance.choice(WORDS) * chance.choice((1, 20))
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _sqlite(chance: random.Random, content: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "changed.sqlite")
        path.write_bytes(content)
        with sqlite3.connect(path) as database:
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = chance.choice(tables)
            column = chance.choice(database.execute(f'PRAGMA table_info("{table}")').fetchall())[1]
            if chance.random() < 0.1:
                database.execute(f'ALTER TABLE "{table}" RENAME TO "gone"')
            else:
                value = chance.choice([each for each in (*NUMBERS, None, "text", b"\xff") if _fits(each)])
                with contextlib.suppress(sqlite3.IntegrityError):  # a key that takes no such value
                    database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (value,))
        database.close()
        return path.read_bytes()


def _fits(value: Any) -> bool:
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _bytes(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(max(1, len(changed)))
        action = chance.choice(("flip", "set", "insert", "delete", "repeat", "cut", "splice", "first"))
        if action == "flip" and changed:
            changed[place] ^= 1 << chance.randrange(8)
        elif action == "set" and changed:
            changed[place] = chance.randrange(256)
        elif action == "insert":
            changed[place:place] = bytes(chance.choices(range(256), k=8))
        elif action == "delete":
            del changed[place : place + chance.randint(1, 64)]
        elif action == "repeat":
            changed[place:place] = changed[place : place + chance.randint(1, 64)]
        elif action == "cut":
            del changed[place:]
        elif action == "splice":
            other = chance.randrange(max(1, len(changed)))
            changed[place : place + 40] = changed[other : other + 40]
        elif action == "first":
            del changed[:1]
    return bytes(changed)
