"""The training loop of the simulated job: one step of each pipeline stage, one forward one backward."""

from __future__ import annotations

from rankscope.simulate.profiler.operators import (
    ACCUMULATE,
    ADAMW,
    ALL_REDUCE,
    HIDDEN,
    LAYER,
    PARAMETERS_PER_LAYER,
    SEND_RECEIVE,
    TOKENS,
    Operator,
    make_head,
)
from rankscope.simulate.profiler.program import (
    ALL_REDUCE_STREAM,
    BACKWARD_THREAD,
    COMPUTE_STREAM,
    MAIN_THREAD,
    StepProgram,
    StepWriter,
)
from rankscope.simulate.profiler.spec import ProfileSpec

STEP_NAME = "ProfilerStep#"
_DATA_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_TRANSFER_STREAMS = {("recv", -1): 44, ("send", 1): 48, ("recv", 1): 52, ("send", -1): 56}
_OPERATOR_NAME = {"allreduce": "c10d::allreduce_", "send": "c10d::send", "recv": "c10d::recv_"}

Layers = tuple[tuple[Operator, ...], ...]


def write_step(spec: ProfileSpec, stage: int, *, tokens: int = TOKENS, last_stage_factor: float = 1.0) -> StepProgram:
    """The program of every rank of the stage, with this many tokens per microbatch and a head that makes the last stage
    larger than the others by the factor."""
    layers: Layers = (tuple(operator.scaled(tokens) for operator in LAYER),) * spec.n_layers
    is_last = stage == spec.stages - 1
    if is_last:
        head = make_head(spec.n_layers, last_stage_factor)
        layers = (*layers, tuple(operator.scaled(tokens) for operator in head))
    return _TrainStep(spec, stage, layers, tokens).write()


