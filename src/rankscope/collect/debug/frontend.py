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
_END_SECONDS = 2.0
_TO_PARENT = 1


def missing_packages() -> str:
    """What the frontend needs and this Python does not have."""
    absent = [name for name in ("jinja2", "tabulate") if importlib.util.find_spec(name) is None]
    if not any(map(importlib.util.find_spec, ("aiohttp", "requests"))):
        absent.append("aiohttp")
    return ", ".join(absent)


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
    """Ends it; what it had to say if it had ended by itself."""
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
