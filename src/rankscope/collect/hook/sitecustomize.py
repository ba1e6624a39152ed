"""Runs at the start of every Python of a job, as its folder is first in PYTHONPATH. It waits for torch to be imported.

A Python that never imports torch pays for one finder and nothing else. Whatever fails here, the job continues.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # typing itself would take longer to import than everything here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


class TorchWatcher:
    """Sees every import first, and steps in for two: torch, and rankscope where the job's Python does not have it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch":
            return _call_after(_next_spec(self, name, path, target), self.torch_is_imported)
        if name == "rankscope":
            spec = _next_spec(self, name, path, target)
            # A folder of traces called rankscope looks like a package, too, but has no file of its own.
            return spec if spec and spec.origin else _own_package()
        return None

    def torch_is_imported(self) -> None:
        if "rankscope" not in sys.modules:
            import rankscope  # noqa: F401 - while its finder is still installed
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        from rankscope.collect.launching import startup

        startup.watch()


def _next_spec(
    watcher: TorchWatcher, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What would have been found without the watcher."""
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is not watcher and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _call_after(spec: ModuleSpec | None, imported: Callable[[], None]) -> ModuleSpec | None:
    """Makes the module's own loader call back; it remains the loader that other code expects to see."""
    loader: Any = spec and spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return spec

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            del loader.exec_module
            imported()
        except Exception:
            pass  # the job does not depend on what watches it

    loader.exec_module = exec_module
    return spec


def _own_package() -> ModuleSpec | None:
    """The package that this file is part of, found without the other packages beside it."""
    from importlib.util import spec_from_file_location

    return spec_from_file_location(
        "rankscope", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )


def _begin() -> None:
    watcher = TorchWatcher()
    sys.meta_path.insert(0, watcher)
    if "torch" in sys.modules:  # a .pth file of the environment was earlier
        watcher.torch_is_imported()
    if '"nsys":true' in os.environ["RANKSCOPE_COLLECT"]:
        from rankscope.collect.launching import nsys

        nsys.wrap_this_process()


def _run_hidden_one() -> None:
    """Runs the user's sitecustomize, which this one hides. Python itself reports what that raises."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
if "RANKSCOPE_COLLECT" in os.environ:
    try:  # noqa: SIM105 - contextlib would have to be imported
        _begin()
    except Exception:
        pass
_run_hidden_one()
