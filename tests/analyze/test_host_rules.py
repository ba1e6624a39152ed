from __future__ import annotations

import pytest

import rankscope
from analyze.host_events import SAMPLES, Process, capture
from rankscope.analyze.host import rules as host_rules
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

pytestmark = pytest.mark.slow

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample traces are not here")
ALL_RULES = (host_rules.launch_bound, host_rules.queue_full, host_rules.host_syncs, host_rules.launch_delay)


def findings(trace: Trace) -> list[Finding]:
    results = [result for rule in ALL_RULES for result in rule(trace)]
    return [result for result in results if isinstance(result, Finding)]


def training(
    rank: int = 0, pace: float = 10, kernel: float = 50, n_launches: int = 100, marked: bool = True
) -> Process:
    """Two steps of launches at a steady pace; kernels run one after the other as soon as they can."""
    process = Process(rank)
    end = 0.0
    for step in (1, 2):
        begin = (step - 1) * n_launches * pace
        known = {"step": step} if marked else {}
        if marked:
            process.step(step, begin, begin + n_launches * pace)
        for number in range(n_launches):
            op = process.op("aten::mul", begin + number * pace, begin + number * pace + 8, **known)
            launch = begin + number * pace + 2
            start = max(end, launch + 6)
            end = start + kernel
            process.launch((launch, launch + 5), (start, end), op_id=op, **known)
    return process


def test_a_device_that_never_waits_has_no_finding() -> None:
    assert findings(capture(training())) == []


def test_short_kernels_leave_the_device_idle_between_launches() -> None:
    (finding,) = findings(capture(training(pace=100, kernel=5)))
    assert (finding.code, finding.severity, finding.certainty, finding.ranks) == ("P311", "warning", "likely", (0,))
    assert finding.title == (
        "rank 0 launches kernels more slowly than the device runs them: it is idle 95% of the step (9 ms)"
    )
    assert finding.evidence.certain == (
        "199 gaps on rank 0, median 95 us",
        "around these gaps, the host launches a kernel every 100 us, and a kernel takes 5 us (medians)",
    )
    assert finding.evidence.likely == ("most of the idle time is before kernels of aten::mul",)
    assert finding.evidence.facts["operators"] == ["aten::mul"]
    assert "CUDA graphs" in finding.help


def test_a_small_share_is_information_and_a_tiny_one_silence() -> None:
    assert [finding.severity for finding in findings(capture(training(pace=100, kernel=93)))] == ["info"]
    assert findings(capture(training(pace=100, kernel=98))) == []


def test_the_profilers_own_cost_is_mentioned() -> None:
    trace = capture(training(pace=100, kernel=5))
    trace.tables["profiles"] = Table.from_rows("profiles", [{"rank": 0, "file_id": 0, "has_stacks": True}])
    (finding,) = findings(trace)
    assert finding.evidence.notes == ("the profiler itself slows launches down (with_stack)",)


def test_few_launches_say_nothing() -> None:
    assert findings(capture(training(pace=100, kernel=5, n_launches=20))) == []


def test_all_ranks_are_one_finding_and_few_of_many_are_no_warning() -> None:
    slow, fast = [training(rank, pace=100, kernel=5) for rank in range(3)], [training(rank) for rank in (3, 4, 5, 6)]
    (finding,) = findings(capture(*slow))
    assert (finding.ranks, finding.severity) == ((0, 1, 2), "warning")
    assert finding.title.startswith("ranks 0-2 launch kernels more slowly")
    assert finding.title.endswith("it is idle up to 95% of the step (9 ms, rank 0)")
    (finding,) = findings(capture(*slow, *fast))
    assert (finding.ranks, finding.severity) == ((0, 1, 2), "info")


def test_without_steps_the_recorded_time_counts() -> None:
    (finding,) = findings(capture(training(pace=100, kernel=5, marked=False)))
    assert "95% of the recorded time (19 ms)" in finding.title


def test_where_steps_are_marked_nothing_outside_of_them_counts() -> None:
    process = training(pace=100, kernel=95)
    for number in range(100):
        process.launch((30_000 + 200 * number, 30_005 + 200 * number), (30_010 + 200 * number, 30_012 + 200 * number))
    assert findings(capture(process)) == []


def test_a_queue_that_is_full() -> None:
    process = training(pace=1, kernel=50, n_launches=1200)
    (finding,) = findings(capture(process))
    assert (finding.code, finding.severity, finding.ranks) == ("P312", "info", (0,))
    assert "the host waits inside its launches" in finding.title
    assert finding.evidence.facts["streams"][0]["stream"] == 7


