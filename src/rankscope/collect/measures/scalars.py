"""The number in a tensor of one element, read without an operator: none may show up in the traces of the job, and
none may make it wait for a device.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import time
from typing import Any

_SECONDS_BETWEEN = 0.1  # two numbers that are fetched from a device


def scalar_on_host(value: Any) -> float | None:
    """The value of a plain tensor on the CPU, or of a number; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    torch = sys.modules["torch"]
    if not _is_plain(torch, value) or value.device.type != "cpu":
        return None
    address = value.data_ptr()
    if not address:
        return None
    dtype = value.dtype
    if dtype is torch.float32:
        return float(ctypes.c_float.from_address(address).value)
    if dtype is torch.float64:
        return float(ctypes.c_double.from_address(address).value)
    if dtype is torch.bfloat16:  # the upper half of a float
        bits: int = ctypes.c_uint16.from_address(address).value
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    if dtype is torch.float16:
        return float(struct.unpack("<e", struct.pack("<H", ctypes.c_uint16.from_address(address).value))[0])
    return None


def _is_plain(torch: Any, value: Any) -> bool:
    """Tensors that are spread over ranks, that only look like tensors, or that are laid out otherwise are none."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.numel() == 1
        and value.layout is torch.strided
        and not value.is_conj()
        and not value.is_neg()
    )


class DeviceScalar:
    """The latest number of a device: copied to pinned memory behind the work that makes it, and read when it is there.

    Nothing waits: while one copy is under way no other is begun, and a number that comes too soon is left out.
    """

    def __init__(self) -> None:
        self._place: Any = None  # on the host, pinned
        self._event: Any = None
        self._step = 0
        self._is_under_way = False
        self._began = -math.inf

    def fetch(self, value: Any, step: int) -> None:
        torch = sys.modules["torch"]
        now = time.monotonic()
        if self._is_under_way or now - self._began < _SECONDS_BETWEEN:
            return
        if not _is_plain(torch, value) or value.device.type != "cuda" or not value.dtype.is_floating_point:
            return
        # A copy of ours would be part of the graph that is captured, or of the trace that is recorded.
        if torch.cuda.is_current_stream_capturing() or torch.autograd._profiler_enabled():
            return
        if self._place is None:
            self._place = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._event = torch.cuda.Event()
        with torch.no_grad(), torch.cuda.device(value.device):
            self._place.copy_(value.detach().reshape(()), non_blocking=True)
            self._event.record()
        self._began, self._step, self._is_under_way = now, step, True

    def ready(self) -> tuple[int, float] | None:
        """Step and value of what has arrived since it was last asked for."""
        if not self._is_under_way or not self._event.query():
            return None
        self._is_under_way = False
        value = scalar_on_host(self._place)
        return None if value is None else (self._step, value)
