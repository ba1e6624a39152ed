"""Text as torch's loggers write it, for tests and fixtures: every line of a message behind its prefix."""

from __future__ import annotations

from dataclasses import dataclass

_MODULES = {
    "recompiles": "torch/_dynamo/guards.py:5396",
    "recompiles_verbose": "torch/_dynamo/guards.py:5394",
    "guards": "torch/_dynamo/guards.py:4483",
    "graph_breaks": "torch/_dynamo/symbolic_convert.py:5124",
    "perf_hints": "torch/_inductor/graph.py:1002",
}
JOB = "/job/train.py"


@dataclass
class Logger:
    """One process of a job."""

    rank: int | None = None
    pid: int = 4711
    second: float = 0.0

    def lines(self, text: str, compile_id: str = "", channel: str = "", *, level: str = "V", module: str = "") -> str:
        """One message, 100 ms after the last one."""
        self.second = round(self.second + 0.1, 3)
        rank = "" if self.rank is None else f"[rank{self.rank}]:"
        where = module or _MODULES.get(channel, "torch/fx/experimental/symbolic_shapes.py:5743")
        minute, second = divmod(self.second, 60)
        prefix = f"{rank}{level}1116 06:{int(minute):02}:{second:09.6f} {self.pid} {where}]"
        prefix += f" [{compile_id}]" * bool(compile_id) + f" [__{channel}]" * bool(channel)
        return "".join(f"{prefix} {line}\n" for line in text.split("\n"))

    def recompile(self, compile_id: str, *reasons: str, function: str = "step", line: int = 12) -> str:
        failed = "\n".join(f"    - {part}" for reason in reasons for part in reason.split("\n"))
        heading = f"Recompiling function {function} in {JOB}:{line}\n    triggered by the following guard failure(s):"
        return self.lines(f"{heading}\n{failed}", compile_id, "recompiles")

    def limit(self, compile_id: str, reason: str, function: str = "step", line: int = 12) -> str:
        text = f"torch._dynamo hit config.recompile_limit (8)\n   function: '{function}' ({JOB}:{line})\n"
        text += f'   last reason: {reason}\nTo log all recompilation reasons, use TORCH_LOGS="recompiles".\n'
        text += "To diagnose recompilation issues, see https://example.org/recompilation"
        return self.lines(text, compile_id, level="W", module="torch/_dynamo/convert_frame.py:1994")

    def graph_break(self, compile_id: str, line: int, reason: str, code: str = "print(loss)") -> str:
        text = f"Graph break in user code at {JOB}:{line}\n{break_reason(reason)}\nUser code traceback:\n"
        text += f'  File "{JOB}", line 90, in <module>\n    main()\n  File "{JOB}", line {line}, in step\n    {code}\n'
        return self.lines(text, compile_id, "graph_breaks")

    def repeated_break(self, compile_id: str, line: int, reason: str) -> str:
        text = f"Graph break (user stack suppressed due to duplicate graph break) in user code at {JOB}:{line}\n"
        return self.lines(text + break_reason(reason), compile_id, "graph_breaks")

    def symbol(self, compile_id: str, name: str, value: int, source: str) -> str:
        where = f"y = x + 1  # ob/train.py:14 in step ({'_dynamo/variables/builder.py'}:4960 in <lambda>)"
        return self.lines(f"create_symbol {name} = {value} for {source} [2, int_oo] {where}", compile_id, level="I")

    def constant(self, compile_id: str, name: str, value: int) -> str:
        """A comparison in the user's code makes the symbol a constant."""
        where = "if n == 48:  # the last batch  # ob/train.py:15 in step (_dynamo/variables/tensor.py:2606 in evaluate)"
        guard = self.lines(f"eval Eq({name}, {value}) [guard added] {where}, for more info run with A=1", compile_id)
        replaced = f"set_replacement {name} = {value} (range_refined_to_singleton) VR[{value}, {value}]"
        return guard + self.lines(replaced, compile_id, level="I")


def break_reason(reason: str) -> str:
    return (
        f"Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call\n\n{reason}\n"
        "  Explanation: it cannot be part of a graph.\n  Hint: Leave it out.\n\n  Developer debug context: none\n\n"
        " For more details, please visit: https://example.org/gb/gb0059.html\n"
    )


def traceback_text(label: str = "", exception: str = "torch._dynamo.exc.Unsupported: no graph holds this") -> str:
    """As Python prints an error that nobody caught; torch puts the rank before each line but the empty ones."""
    text = f"""Traceback (most recent call last):
  File "{JOB}", line 90, in <module>
    main()
  File "/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 1177, in compile_wrapper
    raise e.with_traceback(
{exception}
  Explanation: it prints.

from user code:
   File "{JOB}", line 31, in step
    print(loss)

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""
    return "".join(f"{label}{line}\n" if line else "\n" for line in text.splitlines())
