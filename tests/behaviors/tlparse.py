"""tlparse, TORCH_TRACE and TORCH_LOGS."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "tlparse, TORCH_TRACE and TORCH_LOGS"
INTRO = "Reports on what torch.compile did, and the logs that it can be asked for."

BEHAVIORS = (
    Behavior(
        there="write a report of a TORCH_TRACE folder, by default into `tl_out`",
        commands=("rankscope compile compiled -o tl_out",),
        shows=r"tl_out",
    ),
)
