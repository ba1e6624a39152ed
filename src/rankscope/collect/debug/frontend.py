"""The frontend of torch's debug server as a process of its own, which ends with the rank that started it.

torch forks it from rank 0 or starts it with the job's main module. The first leaves copies of the rank's connections
open when the rank dies, so that its peers do not notice; the second runs a script that has no guard once more.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping

from rankscope.collect.settings import VARIABLE

_SOURCE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from rankscope.collect.debug.frontend import serve; serve(int(sys.argv[2]))"
)
_NOT_FOR_IT = (VARIABLE, "TORCH_TRACE", "TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_FR_DUMP_TEMP_FILE")
EXTRA = "live"  # of this package: brings what the frontend needs
_NEEDED, _ONE_OF = ("jinja2", "tabulate"), ("aiohttp", "requests")
_FIRST_TORCH = (2, 10)
_QUESTION = (
    "import importlib.metadata as m, importlib.util as u, sys;"
    "print(m.version('torch'), *(name for name in sys.argv[1:] if u.find_spec(name)))"
)
_ASK_SECONDS = 60.0
_END_SECONDS = 2.0
_TO_PARENT = 1


def missing_packages() -> str:
    """What the frontend needs and this Python does not have."""
    return ", ".join(_absent({name for name in (*_NEEDED, *_ONE_OF) if importlib.util.find_spec(name) is not None}))


def ask_python(python: str) -> list[str] | None:
    """What the debug server needs and that Python does not have; None where it does not answer."""
    quiet = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, *_NEEDED, *_ONE_OF],
            env=quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
        version, *present = done.stdout.splitlines()[-1].split()
        numbers = tuple(map(int, version.split(".")[:2]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    old = [] if numbers >= _FIRST_TORCH else [f"torch>={'.'.join(map(str, _FIRST_TORCH))}"]
    return old + _absent(set(present))


def _absent(present: set[str]) -> list[str]:
    absent = [name for name in _NEEDED if name not in present]
    return absent if present.intersection(_ONE_OF) else [*absent, _ONE_OF[0]]


def start_frontend(port: int, where: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """`where`: the variables that name the job's store and its size."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
    environment.update(where, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return subprocess.Popen(
        [sys.executable, "-c", _SOURCE, json.dumps(sys.path), str(port)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def end_frontend(process: subprocess.Popen[bytes]) -> str:
    """Ends it; returns what it printed if it had already exited."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    said = process.stdout.read(1000).decode("utf-8", "replace").strip()
    process.stdout.close()
    return said


def serve(port: int) -> None:
    """In the process of the frontend: until the rank is gone, which closes the pipe from it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from torch.distributed.debug._debug_handlers import default_handlers
        from torch.distributed.debug._frontend import main

        main(port=port, dump_dir=None, dump_interval=60.0, handlers=default_handlers(), enabled_dumps=set())
    except BaseException as error:  # whatever it is, the rank is told why there is no frontend
        os.write(_TO_PARENT, f"{type(error).__name__}: {error}".encode(errors="replace"))
        raise


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
