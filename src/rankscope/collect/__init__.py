"""What runs inside a training job: standard library only, torch imported inside functions.

It never raises into the job, never blocks it and costs next to nothing: whatever fails here ends the part that it
failed in, and is noted in the manifest.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """`rankscope.collect(...)` is the public function, and this package has its name."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from rankscope.collect.api import collect

        return collect(*arguments, **settings)


sys.modules[__name__].__class__ = _CallablePackage
