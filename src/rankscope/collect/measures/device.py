"""Memory of the rank's accelerator, and how busy it is, as its driver reports: NVML, or the kernel's files of ROCm.

Asked in the collector's thread, now and then; no call of these waits for work on the device.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_NVML = "libnvidia-ml.so.1"
_PCI = Path("/sys/bus/pci/devices")

Numbers = Iterator[tuple[str, float]]


class Device(NamedTuple):
    """Which one it is: as torch counts, by its own name, and by its place in the machine."""

    number: int
    uuid: str
    pci: str


def current_device() -> Device | None:
    """The accelerator of the calling thread, which must be the job's: in other threads it is always the first one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    number = int(torch.cuda.current_device())
    about = torch.cuda.get_device_properties(number)
    try:
        pci = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    except (AttributeError, TypeError, ValueError):  # older versions of torch
        pci = ""
    return Device(number, str(getattr(about, "uuid", "")), pci)


class DeviceSampler:
    def __init__(self, device: Device, pci: Path = _PCI, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._device = device
        self._folder = pci / device.pci if device.pci else None
        self._nvml = _Nvml.of(device, load)

    def memory(self) -> Numbers:
        """As torch's own allocator counts it."""
        cuda = sys.modules["torch"].cuda
        yield "device_memory_bytes", cuda.memory_allocated(self._device.number)
        yield "device_memory_peak_bytes", cuda.max_memory_allocated(self._device.number)

    def sample(self) -> Numbers:
        """As the driver reports it."""
        yield from self._nvml.sample() if self._nvml is not None else self._rocm()

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _rocm(self) -> Numbers:
        if self._folder is None:
            return
        for file, name in _ROCM_FILES:
            try:
                yield name, int((self._folder / file).read_text())
            except (OSError, ValueError):
                continue


_ROCM_FILES = (
    ("gpu_busy_percent", "device_utilization_pct"),
    ("mem_info_vram_used", "device_memory_used_bytes"),
    ("mem_info_vram_total", "device_memory_total_bytes"),
)


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Nvml:
    """NVIDIA's library, as far as it is needed. It comes with the driver."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def of(cls, device: Device, load: Callable[[str], Any]) -> _Nvml | None:
        """None where there is no such library, or it does not know the device."""
        if not device.uuid:
            return None
        try:
            library = load(_NVML)
            if library.nvmlInit_v2():
                return None
            name = device.uuid if device.uuid.startswith(("GPU-", "MIG-")) else f"GPU-{device.uuid}"
            handle = ctypes.c_void_p()
            failed = library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        except (OSError, AttributeError):
            return None
        return None if failed else cls(library, handle)

    def sample(self) -> Numbers:
        busy, memory = _Utilization(), _Memory()
        if not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy)):
            yield "device_utilization_pct", busy.gpu
        if not self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            yield "device_memory_used_bytes", memory.used
            yield "device_memory_total_bytes", memory.total

    def close(self) -> None:
        self._library.nvmlShutdown()
