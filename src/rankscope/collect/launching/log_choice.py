"""Which of torch's messages go into the file of a rank: those that rankscope was asked for, and those of the job.

The job chooses by TORCH_LOGS or, any number of times, by torch._logging.set_logs. Both end in torch's _init_logs, which
resets levels and handlers: after each of its calls the file is added again.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

_TRACE = "torch.__trace"  # the compile log: no message of the others
_ARTIFACT = ".__"  # torch names the logger of an artifact <module>.__<artifact>


class LogChoice:
    """Which records some settings of TORCH_LOGS let through."""

    def __init__(self, state: Any, registry: Any) -> None:
        self.levels: dict[str, int] = dict(state.log_qname_to_level)
        self.artifacts = set(state.artifact_names)
        self._hidden = registry.off_by_default_artifact_names

    def __bool__(self) -> bool:
        return bool(self.levels or self.artifacts)

    def allows(self, record: logging.LogRecord) -> bool:
        module, is_artifact, artifact = record.name.partition(_ARTIFACT)
        if is_artifact and artifact in self.artifacts:
            return True
        return record.levelno >= self.level(module) and not (is_artifact and artifact in self._hidden)

    def level(self, module: str) -> int:
        """The level of the nearest parent module that has one; torch's default is warning."""
        while module:
            if module in self.levels:
                return self.levels[module]
            module = module.rpartition(".")[0]
        return logging.WARNING


def write_choices(internal: Any, wanted: LogChoice, file: logging.Handler) -> Callable[[], None]:
    """From now on `file` takes what is wanted and what the job chooses. What is returned takes it all back."""
    switch = _Switch(internal, wanted, file)
    initialise = internal._init_logs

    def initialise_and_add(*args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        switch.add()

    def undo() -> None:
        internal._init_logs = initialise
        switch.remove()
        if wanted:
            internal._set_log_state(switch.of_job)
            initialise()

    switch.add()
    internal._init_logs = initialise_and_add
    return undo


class _Switch:
    """What is in torch's logging in addition to the job's own choice."""

    def __init__(self, internal: Any, wanted: LogChoice, file: logging.Handler) -> None:
        self.of_job = internal.log_state
        self._internal, self._wanted, self._file = internal, wanted, file
        self._takes_jobs = False
        self._chosen = LogChoice(self.of_job, internal.log_registry)
        self._filtered: list[logging.Handler] = []
        self._watched: list[logging.Logger] = []
        file.addFilter(self._is_for_file)

    def add(self) -> None:
        """Again after each choice of the job."""
        self.remove()
        self.of_job = self._internal.log_state
        self._chosen = LogChoice(self.of_job, self._internal.log_registry)
        # TORCH_LOGS is followed by torch alone where names were given to rankscope, too: those are for the file.
        self._takes_jobs = bool(self._chosen) and not (self._wanted and "TORCH_LOGS" in os.environ)
        if self._wanted:
            self._hide_from_job()
            self._lower_levels()
        if self._wanted or self._takes_jobs:
            for name in self._internal.log_registry.get_log_qnames():
                logging.getLogger(name).addHandler(self._file)

    def remove(self) -> None:
        for name in self._internal.log_registry.get_log_qnames():
            logging.getLogger(name).removeHandler(self._file)
        for handler in self._filtered:
            handler.removeFilter(self._is_for_job)
        for logger in self._watched:
            vars(logger).pop("addHandler", None)
        self._filtered.clear()
        self._watched.clear()

    def _hide_from_job(self) -> None:
        """What only the file shall have is kept from all other handlers: torch's, and those that the job has added or
        will add."""
        loggers = {logger.name: logger for logger in _torch_loggers() if logger.name != _TRACE}
        for logger in loggers.values():
            for handler in logger.handlers:
                self._hide(handler)
            logger.addHandler = functools.partial(self._add_and_hide, logger)  # type: ignore[method-assign]
            self._watched.append(logger)
        for name in self._internal.log_registry.get_log_qnames() - loggers.keys():  # modules of the job
            for handler in filter(self._internal._is_torch_handler, logging.getLogger(name).handlers):
                self._hide(handler)

    def _add_and_hide(self, logger: logging.Logger, handler: logging.Handler) -> None:
        logging.Logger.addHandler(logger, handler)
        if handler is not self._file:
            self._hide(handler)

    def _hide(self, handler: logging.Handler) -> None:
        handler.addFilter(self._is_for_job)  # twice is once
        self._filtered.append(handler)

    def _lower_levels(self) -> None:
        chosen, wanted, internal = self._chosen, self._wanted, self._internal
        levels = {name: min(chosen.level(name), wanted.level(name)) for name in {*chosen.levels, *wanted.levels}}
        internal._set_log_state(internal.LogState(levels, chosen.artifacts | wanted.artifacts))
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name in internal.log_registry.get_artifact_log_qnames():
            internal.configure_artifact_log(logging.getLogger(name))

    def _is_for_file(self, record: logging.LogRecord) -> bool:
        is_wanted = bool(self._wanted) and self._wanted.allows(record)
        return is_wanted or (self._takes_jobs and self._chosen.allows(record))

    def _is_for_job(self, record: logging.LogRecord) -> bool:
        return not self._is_registered(record.name) or self._chosen.allows(record)

    def _is_registered(self, name: str) -> bool:
        registered = self._internal.log_registry.get_log_qnames()
        while name and name not in registered:
            name = name.rpartition(".")[0]
        return bool(name)


def _torch_loggers() -> Iterator[logging.Logger]:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and _is_of_torch(name):
            yield logger


def _is_of_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")
