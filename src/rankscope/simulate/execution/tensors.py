"""What each operator of a step takes and gives, so that outputs are the inputs of what comes after."""

from __future__ import annotations

from typing import TypeAlias

from rankscope.simulate.execution.memory import FLOAT, LONG, Buffer, Memory, Shape, View, split_in_three, spread
from rankscope.simulate.execution.nodes import Device, Opaque
from rankscope.simulate.profiler.program import MAIN_THREAD, Span, StepProgram

Value: TypeAlias = "View | Device | Opaque | str | int | float | list[Value] | None"
Values: TypeAlias = "tuple[Value, ...]"

_OPTIONS: dict[str, Values] = {
    "aten::addmm": (1, 1),
    "aten::add": (1,),
    "aten::add_": (1,),
    "aten::gelu": ("none",),
    "aten::layer_norm": (0.00001, True),
    "aten::native_layer_norm": (0.00001,),
    "aten::log_softmax": (1, None),
    "aten::_log_softmax": (1, False),
}
"""What follows the tensors."""
_ADAMW_OPTIONS: Values = (0.0003, 0.9, 0.95, 0.1, 0.00000001, False, False, None, None)
_TO_HOST = ("aten::item", "aten::_local_scalar_dense")
ACCUMULATE = "torch::autograd::AccumulateGrad"
EVALUATE = "autograd::engine::evaluate_function: "


