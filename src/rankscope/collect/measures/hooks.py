"""Functions of torch that are watched: wrapped so that others may wrap them, too, before and after us."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rankscope.collect.compiling import skip_frame

Function = Callable[..., Any]
Act = Callable[[tuple[Any, ...], dict[str, Any]], None]
ActOnResult = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class Hooks:
    """What an `act` raises is dropped: the job's call continues as usual."""

    def __init__(self) -> None:
        self.is_on = True
        self._replaced: list[tuple[Any, str, Function, Function]] = []

    def before(self, owner: Any, name: str, act: Act) -> None:
        from torch.compiler import is_compiling

        def wrap(original: Function) -> Function:
            @functools.wraps(original)
            def watched(*arguments: Any, **options: Any) -> Any:
                if self.is_on and not is_compiling():
                    try:  # noqa: SIM105 - faster so, and this is the job's own time
                        act(arguments, options)
                    except Exception:  # whatever a job hands over, and however torch changes
                        pass
                return original(*arguments, **options)

            return watched

        skip_frame(act, below=True)
        self.replace(owner, name, wrap)

    def after(self, owner: Any, name: str, act: ActOnResult) -> None:
        from torch.compiler import is_compiling

        def wrap(original: Function) -> Function:
            @functools.wraps(original)
            def watched(*arguments: Any, **options: Any) -> Any:
                result = original(*arguments, **options)
                if self.is_on and not is_compiling():
                    try:  # noqa: SIM105 - as above
                        act(result, arguments, options)
                    except Exception:
                        pass
                return result

            return watched

        skip_frame(act, below=True)
        self.replace(owner, name, wrap)

    def replace(self, owner: Any, name: str, wrap: Callable[[Function], Function]) -> None:
        """Where torch has no such function, nothing is watched."""
        original = vars(owner).get(name)
        if original is None:
            return
        ours = wrap(original)
        skip_frame(ours, below=False)
        setattr(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    def remove(self) -> None:
        """If other code has wrapped ours since, it stays below theirs and does nothing any more."""
        self.is_on = False
        for owner, name, original, ours in reversed(self._replaced):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()
