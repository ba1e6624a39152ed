"""The guide to collecting execution traces, Kineto traces, nsys reports and metrics at once."""

from __future__ import annotations

from behaviors.collecting_rows import COLLECTING
from behaviors.linking_rows import LINKING
from behaviors.metric_rows import METRICS

TITLE = "Collecting traces of all kinds at once"
INTRO = "The guide to collecting execution traces and Kineto traces of the same steps, nsys reports and metrics."

BEHAVIORS = (*COLLECTING, *LINKING, *METRICS)
