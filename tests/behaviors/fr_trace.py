"""torch's analyzer of Flight Recorder dumps: fr_trace, installed as torchfrtrace."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "torchfrtrace (fr_trace)"
INTRO = "torch's analyzer of Flight Recorder dumps. `rankscope fr` takes its flags."

BEHAVIORS = (
    Behavior(
        there="merge the dumps of all ranks, match each collective over its ranks and show the first mismatch",
        commands=("rankscope hung",),
        shows=r"rank 1 called broadcast where its 7 peers called all_reduce",
    ),
)
