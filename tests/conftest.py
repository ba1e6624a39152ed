"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# Whole simulated jobs, sample traces, exports to every format: they take minutes together and are left to `make test`.
SLOW_FILES = (
    "analyze/test_comm_matching.py",
    "analyze/test_comm_stragglers.py",
    "analyze/test_comm_traffic.py",
    "analyze/test_device_samples.py",
    "analyze/test_host_processes.py",
    "analyze/test_host_rules.py",
    "analyze/test_host_waits.py",
    "analyze/test_intervals.py",
    "analyze/test_path_samples.py",
    "analyze/test_profile_clocks.py",
    "analyze/test_whatif.py",
    "cli/test_export.py",
    "cli/test_fr.py",
    "cli/test_metrics.py",
    "cli/test_simulated_job.py",
    "read/test_groups.py",
    "read/test_nsys.py",
    "read/test_nsys_forms.py",
    "read/test_nsys_hostile.py",
    "read/test_nsys_nccl.py",
    "read/test_nsys_ranks.py",
    "scale/test_cache.py",
    "scale/test_remote.py",
    "simulate/test_profile_truth.py",
    "simulate/test_simulate.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(SLOW_FILES):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the cache of the person who runs them; the processes they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
