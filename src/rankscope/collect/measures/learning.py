"""Loss, norm of the gradients and learning rate, as they pass through torch in the job's own thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rankscope.collect.measures.hooks import Hooks
from rankscope.collect.measures.scalars import DeviceScalar, scalar_on_host

LOSS, NORM, RATE = "loss", "grad_norm", "learning_rate"


class Learning:
    def __init__(self) -> None:
        self._n_steps = 0  # that have ended
        self._latest: dict[str, float] = {}
        self._fetched = {LOSS: DeviceScalar(), NORM: DeviceScalar()}
        self._n_scaled = 0  # losses that were noted before they were scaled, and not passed on yet
        self._handle: Any = None

    def install(self, hooks: Hooks) -> None:
        import torch
        from torch.compiler import is_compiling
        from torch.optim.optimizer import register_optimizer_step_post_hook

        hooks.before(torch.autograd, "backward", self._backward)
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            hooks.after(scaler, "scale", self._scale)
        # By its inner part, which is found even where a script has imported clip_grad_norm_ by its name.
        hooks.before(sys.modules["torch.nn.utils.clip_grad"], "_clip_grads_with_norm_", self._clip)

        def stepped(optimizer: Any, _arguments: Any, _options: Any) -> None:
            if hooks.is_on and not is_compiling():
                self._stepped(optimizer)

        self._handle = register_optimizer_step_post_hook(stepped)

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def install_fsdp(self, hooks: Hooks) -> None:
        """It clips by a method of its own."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        hooks.after(FullyShardedDataParallel, "clip_grad_norm_", self._clipped)

    def take(self, step: int) -> dict[str, float]:
        """What was seen in the step that ends."""
        self._n_steps = step
        self._n_scaled = 0
        latest, self._latest = self._latest, {}
        return latest

    def arrived(self) -> Iterator[tuple[str, int, float]]:
        """Name, step and value of what devices have reported since the last call, in the same step or later."""
        for name, scalar in self._fetched.items():
            reading = scalar.ready()
            if reading is not None:
                yield (name, *reading)

    def _note(self, name: str, value: Any) -> None:
        with sys.modules["torch"]._C.DisableTorchFunction():  # a mode of the job's own must not see what we look at
            number = scalar_on_host(value)
            if number is not None:
                self._latest[name] = number
            elif hasattr(value, "device"):
                self._fetched[name].fetch(value, self._n_steps + 1)

    def _backward(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A loss is what is passed without a gradient: stages of a pipeline and checkpoints pass theirs."""
        if len(arguments) > 1 and arguments[1] is not None:
            return
        if options.get("grad_tensors") is not None:
            return
        if self._n_scaled:
            self._n_scaled -= 1
        else:
            self._note(LOSS, arguments[0] if arguments else options.get("tensors"))

    def _scale(self, result: Any, arguments: tuple[Any, ...], _options: dict[str, Any]) -> None:
        """Records the unscaled loss if a GradScaler scales it."""
        if len(arguments) == 2 and arguments[1] is not result and hasattr(result, "device"):
            self._n_scaled += 1
            self._note(LOSS, arguments[1])

    def _clip(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._note(NORM, arguments[2] if len(arguments) > 2 else options.get("total_norm"))

    def _clipped(self, result: Any, _arguments: tuple[Any, ...], _options: dict[str, Any]) -> None:
        self._note(NORM, result)

    def _stepped(self, optimizer: Any) -> None:
        try:
            rate = scalar_on_host(optimizer.param_groups[0]["lr"])
            if rate is not None:
                self._latest[RATE] = rate
        except Exception:  # an optimizer from another library
            self._latest.pop(RATE, None)
