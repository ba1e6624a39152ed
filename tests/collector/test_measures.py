"""The kernel's counters, drivers of devices, batches of all kinds, and numbers on devices that nobody waits for."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.collect.measures import device as device_module
from rankscope.collect.measures.device import Device, DeviceSampler
from rankscope.collect.measures.machine import Machine
from rankscope.collect.measures.scalars import DeviceScalar, scalar_on_host

torch = pytest.importorskip("torch")
from rankscope.collect.measures.loading import n_samples, n_tokens  # noqa: E402 - needs torch

SECOND = 10**9


# The machine


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def net(**counts: int) -> str:
    lines = [f"{name}: {count} 0 0 0 0 0 0 0 {2 * count} 0 0 0 0 0 0 0\n" for name, count in counts.items()]
    return "Inter-|\n face |\n" + "".join(lines)


def test_counters_become_rates(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "sys"
    write(proc, {"self/statm": "9 3 1", "meminfo": "MemTotal: 9 kB\nMemAvailable: 2048 kB\n"})
    write(proc, {"self/io": "rchar: 9\nread_bytes: 100\nwrite_bytes: 50\n", "net/dev": net(lo=5, eth0=10, docker0=7)})
    (system / "class/net/eth0/device").mkdir(parents=True)
    write(system, {"class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000\n"})
    machine = Machine(proc, system)
    assert dict(machine.memory())["host_memory_bytes"] % 3 == 0
    first = dict(machine.sample(0))
    assert first["host_memory_available_bytes"] == 2 << 20
    assert not any(name.endswith("_per_s") for name in first)
    write(proc, {"self/io": "read_bytes: 300\nwrite_bytes: 40\n", "net/dev": net(lo=99, eth0=30, docker0=99)})
    write(system, {"class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1500\n"})
    rates = {name: value for name, value in machine.sample(2 * SECOND) if name.endswith("_per_s")}
    assert rates == {
        "disk_read_bytes_per_s": 100,
        "network_received_bytes_per_s": 10,
        "network_sent_bytes_per_s": 20,
        "rdma_received_bytes_per_s": 1000,
    }


def test_a_container_has_less_than_its_host(tmp_path: Path) -> None:
    write(tmp_path, {"meminfo": "MemAvailable: 4096 kB\n", "fs/cgroup/memory.max": "3000000\n"})
    write(tmp_path, {"fs/cgroup/memory.current": "2500000\n", "fs/cgroup/memory.stat": "inactive_file 1000\n"})
    assert dict(Machine(tmp_path, tmp_path).sample(0)) == {"host_memory_available_bytes": 501_000}


def test_what_a_system_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert dict(Machine(tmp_path, tmp_path).sample(SECOND)) == {}


# Devices


class Nvml:
    """Answers as NVIDIA's library does: by filling what it is given."""

    def __init__(self, known: bytes) -> None:
        self._known, self.is_open = known, False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def nvmlInit_v2(self) -> int:  # noqa: N802 - its name
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 7
        return 0 if uuid == self._known else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu = 83 if handle.value == 7 else 0
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.used, memory._obj.total = 30, 80
        return 0


def sampled(monkeypatch: pytest.MonkeyPatch, sampler: DeviceSampler) -> dict[str, float]:
    cuda = SimpleNamespace(memory_allocated=lambda number: 10 + number, max_memory_allocated=lambda number: 20)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return {**dict(sampler.memory()), **dict(sampler.sample())}


def test_nvml_tells_of_the_device_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(b"GPU-abc")
    sampler = DeviceSampler(Device(1, "abc", ""), load=lambda name: nvml)
    assert sampled(monkeypatch, sampler) == {
        "device_memory_bytes": 11,
        "device_memory_peak_bytes": 20,
        "device_utilization_pct": 83,
        "device_memory_used_bytes": 30,
        "device_memory_total_bytes": 80,
    }
    sampler.close()
    assert not nvml.is_open


def test_without_the_library_the_kernel_of_rocm_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, {"0000:41:00.0/gpu_busy_percent": "55\n", "0000:41:00.0/mem_info_vram_used": "999\n"})

    def load(name: str) -> Any:
        raise OSError(name)

    told = sampled(monkeypatch, DeviceSampler(Device(0, "abc", "0000:41:00.0"), tmp_path, load))
    assert (told["device_utilization_pct"], told["device_memory_used_bytes"]) == (55, 999)


