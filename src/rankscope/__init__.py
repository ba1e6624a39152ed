"""rankscope: says what went wrong in a PyTorch job, from the traces that it leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "Finding",
    "RankscopeError",
    "Report",
    "Trace",
    "__version__",
    "collect",
    "desync",
    "diagnose",
    "dump",
    "load",
    "metric",
    "step",
]

if TYPE_CHECKING:
    from rankscope import desync
    from rankscope.collect.api import collect, dump, metric, step
    from rankscope.errors import RankscopeError
    from rankscope.model.finding import Finding, Report
    from rankscope.model.tables import Trace
    from rankscope.pipeline import diagnose, load

_HOMES = {
    "Finding": "rankscope.model.finding",
    "RankscopeError": "rankscope.errors",
    "Report": "rankscope.model.finding",
    "Trace": "rankscope.model.tables",
    "diagnose": "rankscope.pipeline",
    "dump": "rankscope.collect.api",
    "load": "rankscope.pipeline",
    "metric": "rankscope.collect.api",
    "step": "rankscope.collect.api",
}
_MODULES = ("collect", "desync")  # collect can be called


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `rankscope --help` stays fast."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"rankscope.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'rankscope' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
