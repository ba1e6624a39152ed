"""How torchfrtrace finds and loads the dumps."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "Finding and loading dumps"
INTRO = "How torchfrtrace finds the files of a folder and what each is."

BEHAVIORS = (
    Behavior(
        there="read every file of a folder and of the folders below it",
        commands=("rankscope hung",),
        shows=r"Read 8 Flight Recorder dumps",
    ),
)