class _TrainStep:
    def __init__(self, spec: ProfileSpec, stage: int, layers: Layers, tokens: int) -> None:
        self.spec = spec
        self.stage = stage
        self.layers = layers
        self.tokens = tokens
        self.host = StepWriter()
        self.sequences: dict[tuple[int, int, int], int] = {}
        """Autograd's numbers by microbatch, layer and operator."""
        self.n_backwards = 0
        self.unfinished: list[int] = []
        """The calls that recorded the ends of exchanges for which nothing waits yet."""

    def write(self) -> StepProgram:
        host = self.host
        with host.annotation(STEP_NAME, needs="steps"), host.frame("train.py(88): train_step"):
            with host.annotation(_DATA_LOADER), host.frame("torch/utils/data/dataloader.py(732): __next__"):
                host.spend(420_000)
                host.pause("data-loading")
            with host.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
                self._zero_gradients()
            self._run_schedule()
            with host.annotation("Optimizer.step#AdamW.step"), host.frame("torch/optim/adamw.py(212): step"):
                self._optimize()
            with host.operator("aten::item"), host.operator("aten::_local_scalar_dense"):
                host.copy_to_host(4)
                sync_tick = host.synchronize(COMPUTE_STREAM)
            host.spend(60_000)
        host.spend(35_000)  # the profiler's own step()
        return host.finish(sync_tick)

    def _zero_gradients(self) -> None:
        for _ in range(self.spec.n_layers):
            with self.host.operator("aten::zero_", ((PARAMETERS_PER_LAYER,),)):
                self.host.fill(2 * PARAMETERS_PER_LAYER)

    def _run_schedule(self) -> None:
        """One forward one backward: as many forwards ahead as there are stages behind, then in turns."""
        n_microbatches = self.spec.n_microbatches
        n_ahead = min(self.spec.stages - 1 - self.stage, n_microbatches)
        for microbatch in range(n_ahead):
            self._forward(microbatch)
        for microbatch in range(n_microbatches - n_ahead):
            self._forward(n_ahead + microbatch)
            self._backward(microbatch)
        for microbatch in range(n_microbatches - n_ahead, n_microbatches):
            self._backward(microbatch)
        self._finish_communication()

    def _forward(self, microbatch: int) -> None:
        host = self.host
        if self.stage == 0:
            with host.operator("aten::to"), host.operator("aten::copy_", ((self.tokens,),)):
                host.copy_to_device(8 * self.tokens)
        else:
            self._receive(-1)
        with host.annotation("DistributedDataParallel.forward"), host.frame("train.py(54): forward"):
            if microbatch == 0:
                self._compile()
            for number, layer in enumerate(self.layers):
                with host.frame(f"nn.Module: Block_{number}" if number < self.spec.n_layers else "nn.Module: Head_0"):
                    for index, operator in enumerate(layer):
                        self._run_forward(operator, (microbatch, number, index))
                if microbatch == 0 and number == 0:
                    with host.frame("<built-in function collect>", "garbage-collection"):
                        host.pause("garbage-collection")
        if self.stage < self.spec.stages - 1:
            self._send(1)

    def _compile(self) -> None:
        """Seen only where it takes time: the operators that torch.compile leaves around its own work."""
        host = self.host
        with (
            host.operator("dynamo", needs="compile"),
            host.operator("entire_frame_compile", needs="compile"),
            host.operator("_compile.compile_inner (dynamo_timed)", needs="compile"),
            host.operator("backend_compile", needs="compile"),
            host.operator("OutputGraph.call_user_compiler (dynamo_timed)", needs="compile"),
        ):
            host.pause("compile")

    def _run_forward(self, operator: Operator, position: tuple[int, int, int]) -> None:
        host = self.host
        sequence = self.sequences[position] = host.n_sequences
        host.n_sequences += 1
        host.spend(5_000)
        *outer, innermost = operator.names
        if outer:
            with host.operator(outer[0], operator.dims, sequence=sequence):
                self._launch_inside((*outer[1:], innermost), operator, sequence)
        else:
            self._launch_inside((innermost,), operator, sequence)

    def _launch_inside(self, names: tuple[str, ...], operator: Operator, sequence: int) -> None:
        is_innermost = len(names) == 1
        with self.host.operator(names[0], operator.dims, sequence=sequence, is_linked=is_innermost):
            if is_innermost:
                self.host.launch(operator.kernel)
            else:
                self._launch_inside(names[1:], operator, sequence)

    def _backward(self, microbatch: int) -> None:
        host = self.host
        if self.stage < self.spec.stages - 1:
            self._receive(1)
        host.spend(20_000)
        host.thread = BACKWARD_THREAD
        is_last = self.n_backwards == self.spec.n_microbatches - 1
        for number in reversed(range(len(self.layers))):
            for number_in_layer, operator in reversed(list(enumerate(self.layers[number]))):
                self._run_backward(operator, self.sequences[microbatch, number, number_in_layer])
            if is_last and number < self.spec.n_layers and self.spec.data_parallel > 1:
                self.unfinished.append(self._exchange("allreduce", 0, PARAMETERS_PER_LAYER, ALL_REDUCE_STREAM))
        host.thread = MAIN_THREAD
        host.spend(12_000)
        self.n_backwards += 1
        if self.stage > 0:
            self._send(-1)

    def _run_backward(self, operator: Operator, sequence: int) -> None:
        host = self.host
        name = operator.backward
        with (
            host.operator(f"autograd::engine::evaluate_function: {name}", sequence=sequence),
            host.operator(name, operator.dims[:1], sequence=sequence, is_linked=True),
        ):
            for inner, kernel in operator.backward_kernels:
                with host.operator(inner, operator.dims):
                    host.launch(kernel)
        if operator.n_parameters:
            with (
                host.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                host.operator("torch::autograd::AccumulateGrad"),
            ):
                if self.n_backwards:
                    with host.operator("aten::add_", (operator.dims[-1], operator.dims[-1])):
                        host.launch(ACCUMULATE)
                else:
                    with host.operator("aten::detach", operator.dims[-1:]):
                        host.spend(800)

    def _exchange(self, op: str, towards: int, n_elements: int, stream: int) -> int:
        """NCCL's stream waits for the compute stream, as torch makes it. Returns the event to wait for."""
        host = self.host
        exchange = host.next_exchange(op, towards, n_elements)
        with (
            host.operator(_OPERATOR_NAME[op], ((n_elements,),)),
            host.operator("record_param_comms", ((n_elements,),), exchange=exchange),
        ):
            host.wait_for_event(host.record_event(COMPUTE_STREAM), stream)
            with host.annotation(self._describe(op, towards)):
                host.launch(SEND_RECEIVE if towards else ALL_REDUCE, stream, exchange)
            return host.record_event(stream)

    def _describe(self, op: str, towards: int) -> str:
        """torch's title of the call, with the ranks inside the group."""
        if not towards:
            return "nccl:all_reduce"
        if self.spec.pipeline_groups == "line":
            stage, peer = self.stage, self.stage + towards
        else:
            stage, peer = (0, 1) if towards > 0 else (1, 0)
        return f"nccl:send {stage}->{peer}" if op == "send" else f"nccl:recv {stage}<-{peer}"

    def _send(self, towards: int) -> None:
        stream = _TRANSFER_STREAMS["send", towards]
        self.unfinished.append(self._exchange("send", towards, self.tokens * HIDDEN, stream))

    def _receive(self, towards: int) -> None:
        stream = _TRANSFER_STREAMS["recv", towards]
        self.host.wait_for_event(self._exchange("recv", towards, self.tokens * HIDDEN, stream), COMPUTE_STREAM)

    def _finish_communication(self) -> None:
        for event in self.unfinished:
            self.host.wait_for_event(event, COMPUTE_STREAM)

    def _optimize(self) -> None:
        for _ in range(self.spec.n_layers):
            self.host.spend(15_000)
            with self.host.operator("aten::_fused_adamw_", ((PARAMETERS_PER_LAYER,),)):
                self.host.launch(ADAMW)
