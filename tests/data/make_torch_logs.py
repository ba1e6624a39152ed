"""Writes the small logs in tests/data/torch_logs: `PYTHONPATH=src:tests python tests/data/make_torch_logs.py`.

What three ranks of a job wrote to stderr: lines of torch between the job's own, an uncaught error, and the prefix that
torch had up to version 2.2. Equal code gives equal bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from read.log_lines import JOB, Logger, traceback_text

FOLDER = Path(__file__).parent / "torch_logs"
_N_CUTS = 64  # as tests/conformance cuts each file


def current() -> str:
    """Prints, a progress bar, colours, and all that the tables have of torch 2.13."""
    log = Logger()
    parts = [
        log.symbol("0/0", "s7", 48, "L['x'].size()[0]"),
        log.constant("0/0", "s7", 48),
        log.lines("Guard eval latency = 81.50 us", "0/0", "guards"),
        "loading the data\n\r 10%|#         | 1/10\r 20%|##        | 2/10",
        log.graph_break("1/0", 31, "Failed to trace builtin operator"),
        "\x1b[32mloss 1.25\x1b[0m\n",
        log.repeated_break("1/0_1", 31, "Failed to trace builtin operator"),
        log.lines("Using FallbackKernel: aten.sort.stable", "1/0_1", "perf_hints", level="I"),
    ]
    for number in range(1, 9):
        mismatch = "0/{}: tensor 'x' size mismatch at index 0. expected {}, actual {}"
        reasons = [mismatch.format(version, version + 2, number + 2) for version in range(number - 1, -1, -1)]
        parts.append(log.recompile(f"0/{number}", *reasons[:2]))
    parts.append(log.limit("0/8", "0/7: tensor 'x' size mismatch at index 0. expected 9, actual 10"))
    return "".join(parts)


def failed() -> str:
    """A rank of a distributed job, with the error that ended it."""
    log = Logger(rank=3, pid=4714)
    return "".join(
        (
            log.graph_break("0/0", 31, "Failed to trace builtin operator"),
            log.recompile("1/1", "1/0: mode == 'up'  # if mode == 'up':  # ob/train.py:22 in step"),
            traceback_text("[rank3]: "),
        )
    )


def old() -> str:
    prefix = "[2023-11-16 06:18:20,{:03}] [0/{}] torch._dynamo.{}: [{}]"
    recompiled = prefix.format(896, 1, "guards.__recompiles", "DEBUG")
    broken = prefix.format(120, 0, "symbolic_convert.__graph_breaks", "DEBUG")
    return "".join(
        (
            f"{broken} Graph break: call_function print [ConstantVariable(str)] {{}} from user code at:\n",
            f'{broken}   File "{JOB}", line 31, in step\n{broken}     print(loss)\n{broken} \n',
            f"{recompiled} Recompiling function step in {JOB}:12\n",
            f"{recompiled}     triggered by the following guard failure(s):\n",
            f"{recompiled}     - tensor 'L['x']' size mismatch at index 0. expected 8, actual 9\n",
            f"{recompiled}     - L['mode'] == 'up'  # if mode == 'up':  # train.py:22 in step\n",
        )
    )


def _with_cuts_inside_lines(text: str) -> bytes:
    """A log that ends behind a line looks whole: none of the cuts that the conformance tests make may fall there."""
    content = text.encode()
    while any(content[at - 1] == ord("\n") for at in range(8, len(content), max(1, len(content) // _N_CUTS))):
        content += b"."
    return content + b"\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "stderr_rank_0").write_bytes(_with_cuts_inside_lines(current() + "done "))
    (FOLDER / "stderr_rank_1").write_bytes(_with_cuts_inside_lines(old() + "done "))
    (FOLDER / "stderr_rank_3.gz").write_bytes(gzip.compress(failed().encode(), mtime=0))


if __name__ == "__main__":
    main()
