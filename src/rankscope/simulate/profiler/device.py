"""The devices of all ranks during one step.

Each stream works off what it was given in order. The kernel of a collective starts as soon as its own stream is free
and then spins; it ends on all ranks once the last of them has started it and the data have moved.
"""

from __future__ import annotations

from collections import deque

from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.program import Exchange
from rankscope.simulate.profiler.run import Conditions, Jitter, Meeting, RankRun

_LAUNCH_NS = 1_500
_BETWEEN_KERNELS_NS = 1_200
_AFTER_EVENT_NS = 900
_EXCHANGE_NS = 22_000
_TYPICAL_END_DELAY_NS = 4_000.0
_LOCAL_BYTES_PER_NS = 150.0
_REMOTE_BYTES_PER_NS = 80.0


class Device:
    """The streams of one rank: what is left for each, and when it became free."""

    def __init__(self, rank: int, run: RankRun, costs_ns: list[int]) -> None:
        self.rank = rank
        self.run = run
        self.costs_ns = costs_ns
        self.queues: dict[int, deque[int]] = {}
        for index, work in enumerate(run.program.work):
            self.queues.setdefault(work.stream, deque()).append(index)
        self.free_ns = dict.fromkeys(self.queues, 0)

    def start_ns(self, index: int) -> int | None:
        """When the work starts, or None as long as that depends on others."""
        run = self.run
        work = run.program.work[index]
        launched_ns = run.clock[run.program.calls[work.call].tick + 1] + _LAUNCH_NS
        begin = max(launched_ns, self.free_ns[work.stream] + _BETWEEN_KERNELS_NS)
        for other in work.after:
            if not run.ends[other]:
                return None
            begin = max(begin, run.ends[other] + _AFTER_EVENT_NS)
        return begin

    def finish(self, index: int, end_ns: int) -> None:
        stream = self.run.program.work[index].stream
        self.run.ends[index] = end_ns
        self.free_ns[stream] = end_ns
        self.queues[stream].popleft()


class DeviceStep:
    def __init__(self, mesh: Mesh, conditions: Conditions, jitter: Jitter, step: int) -> None:
        self.mesh = mesh
        self.conditions = conditions
        self.jitter = jitter
        self.step = step
        self.devices: list[Device] = []
        self.ready: deque[Device] = deque()
        self.meetings: list[Meeting] = []
        self._waiting: dict[tuple[object, ...], dict[int, tuple[int, Exchange]]] = {}

    def run(self, devices: list[Device]) -> None:
        """Fill in when everything on the devices starts and ends."""
        self.devices = devices
        self.ready.extend(devices)
        while self.ready:
            device = self.ready.popleft()
            # What one stream finishes may be what another one waits for.
            while any(self._drain(device, queue) for queue in device.queues.values()):
                pass

    def _drain(self, device: Device, queue: deque[int]) -> bool:
        """Work off a stream as far as that does not depend on others. Returns whether anything was finished."""
        n_left = len(queue)
        while queue:
            index = queue[0]
            if device.run.starts[index]:
                break  # a collective that others have yet to reach
            begin = device.start_ns(index)
            if begin is None:
                break
            device.run.starts[index] = begin
            exchange = device.run.program.work[index].exchange
            if exchange is None:
                device.finish(index, begin + device.costs_ns[index])
            else:
                self._arrive(device, index, exchange)
        return len(queue) < n_left

    def _arrive(self, device: Device, index: int, exchange: Exchange) -> None:
        """Join a collective or transfer, and carry it out if all have come."""
        members = self.mesh.members(device.rank, exchange)
        key = (self.mesh.group(device.rank, exchange), members, exchange.ordinal)
        arrived = self._waiting.setdefault(key, {})
        arrived[device.rank] = index, exchange
        if len(arrived) == len(members):
            del self._waiting[key]
            work, exchanges = zip(*(arrived[member] for member in members), strict=True)
            self._meet(members, work, exchanges)

    def _meet(self, members: tuple[int, ...], work: tuple[int, ...], exchanges: tuple[Exchange, ...]) -> None:
        exchange = exchanges[0]
        what = (self.step, members[:2], exchange.is_p2p, exchange.ordinal)
        (factor,) = self.jitter.factors(1, "transfer", what)
        delays = self.jitter.delays_ns(len(members), _TYPICAL_END_DELAY_NS, "end", what)
        devices = [self.devices[member] for member in members]
        arrivals = tuple(device.run.starts[index] for device, index in zip(devices, work, strict=True))
        moved_ns = max(arrivals) + int(self._transfer_ns(exchange, members) * factor)
        ends = tuple(moved_ns + delay for delay in delays)
        for device, index, end in zip(devices, work, ends, strict=True):
            device.finish(index, end)
        self.meetings.append(Meeting(self.step, members, exchanges, work, arrivals, ends))
        self.ready.extend(devices)

    def _transfer_ns(self, exchange: Exchange, members: tuple[int, ...]) -> float:
        hosts = {self.mesh.spec.host_of(rank) for rank in members}
        speed = _LOCAL_BYTES_PER_NS if len(hosts) == 1 else _REMOTE_BYTES_PER_NS
        # A ring moves each byte to the next rank twice, once to add it up and once to hand the sum around.
        rounds = 1.0 if exchange.is_p2p else 2 * (len(members) - 1) / len(members)
        slowness = self.conditions.link_factor if self.conditions.slow_ranks.intersection(members) else 1.0
        return (_EXCHANGE_NS + exchange.n_bytes * rounds / speed) * slowness
