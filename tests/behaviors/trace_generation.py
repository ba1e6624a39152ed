"""The guide to collecting execution traces, Kineto traces, nsys reports and metrics at once."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "Collecting traces of all kinds at once"
INTRO = "The guide to collecting execution traces and Kineto traces of the same steps, nsys reports and metrics."

BEHAVIORS = (
    Behavior(
        there="link the execution trace with the Kineto trace of the same steps",
        commands=("rankscope link pairs -o linked",),
        shows=r"linked",
    ),
)