def with_items(every: int = 10, seen: bool = False) -> Process:
    """A host that is far ahead, but asks for a result after every few launches."""
    process = Process()
    process.step(1, 0, 20_000)
    now = 0.0
    for _ in range(20):
        end = now
        for _ in range(every):
            process.launch((now, now + 5), (max(end, now + 6), max(end, now + 6) + 60), step=1)
            end = max(end, now + 6) + 60
            now += 10
        process.op("aten::item", now, end + 2)
        process.op("aten::_local_scalar_dense", now, end + 2)
        process.call("cudaStreamSynchronize", now, end + 2, step=1)
        if seen:
            process.python("train.py(10): main", now - 50, end + 150)
            process.python("train.py(42): log_loss", now - 1, end + 100)
            process.python("torch/_tensor.py(7): __float__", now, end + 4)
            process.python("<built-in method item of Tensor object>", now, end + 3)
        now = end + 200
    return process


def test_waits_for_results_leave_the_device_idle() -> None:
    (finding,) = findings(capture(with_items()))
    assert (finding.code, finding.severity, finding.ranks) == ("P313", "warning", (0,))
    assert finding.title == (
        "rank 0 waits for the device in aten::item (cudaStreamSynchronize), and the device is then idle "
        "20% of the step (4 ms)"
    )
    assert finding.evidence.certain == (
        "aten::item (cudaStreamSynchronize): 20 waits; the device was idle after 19 of them, 4 ms in total",
    )
    assert finding.location is None
    assert finding.evidence.notes == ("to see the line of code, record with with_stack=True and read with --stacks",)


def test_the_users_own_line_is_named_where_python_calls_are_known() -> None:
    (finding,) = findings(capture(with_items(seen=True)))
    assert finding.location is not None
    assert (finding.location.file, finding.location.line, finding.location.function) == ("train.py", 42, "log_loss")
    assert finding.evidence.notes == ()


def test_waits_while_the_device_has_work_cost_nothing() -> None:
    process = training(pace=10, kernel=50)
    for number in range(20):
        process.call("cudaEventSynchronize", 100 * number + 8, 100 * number + 9, step=1)
    assert findings(capture(process)) == []


def time_sliced(n_between: int = 1) -> Trace:
    """Every kernel begins 400 us after its launch, on a device that runs nothing else of ours."""
    process = Process()
    process.step(1, 0, 30_000)
    for number in range(60):
        start = 500 * number
        call = process.call("cudaLaunchKernel", start, start + 5, step=1, correlation=number * n_between + 1)
        process.kernel("gemm", start + 405, start + 450, call)
    return capture(process)


def test_kernels_that_start_late_on_a_free_device() -> None:
    (finding,) = findings(time_sliced())
    assert (finding.code, finding.severity, finding.ranks) == ("P314", "warning", (0,))
    assert (
        finding.title == "kernels of rank 0 start late although the device is free: it is idle 79% of the step (24 ms)"
    )
    assert (
        "59 kernels of rank 0 started long after the launch had returned, 400 us on average" in finding.evidence.certain
    )


def test_the_usual_delay_of_a_launch_is_not_judged() -> None:
    process = Process()
    process.step(1, 0, 10_000)
    for number in range(100):
        process.launch((100 * number, 100 * number + 5), (100 * number + 45, 100 * number + 90), step=1)
    assert findings(capture(process)) == []


def test_a_trace_with_missing_launches_proves_no_delay() -> None:
    assert findings(time_sliced(n_between=50)) == []


@needs_samples
@pytest.mark.parametrize(
    "name",
    [
        "ns_resolution_trace",
        "trace_filter",
        "amd_trace",
        "triton_example",
        "mtia_inference_trace",
        "critical_path/alexnet",
    ],
)
def test_samples_that_suffer_from_nothing_of_this_kind(name: str) -> None:
    assert findings(rankscope.load(SAMPLES / name)) == []


@needs_samples
def test_a_sample_that_is_launch_bound() -> None:
    (finding,) = findings(rankscope.load(SAMPLES / "nccl_parser_config"))
    assert (finding.code, finding.severity) == ("P311", "warning")
    assert "51% of the step (114 ms)" in finding.title


@pytest.mark.parametrize("process", [Process(), with_items()])
def test_hosts_without_a_device_are_not_judged(process: Process) -> None:
    trace = capture(process)
    trace.tables.pop("kernels", None)
    assert findings(trace) == []