@pytest.mark.parametrize("device", [Device(0, "", ""), Device(0, "other", "")])
def test_a_device_that_nobody_knows_has_its_memory_by_torch(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    told = sampled(monkeypatch, DeviceSampler(device, load=lambda name: Nvml(b"GPU-abc")))
    assert told.keys() == {"device_memory_bytes", "device_memory_peak_bytes"}


# Numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.5, -3.0, float("inf")])
def test_a_number_on_the_host_is_read_as_it_is(dtype: Any, value: float) -> None:
    assert scalar_on_host(torch.tensor(value, dtype=dtype)) == value
    assert scalar_on_host(torch.tensor([9.0, value], dtype=dtype)[1:]) == value


def test_reading_calls_no_operator() -> None:
    loss = torch.tensor(1.5, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert scalar_on_host(loss) == 1.5
    assert [event.name for event in profiler.events() if event.name.startswith("aten::")] == []


@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1), torch.empty((), device="meta"), "1", None])
def test_what_is_no_number_on_the_host_is_none(value: Any) -> None:
    assert scalar_on_host(value) is None


class Event:
    """Of a device that is still at work until the test says otherwise."""

    is_done = False

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return Event.is_done


class OnDevice:
    """A loss of a device: nothing but a copy that does not block may be asked of it."""

    device = SimpleNamespace(type="cuda")
    dtype = torch.float32
    layout = torch.strided

    def __init__(self, value: float) -> None:
        self.value = value

    def numel(self) -> int:
        return 1

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def detach(self) -> OnDevice:
        return self

    def reshape(self, shape: Any) -> OnDevice:
        return self


class Pinned:
    def __init__(self) -> None:
        self.tensor = torch.zeros(())

    def copy_(self, other: OnDevice, non_blocking: bool) -> None:
        assert non_blocking
        self.tensor.fill_(other.value)


def test_a_number_of_a_device_is_read_when_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock: no machine of the tests has such a device."""
    clock = [100.0]
    monkeypatch.setattr("rankscope.collect.measures.scalars.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("rankscope.collect.measures.scalars._is_plain", lambda torch, value: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    pinned = Pinned()
    scalar = DeviceScalar()
    scalar._place, scalar._event = pinned, Event()
    monkeypatch.setattr("rankscope.collect.measures.scalars.scalar_on_host", lambda place: float(place.tensor))
    scalar.fetch(OnDevice(2.5), 4)
    assert scalar.ready() is None
    clock[0] += 1
    scalar.fetch(OnDevice(9.0), 5)  # one is under way: it is left out
    monkeypatch.setattr(Event, "is_done", True)
    assert scalar.ready() == (4, 2.5)
    assert scalar.ready() is None
    scalar.fetch(OnDevice(1.5), 6)
    assert scalar.ready() == (6, 1.5)
    scalar.fetch(OnDevice(0.5), 7)  # too soon
    assert scalar.ready() is None


def test_nothing_is_fetched_into_a_graph_that_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collect.measures.scalars._is_plain", lambda torch, value: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    scalar = DeviceScalar()
    scalar.fetch(OnDevice(2.5), 4)
    assert scalar._place is None


# Batches


def loader(collate: Any = torch.utils.data.default_collate, size: int | None = 4, is_auto: bool = True) -> Any:
    sampler = SimpleNamespace(batch_size=size)
    return SimpleNamespace(_auto_collation=is_auto, _collate_fn=collate, _index_sampler=sampler)


def own(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize(
    ("iterator", "batch", "n_known"),
    [
        (loader(), torch.zeros(4, 8), 4),
        (loader(), [torch.zeros(2, 8), torch.zeros(2)], 2),  # the last one of an epoch
        (loader(), {"x": torch.zeros(3, 8), "id": ["a"] * 3}, 3),
        (loader(), ["a", "b"], None),
        (loader(own), {"x": torch.zeros(50, 4), "y": torch.zeros(4)}, 4),  # time comes first
        (loader(own), torch.zeros(50, 3), None),
        (loader(own, None), torch.zeros(4, 8), None),
        (loader(is_auto=False), torch.zeros(4, 8), None),  # the dataset makes its own batches
    ],
)
def test_samples_of_a_batch(iterator: Any, batch: Any, n_known: int | None) -> None:
    assert n_samples(torch, iterator, batch) == n_known


IDS = torch.zeros(4, 16, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "n_known"),
    [
        ({"input_ids": IDS, "labels": IDS}, 64),
        ({"input_ids": IDS[0]}, 16),
        ({"input_ids": IDS.float()}, None),
        (IDS, 64),
        (IDS[0], None),  # labels
        (IDS.to(torch.uint8), None),  # pictures
        ([IDS, IDS], 64),
        ([IDS, IDS[:, 0]], None),  # features and a label
        ([torch.zeros(4, 16), IDS], None),
        ("text", None),
    ],
)
def test_tokens_of_a_batch(batch: Any, n_known: int | None) -> None:
    assert n_tokens(torch, batch) == n_known


def test_ctypes_is_all_that_nvml_needs() -> None:
    assert ctypes.sizeof(device_module._Memory) == 24
    assert ctypes.sizeof(device_module._Utilization) == 8