class StepTensors:
    """Follows the operators of one step as they are called and as they return."""

    def __init__(self, memory: Memory, program: StepProgram, device: Device) -> None:
        self.memory = memory
        self.n_places = program.n_sequences // memory.spec.n_microbatches
        """Operators of a forward pass."""
        self.device = device
        self.exchanged: View | None = None
        """What the collective or transfer under way is about."""
        self.incoming = View(Buffer(1), ())
        """What the next forward or backward pass begins with: a batch, a loss, or what came from another stage."""
        self.activation = self.gradient = self.residual = self.latest = self.incoming
        self.loss: View | None = None
        """Only the last stage has one."""
        self.host_batch: View | None = None
        batches = (span.dims[0] for span in program.spans if span.name == "aten::copy_")
        self.batch_shape: Shape = next(batches, ())
        self.place = 0
        self.microbatch = 0
        self.input_gradient: View | None = None
        self.weight_gradient: View | None = None
        self.n_zeroed = self.n_reduced = self.n_optimized = 0

    def called(self, span: Span, peer: int) -> Values:
        """The inputs, in the order in which the profiler has their shapes. The peer is that of a transfer."""
        if span.category == "user_annotation":
            return (self.exchanged,) if self.exchanged and span.name.startswith("nccl:") else ()
        if span.name.startswith(EVALUATE):
            return ()
        if span.sequence >= 0:
            tensors = self._enter_forward(span) if span.thread == MAIN_THREAD else self._enter_backward(span)
            return (*tensors, *_OPTIONS.get(span.name, ()))
        if span.name.startswith("c10d::"):
            return self._exchange(span, peer)
        if span.thread != MAIN_THREAD:
            return self._gradient_inputs(span)
        return self._other_inputs(span)

    def returned(self, span: Span) -> Values:
        """The outputs."""
        if span.category == "user_annotation" or span.name.startswith(EVALUATE):
            return ()
        if span.sequence >= 0:
            return (self._leave_forward(span),) if span.thread == MAIN_THREAD else self._leave_backward()
        if span.name.startswith("c10d::"):
            return self._exchange_outputs(span)
        if span.name == "record_param_comms":
            return ([self.exchanged],)
        if span.thread != MAIN_THREAD:
            return self._gradient_outputs(span)
        return self._other_outputs(span)

    def _enter_forward(self, span: Span) -> tuple[View, ...]:
        self.microbatch, self.place = divmod(span.sequence, self.n_places)
        inputs = self.memory.microbatches[self.microbatch].inputs
        if self.place not in inputs:
            if self.place == 0:
                self._begin_forward(span.dims[0])
            inputs[self.place] = self._forward_inputs(span)
        return inputs[self.place]

    def _begin_forward(self, shape: Shape) -> None:
        self.activation = self.residual = spread(self.incoming, shape)
        begun_with = [self.incoming] if self.host_batch is None else [self.incoming, self.host_batch]
        self.memory.microbatches[self.microbatch].buffers += [view.buffer for view in begun_with]
        self.host_batch = None

    def _forward_inputs(self, span: Span) -> tuple[View, ...]:
        parameter, activation = self.memory.parameter, self.activation
        if span.name == "aten::linear":
            bias, rows, weight = span.dims
            return parameter(self.place, 0, bias), activation.viewed_as(rows), parameter(self.place, 2, weight)
        if span.name == "aten::layer_norm":
            rows, weight, bias = span.dims
            return activation.viewed_as(rows), parameter(self.place, 1, weight), parameter(self.place, 2, bias)
        if span.name == "aten::scaled_dot_product_attention":
            return split_in_three(activation, span.dims[0])
        if span.name == "aten::add":
            return activation, self.residual
        return tuple(activation.viewed_as(shape) for shape in span.dims)

    def _leave_forward(self, span: Span) -> View:
        if span.name == "aten::cross_entropy_loss":
            if self.loss is not None:
                self.memory.release(self.loss.buffer)
            self.incoming = self.loss = self.memory.allocate((), FLOAT)
            return self.loss
        microbatch = self.memory.microbatches[self.microbatch]
        if self.place not in microbatch.outputs:
            is_linear = span.name == "aten::addmm"
            shape = (span.dims[1][0], span.dims[2][1]) if is_linear else span.dims[0]
            self.activation = self.latest = self.memory.allocate_for(self.microbatch, shape)
            microbatch.outputs[self.place] = self.activation
            if span.name == "aten::add":
                self.residual = self.activation
        return microbatch.outputs[self.place]

    def _enter_backward(self, span: Span) -> tuple[View, ...]:
        self.microbatch, self.place = divmod(span.sequence, self.n_places)
        if self.place == self.n_places - 1:
            self.gradient = self.incoming
            if self.gradient is not self.loss:
                self.memory.microbatches[self.microbatch].buffers.append(self.gradient.buffer)
        self.input_gradient = self.weight_gradient = None
        return (spread(self.gradient, span.dims[0]),)

    def _leave_backward(self) -> Values:
        self.gradient = self.latest = self.input_gradient or self.gradient
        if self.place == 0:
            self.memory.finish(self.microbatch, self.gradient.buffer)
        return ()

    def _gradient_inputs(self, span: Span) -> Values:
        if span.name in (ACCUMULATE, "aten::detach"):
            return (self.weight_gradient,)
        if span.name == "aten::add_":
            return self.memory.parameter_gradient(self.place, span.dims[0]), self.weight_gradient, *_OPTIONS[span.name]
        if not span.dims or span.exchange:
            return ()
        saved = self.memory.microbatches[self.microbatch].inputs[self.place]
        return (spread(self.gradient, span.dims[0]), *saved[1:])

    def _gradient_outputs(self, span: Span) -> Values:
        if span.name == ACCUMULATE or not span.dims:
            return ()
        if span.name == "aten::add_":
            return (self.memory.parameter_gradient(self.place, span.dims[0]),)
        if span.name == "aten::detach":
            assert self.weight_gradient is not None
            return (View(self.weight_gradient.buffer, span.dims[0], self.weight_gradient.offset),)
        if self.input_gradient is None:
            rows = span.dims[1] if span.name == "aten::mm" else span.dims[0]
            self.input_gradient = self.memory.allocate_for(self.microbatch, rows)
            return (self.input_gradient,)
        self.weight_gradient = self._new_weight_gradient(span.dims[-1])
        return (self.weight_gradient,)

    def _new_weight_gradient(self, shape: Shape) -> View:
        """The first microbatch computes it where it is to stay, all others beside it."""
        if self.microbatch == 0:
            return self.memory.parameter_gradient(self.place, shape)
        return self.memory.allocate_for(self.microbatch, shape)

    def _exchange(self, span: Span, peer: int) -> Values:
        shape = span.dims[0]
        if span.name == "c10d::allreduce_":
            self.n_reduced += 1
            self.exchanged = self.memory.gradients[-self.n_reduced]
            return [self.exchanged], Opaque(), Opaque(), None, True, -1
        if span.name == "c10d::send":
            self.exchanged = self.latest.viewed_as(shape)
        else:
            self.exchanged = self.incoming = self.memory.allocate(shape)
        return [self.exchanged], Opaque(), peer, 0

    def _exchange_outputs(self, span: Span) -> Values:
        return ([self.exchanged], Opaque()) if span.name == "c10d::allreduce_" else (Opaque(),)

    def _other_inputs(self, span: Span) -> Values:
        memory = self.memory
        if span.name == "aten::to":
            self.host_batch = memory.allocate(self.batch_shape, LONG, is_on_host=True)
            self.incoming = memory.allocate(self.batch_shape, LONG)
            return self.host_batch, None, None, self.device, None, True, False, None
        if span.name == "aten::copy_":
            return self.incoming, self.host_batch, True
        if span.name == "aten::zero_":
            self.n_zeroed += 1
            return (memory.gradients[self.n_zeroed - 1],)
        if span.name == "aten::_fused_adamw_":
            layer, self.n_optimized = self.n_optimized, self.n_optimized + 1
            first, second = memory.moments
            columns = memory.weights, memory.gradients, first, second
            lists: list[Value] = [[column[layer]] for column in columns]
            return *lists, [], [memory.steps[layer]], *_ADAMW_OPTIONS
        if span.name == "aten::item":
            self.latest = self.loss or self.latest.viewed_as(())
        return (self.latest,) if span.name in _TO_HOST else ()

    def _other_outputs(self, span: Span) -> Values:
        if span.name in ("aten::to", "aten::copy_"):
            return (self.incoming,)
        if span.name == "aten::zero_":
            return (self.memory.gradients[self.n_zeroed - 1],)
        return (2.5,) if span.name in _TO_HOST else ()
