"""A whole report in one file: a page with the index as it is and every other file compressed inside it, or a zip."""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from rankscope.model.artifact_names import other_spelling
from rankscope.model.finding import Report
from rankscope.model.tables import Trace
from rankscope.render.compile_tree.outputs import TreeOptions
from rankscope.render.html import assets, digest, markup
from rankscope.render.listing import n_bytes_phrase

STYLES = ("code.css", "pack.css")
SCRIPTS = ("code.js", "pack.js")
LARGE_BYTES = 50_000_000
MAX_LOG_BYTES = 32_000_000  # a larger log would make up most of the page, and who has it need not send it twice
_CHUNK = 3 << 18  # divisible by three, as base64 likes it
_POLICY = re.compile(rb'(<meta http-equiv="Content-Security-Policy" content=")([^"]*)"')
_HASH = re.compile(rb"'sha256-[A-Za-z0-9+/=]+'")
_PANE = markup("""<div class="pane" id="pane" role="dialog" aria-modal="true" aria-label="File of the report" hidden>
<header><b></b><a download>Download</a><button type="button">Close</button></header><div class="content"></div></div>
""")


class Pack(Protocol):
    """What makes one file of a written tree."""

    def __call__(self, folder: str, path: str | Path) -> Packed: ...


class Packed(NamedTuple):
    n_bytes: int
    left_out: tuple[str, ...]  # files of the tree that are not in the page
    note: str  # what to tell the user about it; mostly nothing


def write_single(
    trace: Trace, report: Report, path: str | Path, options: TreeOptions, pack: Pack | None = None
) -> Packed:
    """The report at `path`. The tree is written beside it first, so that memory does not grow with the log."""
    from rankscope.render.compile_tree.writer import write_tree

    aside = tempfile.mkdtemp(prefix=f".{Path(path).name}.", dir=Path(path).parent)
    try:
        write_tree(trace, report, aside, options)
        return (pack or pack_folder)(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def zip_folder(folder: str | Path, path: str | Path) -> Packed:
    """All files of a written tree, to attach to a bug report; they are in a folder named after the archive."""
    top = Path(path).name.partition(".zip")[0].lstrip(".") or "tl_out"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(_files(Path(folder))):
            archive.write(Path(folder, name), f"{top}/{name}")
    return Packed(os.path.getsize(path), (), "")


def pack_folder(folder: str | Path, path: str | Path) -> Packed:
    """One page from a written tree, which must have an index.html. The page replaces `path` when it is complete."""
    written = set(_files(Path(folder)))
    names = sorted(name for name in written if not _is_twin(name, written))
    left_out = tuple(name for name in names if _is_left_out(Path(folder, name)))
    partial = Path(f"{path}.partial-{os.getpid()}")
    try:
        with open(partial, "wb") as target:
            _write_page(Path(folder), [name for name in names if name not in left_out], target)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    n_bytes = os.path.getsize(path)
    note = ""
    if n_bytes > LARGE_BYTES:
        note = f"the page is {n_bytes_phrase(n_bytes)}, which browsers open slowly; write a folder instead (-o FOLDER)"
    return Packed(n_bytes, left_out, note)


def _files(folder: Path) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name).relative_to(folder).as_posix()


def _is_twin(name: str, names: set[str]) -> bool:
    """The same file under the guide's name: the page has it once, and both names beside it."""
    folder, _, base_name = name.rpartition("/")
    return base_name.startswith("aot_autograd_") and f"{folder}/{other_spelling(base_name)}" in names


def _is_left_out(path: Path) -> bool:
    return path.name == "raw.log" and path.stat().st_size > MAX_LOG_BYTES


def _write_page(folder: Path, names: list[str], target: BinaryIO) -> None:
    index = (folder / "index.html").read_bytes()
    style = assets(STYLES)
    script = assets(SCRIPTS)
    policy = _policy(folder, names, style, script)
    head = _POLICY.sub(rb"\g<1>" + policy + b'"', index, count=1).rpartition(b"</body>")[0]
    target.write(head)
    target.write(markup("<style>{}</style>\n{}", style, _PANE).encode())
    for name in names:
        if name != "index.html":
            target.write(markup('<script type="text/plain" data-file="{}">', name).encode("utf-8", "replace"))
            _write_packed(folder / name, target)
            target.write(b"</script>\n")
    target.write(markup("<script>{}</script>\n</body>\n</html>\n", script).encode())


def _policy(folder: Path, names: list[str], style: str, script: str) -> bytes:
    """Pages inside the page are under its policy besides their own: it allows what any of them does."""
    styles, scripts = {digest(style).encode()}, {digest(script).encode()}
    for name in names:
        if name.endswith(".html"):
            with open(folder / name, "rb") as file:
                match = _POLICY.search(file.read(4096))
            for directive in match.group(2).split(b";") if match else ():
                kind, _, sources = directive.strip().partition(b" ")
                if kind in (b"style-src", b"script-src"):
                    (styles if kind == b"style-src" else scripts).update(_HASH.findall(sources))
    allowed = (
        b"default-src 'none'",
        b"style-src " + b" ".join(sorted(styles)),
        b"script-src " + b" ".join(sorted(scripts)),
    )
    return b"; ".join((*allowed, b"img-src data:"))


def _write_packed(path: Path, target: BinaryIO) -> None:
    """Piece by piece: a file may be larger than memory. Base64 has nothing that could end the block of data."""
    packer = zlib.compressobj(6)
    waiting = b""
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK):
            waiting += packer.compress(chunk)
            whole = len(waiting) // 3 * 3
            target.write(base64.b64encode(waiting[:whole]))
            waiting = waiting[whole:]
    target.write(base64.b64encode(waiting + packer.flush()))
