"""The tensors of the simulated job: which memory each operator reads and writes.

Layers keep their weights and gradients in flat buffers, so that what is computed reaches the all-reduce and the
optimizer through the memory itself. Memory that is freed is given out again, as a caching allocator does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from rankscope.simulate.profiler.operators import HIDDEN, LAYER, PARAMETERS_PER_LAYER
from rankscope.simulate.profiler.spec import ProfileSpec

Shape = tuple[int, ...]

HALF = "c10::BFloat16"
FLOAT = "float"
LONG = "long int"
ITEM_BYTES = {HALF: 2, FLOAT: 4, LONG: 8}

_LAYER_OFFSETS = tuple(accumulate((operator.n_parameters for operator in LAYER), initial=0))


@dataclass(eq=False)
class Buffer:
    """A storage. It has a number from when the observer first sees it."""

    n_elements: int
    dtype: str = HALF
    is_on_host: bool = False
    storage_id: int = 0


@dataclass(eq=False)
class View:
    """A tensor. It has a number from when the observer first sees it."""

    buffer: Buffer
    shape: Shape
    offset: int = 0
    strides: Shape = ()
    """Empty: without gaps."""
    tensor_id: int = 0

    def viewed_as(self, shape: Shape) -> View:
        return self if shape == self.shape else View(self.buffer, shape, self.offset)


def contiguous_strides(shape: Shape) -> Shape:
    return tuple(prod(shape[index + 1 :]) for index in range(len(shape)))


@dataclass
class Microbatch:
    """What is kept between the forward and the backward pass of a microbatch."""

    inputs: dict[int, tuple[View, ...]] = field(default_factory=dict)
    """By the place of the operator in the forward pass, as in the following."""
    outputs: dict[int, View] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)


class Memory:
    """All buffers of a rank."""

    def __init__(self, spec: ProfileSpec) -> None:
        self.spec = spec
        self.microbatches: defaultdict[int, Microbatch] = defaultdict(Microbatch)
        self.weights = self._flat_views()
        """Of each layer all at once, as in the following."""
        self.gradients = self._flat_views()
        self.moments = self._flat_views(), self._flat_views()
        self.steps = [View(Buffer(1, FLOAT), ()) for _ in range(spec.n_layers)]
        self._parameters: dict[tuple[int, int], View] = {}
        self._parameter_gradients: dict[int, View] = {}
        self._free: defaultdict[tuple[int, str, bool], list[Buffer]] = defaultdict(list)
        self._last_sent: Buffer | None = None

    def _flat_views(self) -> list[View]:
        shape = (PARAMETERS_PER_LAYER,)
        return [View(Buffer(PARAMETERS_PER_LAYER), shape) for _ in range(self.spec.n_layers)]

    def allocate(self, shape: Shape, dtype: str = HALF, *, is_on_host: bool = False) -> View:
        n_elements = prod(shape)
        free = self._free[n_elements, dtype, is_on_host]
        return View(free.pop() if free else Buffer(n_elements, dtype, is_on_host), shape)

    def allocate_for(self, microbatch: int, shape: Shape) -> View:
        """Memory that is freed with the microbatch."""
        view = self.allocate(shape)
        self.microbatches[microbatch].buffers.append(view.buffer)
        return view

    def release(self, buffer: Buffer) -> None:
        self._free[buffer.n_elements, buffer.dtype, buffer.is_on_host].append(buffer)

    def finish(self, microbatch: int, to_send: Buffer) -> None:
        """Free all of it but what the stage before has yet to get; that is freed with the next one."""
        if self._last_sent is not None:
            self.release(self._last_sent)
        self._last_sent = to_send
        for buffer in self.microbatches.pop(microbatch).buffers:
            if buffer is not to_send:
                self.release(buffer)

    def parameter(self, number: int, argument: int, shape: Shape) -> View:
        """The weight of an operator that is its so-manieth input."""
        key = number, argument
        if key not in self._parameters:
            self._parameters[key] = self._make_parameter(number, argument, shape)
        return self._parameters[key]

    def parameter_gradient(self, number: int, shape: Shape) -> View:
        if number not in self._parameter_gradients:
            layer, offset = self._flat_place(number)
            flat = self.gradients[layer] if layer < self.spec.n_layers else View(Buffer(prod(shape)), shape)
            self._parameter_gradients[number] = View(flat.buffer, shape, offset)
        return self._parameter_gradients[number]

    def _make_parameter(self, number: int, argument: int, shape: Shape) -> View:
        layer, offset = self._flat_place(number)
        is_flat = layer < self.spec.n_layers and LAYER[number % len(LAYER)].n_parameters > 0
        if not is_flat:
            return View(Buffer(prod(shape)), shape)
        # The bias, which is an addmm's first input, lies behind the weight.
        behind = LAYER[number % len(LAYER)].n_parameters - prod(shape) if argument == 0 else 0
        return View(self.weights[layer].buffer, shape, offset + behind)

    def _flat_place(self, number: int) -> tuple[int, int]:
        """The layer, and where in its flat buffers the operator's parameters begin; the head has none."""
        layer = number // len(LAYER)
        return layer, _LAYER_OFFSETS[number % len(LAYER)] if layer < self.spec.n_layers else 0


def split_in_three(view: View, shape: Shape) -> tuple[View, ...]:
    """Queries, keys and values, which the layer before has computed side by side."""
    strides = (3 * HIDDEN, *contiguous_strides(shape)[1:])
    return tuple(View(view.buffer, shape, part * HIDDEN, strides) for part in range(3))


def spread(view: View, shape: Shape) -> View:
    """The same numbers for all of the last dimension, where the buffer has one for each row only."""
    if prod(shape) <= view.buffer.n_elements:
        return view.viewed_as(shape)
    rows = 0 if view.buffer.n_elements == 1 else 1
    return View(view.buffer, shape, view.offset, (rows,) + (0,) * (len(shape) - 1))
