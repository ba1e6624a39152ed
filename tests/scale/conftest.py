from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale.comparing import write_traces


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks; not to be changed."""
    folder = tmp_path_factory.mktemp("traces")
    write_traces(folder)
    return folder


@pytest.fixture
def store() -> Iterator[Any]:
    """An object store in the memory of this process, empty."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()
