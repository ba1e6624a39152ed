"""X690: a device error explains why a rank does not complete its call."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.registry import rule
from rankscope.model.finding import Evidence, Finding
from rankscope.model.tables import Trace


@rule("X690", "device-failed", needs=("device_errors", "collectives"))
def device_failed(trace: Trace) -> Iterator[Finding]:
    """The device of a rank reported an error, and the rank's last call never completed.

    What it means: the driver logged an error for the device before the job stopped, so the rank cannot continue. The
    ranks that share a process group with it wait for it.

    Why it happens: memory that fails, a device that fell off the bus, a kernel that reads outside of its memory.

    What to do: look up the number of the error in the driver's manual, and take the host out of the job.

    What could fool it: an error that the driver recovered from, in a job that hangs for another reason.
    """
    calls = trace.table("collectives")
    is_open = ~calls.text("status").equals("done")
    last_open = dict(zip(calls.array("rank")[is_open].tolist(), calls.text("op").take(is_open).tolist(), strict=True))
    for error in trace.table("last_errors").rows():
        if error["rank"] in last_open:
            yield Finding(
                severity="error",
                certainty="likely",
                title=f"the device of rank {error['rank']} failed, and its {last_open[error['rank']]} never completed",
                ranks=(error["rank"],),
                evidence=Evidence(certain=(f"the driver reported error {error['xid']}",), facts={"xid": error["xid"]}),
                help="take the host of this rank out of the job, and test the device",
            )
