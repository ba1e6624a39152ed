"""Writes the small exports in tests/data/nsys: `PYTHONPATH=src:tests python tests/data/make_nsys.py`.

Two ranks of one job, as SQLite. Equal code gives equal bytes, whichever version of SQLite writes them.
"""

from __future__ import annotations

from pathlib import Path

from read.nsys_exports import training_export

FOLDER = Path(__file__).parent / "nsys"
_WRITER_VERSION = slice(96, 100)  # in the header


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for rank in range(2):
        path = training_export(rank).write(FOLDER / f"nsys_{rank}.sqlite")
        content = bytearray(path.read_bytes())
        content[_WRITER_VERSION] = bytes(4)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
