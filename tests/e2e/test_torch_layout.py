"""`--torch-layout`, loaded with torch's own types and compared with what torchfrtrace makes of the same dumps."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from read.dumps import make_dump, make_entry, write_dump

pytestmark = pytest.mark.e2e

DATA, TENSOR = Mesh(dp=4, tp=1), Mesh(dp=2, tp=2)
WORLD = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}}


def _simulated(fault: str, mesh: Mesh) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        simulate(JobSpec(mesh, steps=2), Fault(fault, rank=2, step=1) if fault else None).write(folder)

    return build


def _made(*calls: Callable[[int], dict[str, Any]]) -> Callable[[Path], None]:
    """A job of four ranks, of which each call is made by its rank."""

    def build(folder: Path) -> None:
        for rank in range(4):
            entries = [{**call(rank), "record_id": number} for number, call in enumerate(calls)]
            write_dump(folder / f"nccl_trace_rank_{rank}", make_dump(entries, **WORLD))

    return build


def _ended(seq: int, **fields: Any) -> dict[str, Any]:
    at = 10**9 * (seq + 2)
    return make_entry(seq, state="completed", retired=True, time_discovered_completed_ns=at, **fields)


def _broadcast(rank: int) -> dict[str, Any]:
    name = {"profiling_name": "nccl:broadcast"}
    return make_entry(2, **name) if rank == 3 else _ended(2, **name)


def _exchange(*received: int) -> Callable[[int], dict[str, Any]]:
    def call(rank: int) -> dict[str, Any]:
        sizes = {"input_sizes": [[8]], "output_sizes": [[received[rank]]]}
        return make_entry(2, profiling_name="nccl:all_to_all", **sizes)

    return call


CASES = {
    "healthy": _simulated("", DATA),
    "healthy, with groups": _simulated("", TENSOR),
    "another operation": _simulated("op", DATA),
    "another operation in a group of two": _simulated("op", TENSOR),
    "another size": _simulated("size", DATA),
    "another type": _simulated("dtype", DATA),
    "not completed by one": _made(lambda _: _ended(1), _broadcast),
    "uneven exchange that fits": _made(lambda _: _ended(1), _exchange(7, 9, 8, 8)),
    "exchange that does not fit": _made(lambda _: _ended(1), _exchange(9, 8, 8, 8)),
}


def ours(folder: Path, path: Path) -> tuple[Any, Any]:
    main(["fr", str(folder), "-o", str(path), "--torch-layout"])
    types, database = pickle.loads(path.read_bytes())
    return types, database


def theirs(folder: Path) -> Any:
    """torch's own builder on the dumps in the order of their ranks: it takes them as they are listed."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dump

    files = sorted(folder.iterdir(), key=lambda file: int(re.sub(r"\D", "", file.name)))
    details = {file.name: read_dump(file.name.rstrip("0123456789"), str(file)) for file in files}
    args = JobConfig().parse_args([str(folder)])
    return build_db(details, args, str(details[files[0].name]["version"]))


def plain(value: Any) -> Any:
    """For comparing: a MatchInfo knows no equality, only its text."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return str(value) if type(value).__name__ == "MatchInfo" else value


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    folder = tmp_path_factory.mktemp("job") / "dumps"
    CASES[request.param](folder)
    types, database = ours(folder, folder.parent / "flat.pickle")
    return types, database, theirs(folder)


def test_rows_are_those_of_torch(both: tuple[Any, Any, Any]) -> None:
    from torch.distributed.flight_recorder.components import types as torch_types

    types, mine, other = both
    assert types == torch_types.types
    assert type(mine) is torch_types.Database
    assert plain(mine.groups) == plain(other.groups)
    assert plain(mine.memberships) == plain(other.memberships)
    assert plain(mine.collectives) == plain(other.collectives)


def test_calls_are_those_of_torch_with_what_it_leaves_open(both: tuple[Any, Any, Any]) -> None:
    _, mine, other = both
    assert [call._replace(traceback_id=0) for call in mine.ncclcalls if call.collective_id is not None] == [
        call for call in other.ncclcalls if call.collective_id is not None
    ]
    # torch writes the first rank's name into the calls of all; here each has its own.
    assert [(call.id, call.global_rank) for call in mine.ncclcalls] == [
        (call.id, call.global_rank) for call in other.ncclcalls
    ]
    texts = {row.id: row.frames for row in mine.tracebacks}
    assert all(re.search(r"\w+ at .*\.py:\d+", texts[call.traceback_id]) for call in mine.ncclcalls)
    assert other.tracebacks == []


def test_a_rank_that_never_came_is_told(tmp_path: Path) -> None:
    """torch sets pass_check there although ranks are missing."""
    simulate(JobSpec(DATA, steps=2), Fault("stuck", rank=2, step=1)).write(tmp_path / "dumps")
    _, database = ours(tmp_path / "dumps", tmp_path / "flat.pickle")
    open_ones = [row for row in database.collectives if not row.pass_check]
    assert open_ones[0].missing_ranks == {2}
    assert {call.collective_id for call in database.ncclcalls} - {None} == {
        row.id for row in database.collectives if row.pass_check
    }


def test_the_pickle_names_the_classes_of_torch_and_nothing_else(tmp_path: Path) -> None:
    simulate(JobSpec(TENSOR, steps=1)).write(tmp_path / "dumps")
    main(["fr", str(tmp_path / "dumps"), "-o", str(tmp_path / "flat.pickle"), "--torch-layout"])
    modules = set()

    class Recording(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            modules.add(module.partition(".")[0].lstrip("_"))
            return super().find_class(module, name)

    Recording(io.BytesIO((tmp_path / "flat.pickle").read_bytes())).load()
    assert modules == {"torch", "builtins", "types", "functools", "operator"}
