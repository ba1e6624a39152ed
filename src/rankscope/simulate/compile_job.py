"""A job that compiles its model on every rank, and the TORCH_TRACE logs that it would leave, with a known fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rankscope.simulate.compile_log import LogBuilder, Site
from rankscope.simulate.sites import EXAMPLE, Statement, line_of

COMPILE_FAULT_HELP = {
    "recompiles": "a Python number that changes makes torch.compile recompile until it hits the limit",
    "graph-break": "a print of a tensor's value (Tensor.item()) in the model causes a graph break",
    "odd-graph": "one rank gets batches of a different size and compiles a different graph",
}
HEALTHY_COMPILE = "healthy-compile"
_FILE = str(EXAMPLE / "scoring.py")
_LIMIT = 8
_BATCH, _OTHER_BATCH, _WIDTH = 32, 24, 128


class CompileTruth(NamedTuple):
    """What the diagnosis has to find."""

    code: str
    ranks: tuple[int, ...]
    note: str


@dataclass(frozen=True)
class CompileSimulation:
    n_ranks: int
    fault: str
    truth: CompileTruth
    logs: tuple[LogBuilder, ...]

    def write(self, folder: Path) -> None:
        for log in self.logs:
            log.write(folder)


def simulate_compiling(n_ranks: int, fault: str, rank: int | None = None, seed: int = 0) -> CompileSimulation:
    """The logs of all ranks. `rank` is the one that differs from the others, where one does."""
    random = Random(seed)
    odd = random.randrange(n_ranks) if rank is None else rank
    logs = tuple(LogBuilder(number, pid=4000 + number) for number in range(n_ranks))
    for number, log in enumerate(logs):
        log.torch_version("2.13.0")
        _compile(log, "0/0", random.uniform(6, 8), breaks=fault == "graph-break")
        if fault == "recompiles":
            _recompile_to_the_limit(log, random)
        elif fault == "odd-graph" and number == odd:
            _recompile_for_size(log, random)
    return CompileSimulation(n_ranks, fault, _truth(fault, n_ranks, odd), logs)


def _truth(fault: str, n_ranks: int, odd: int) -> CompileTruth:
    all_ranks = tuple(range(n_ranks))
    if fault == HEALTHY_COMPILE:
        return CompileTruth("", (), "Nothing is wrong with this job: each rank compiled its model once.")
    if fault == "recompiles":
        note = f"All ranks compiled the model {_LIMIT} times, once for each temperature, and gave up."
        return CompileTruth("C401", all_ranks, note)
    if fault == "graph-break":
        return CompileTruth("C404", all_ranks, "A Tensor.item() in the model breaks its graph on all ranks.")
    return CompileTruth("C411", (odd,), f"Rank {odd} alone got a batch of {_OTHER_BATCH} and compiled for it as well.")


def _line(function: str, text: str) -> int:
    return line_of(Statement("scoring.py", function, text), Path(_FILE).read_text("utf-8"))


def _sites() -> tuple[Site, Site]:
    """Where the compiled model is called, and the model itself."""
    call = "shared_loss(step(batch, temperature)"
    caller = Site(_FILE, _line("train", call), "train", f'{call}, "dp").backward()')
    return caller, Site(_FILE, _line("Scorer.forward", "hidden = torch.relu") - 1, "forward")


def _compile(log: LogBuilder, compile_id: str, seconds: float, *, breaks: bool = False, batch: int = _BATCH) -> None:
    """One compilation with its phases, graph and code; with a break, the part before it and the part behind it."""
    caller, model = _sites()
    log.chromium("dynamo", "B", compile_id)
    log.start(compile_id, (caller, model))
    if breaks:
        text = 'print("norm", hidden.norm().item())'
        line = _line("Scorer.forward", text)
        reason = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
        log.graph_break(compile_id, _FILE, line, reason, function="forward", code=text)
    log.wait(seconds * 0.1).graph(compile_id, _graph(batch))
    log.chromium("inductor_compile", "B", compile_id)
    components = {"gm": _graph(batch), "inputs_to_check": "[0]", "inductor_config": "{}"}
    log.wait(seconds * 0.8).cache_miss(compile_id, f"f{batch}", components)
    log.artifact("inductor_collective_schedule", list(_SCHEDULE), compile_id)
    log.record("inductor_output_code", {"filename": f"/tmp/inductor/c{batch}.py"}, _CODE, **_ids(compile_id))
    log.chromium("inductor_compile", "E", compile_id)
    log.wait(seconds * 0.1).chromium("dynamo", "E", compile_id)
    restarts = [reason] if breaks else []
    log.metrics(compile_id, seconds, **_metrics(seconds), restart_reasons=restarts)
    if breaks:
        resumed = "torch_dynamo_resume_in_forward_at_" + str(line)
        log.start("1/0", (caller, Site(_FILE, line, resumed)))
        log.graph("1/0", _graph(batch, "head")).wait(seconds * 0.6)
        log.metrics("1/0", seconds * 0.6, **{**_metrics(seconds * 0.6), "co_name": resumed, "co_firstlineno": line})


def _recompile_to_the_limit(log: LogBuilder, random: Random) -> None:
    code = "return self.head(hidden) / temperature"
    comment = f"# {code}  # {_FILE}:{_line('Scorer.forward', code)} in forward"
    values = [round(1 - 0.05 * number, 2) for number in range(_LIMIT + 1)]
    for version in range(1, _LIMIT + 1):
        compile_id = f"0/{version}"
        log.wait(0.5)
        reasons = [f"0/{older}: temperature == {values[older]}    {comment}" for older in reversed(range(version))]
        log.recompile(compile_id, reasons)
        if version < _LIMIT:
            _compile(log, compile_id, random.uniform(3, 4))
        else:
            failure = f"Dynamo recompile limit exceeded\n  Explanation: exceeded the recompile_limit ({_LIMIT})."
            nameless: dict[str, Any] = {
                "co_name": None,
                "co_filename": None,
                "co_firstlineno": None,
                "graph_op_count": None,
            }
            log.metrics(compile_id, 0.002, fail_type="Unsupported", fail_reason=failure, **nameless)


def _recompile_for_size(log: LogBuilder, random: Random) -> None:
    log.wait(0.5)
    log.recompile("0/1", f"0/0: tensor 'batch' size mismatch at index 0. expected {_BATCH}, actual {_OTHER_BATCH}")
    _compile(log, "0/1", random.uniform(4, 5), batch=_OTHER_BATCH)


def _metrics(seconds: float) -> dict[str, Any]:
    """Where the time goes, in about the shares that a small model has."""
    _, model = _sites()
    micros = seconds * 1e6
    return {
        "co_name": model.function,
        "co_filename": model.file,
        "co_firstlineno": model.line,
        "dynamo_cumulative_compile_time_us": int(micros),
        "backend_compile_time_s": 0.9 * seconds,
        "aot_autograd_cumulative_compile_time_us": int(0.9 * micros),
        "inductor_cumulative_compile_time_us": int(0.7 * micros),
        "inductor_code_gen_cumulative_compile_time_us": int(0.6 * micros),
    }


def _ids(compile_id: str) -> dict[str, int]:
    frame, _, version = compile_id.partition("/")
    return {"frame_id": int(frame), "frame_compile_id": int(version), "attempt": 0}


def _graph(batch: int, part: str = "all") -> str:
    shape = f"f32[{batch}, {_WIDTH}]"
    lines = ["class GraphModule(torch.nn.Module):", f'    def forward(self, L_batch_: "{shape}cuda:0"):']
    if part == "all":
        lines += [
            f'        linear: "{shape}cuda:0" = torch._C._nn.linear(L_batch_, weight, bias)',
            f'        hidden: "{shape}cuda:0" = torch.relu(linear)',
        ]
    lines += [f'        linear_1: "f32[{batch}, 1]cuda:0" = torch._C._nn.linear(hidden, weight_1, bias_1)']
    return "\n".join([*lines, "        return (linear_1,)"])


_SCHEDULE = ("torch.ops._c10d_functional.all_reduce_.default", "torch.ops._c10d_functional.wait_tensor.default")
_CODE = """\
def call(args):
    buf0, = args
    torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', 'dp')
    torch.ops._c10d_functional.wait_tensor.default(buf0)
    return (buf0,)
"""
