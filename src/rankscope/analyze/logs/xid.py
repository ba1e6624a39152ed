"""What the numbers of NVIDIA's Xid messages mean, and whether the node must be drained."""

from __future__ import annotations

from typing import NamedTuple


class Xid(NamedTuple):
    meaning: str
    is_hardware: bool


_XIDS = {
    13: Xid("graphics engine exception, usually a kernel that reads or writes out of bounds", False),
    31: Xid("memory page fault, usually a kernel that uses an invalid address", False),
    43: Xid("a channel was reset after a kernel's error", False),
    45: Xid("work was removed from the device, usually after another Xid or a kill", False),
    69: Xid("graphics engine class error", False),
    46: Xid("the device stopped processing", True),
    48: Xid("double-bit ECC error: memory content is lost", True),
    63: Xid("a memory row was retired or remapped", True),
    64: Xid("retiring or remapping a memory row failed", True),
    74: Xid("NVLink error", True),
    79: Xid("the device has fallen off the bus", True),
    92: Xid("high rate of single-bit ECC errors", True),
    94: Xid("contained uncorrectable ECC error", True),
    95: Xid("uncontained uncorrectable ECC error", True),
    119: Xid("the device's system processor does not answer", True),
    120: Xid("error of the device's system processor", True),
    154: Xid("the driver asks for a recovery of the device", True),
}
FOLLOWERS = frozenset((43, 45))  # reported after the cause


def xid_of(number: int) -> Xid:
    return _XIDS.get(number, Xid("see NVIDIA's catalog of Xid errors", False))
