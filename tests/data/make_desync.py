"""Writes the small files in tests/data/desync: `python tests/data/make_desync.py`. Equal code gives equal bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

from rankscope.collect.desync.report import Group, GroupState, MemberState, Unreadable, report_lines

DATA = Path(__file__).parent / "desync"
NOON_NS = 1_794_830_400_000_000_000


def make_reports() -> dict[str, bytes]:
    world = Group("0", "default_pg", 4, (0, 1, 2, 3))
    pair = Group("5", "mesh_tp", 2, (3, 0))
    lagging = GroupState(
        world,
        (
            MemberState(0, 7, "ALLREDUCE", False, 6),
            MemberState(1, 6, "ALLREDUCE", True, 6),
            MemberState(2, 7, "ALLREDUCE", False, 6),
        ),
        (),
        (Unreadable(3, "its value has 2 bytes and no name of a collective"),),
    )
    in_step = GroupState(pair, tuple(MemberState(rank, 12, "_ALLGATHER_BASE", True, 12) for rank in (0, 1)), (), ())
    absent = GroupState(world, tuple(MemberState(rank, 1, "BROADCAST", False, -1) for rank in (0, 2)), (1, 3), ())
    return {
        "desync_0.txt": text([lagging, in_step], 0),
        "desync_2.txt.gz": gzip.compress(text([absent], 2), mtime=0),
    }


def text(states: list[GroupState], rank: int) -> bytes:
    return "".join(
        f"{line}\n" for line in report_lines(states, f"rank {rank} of 4 on host gpu-1", rank, NOON_NS)
    ).encode()


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for name, content in make_reports().items():
        (DATA / name).write_bytes(content)


if __name__ == "__main__":
    main()
