"""Execution trace and Kineto trace of a few steps, started and stopped together so that they can be linked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import NamedTuple

from rankscope.collect.host.marks import RECORDING
from rankscope.collect.host.sampler import Host
from rankscope.collect.metrics import Metrics
from rankscope.collect.part import Part
from rankscope.collect.profile import steps
from rankscope.collect.profile.ranges import Ranges
from rankscope.collect.profile.session import Session
from rankscope.collect.profile.sharing import Sharing
from rankscope.collect.run import Run

_SECONDS_TO_COLLECTIVES = 3.0  # after the groups were made: by then a loop shows something better
_Steps = Generator[None, None, None]  # each `yield` lets one training step of the job pass


class _Plan(NamedTuple):
    """What is recorded over one range of steps; an empty name: not recorded."""

    n_steps: int
    execution_trace: str
    kineto: str


class Profiling(Part):
    NAME = "profiling"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._sharing = Sharing(self._make_room)
        self._ranges = Ranges()
        self._session: Session | None = None  # from its preparation to its end
        self._n_before = 0  # steps that had ended when the schedule began
        self._script = self._follow_settings()
        self._is_done = False
        self._looks_further_ns = 0

    def start(self) -> None:
        self._sharing.install()
        self._advance()

    def joined(self) -> None:
        self._looks_further_ns = time.monotonic_ns() + int(_SECONDS_TO_COLLECTIVES * 1e9)

    def tick(self) -> None:
        if self._looks_further_ns and time.monotonic_ns() > self._looks_further_ns:
            self._looks_further_ns = 0
            steps.look_further()

    def steps_change(self, n_before: int) -> None:
        """A recording of other steps, for example of an evaluation before the training, is not what was requested.

        It stays until the new recording takes its place.
        """
        session = self._session
        if session is not None and not session.is_in_own_thread():
            return
        self._script.close()
        with self._sharing.by_us():
            if session is not None:
                session.drop()
        self._ranges.remove()
        self._session, self._n_before = None, n_before
        self._script, self._is_done = self._follow_settings(), False
        self._sharing.remove()
        self._sharing.install()

    def step(self, number: int) -> None:
        if not self._is_done and not self._ranges.put_off(self._advance_late):
            self._advance()

    def dump(self, reason: str) -> None:
        """Only the thread that trains could end a recording, and it is not the one that dumps."""
        session = self._session
        if session is not None and session.is_recording and reason == "SIGTERM":
            self.run.problem(self.NAME, f"{session.names()} lost: SIGTERM came during the recording")

    def close(self) -> None:
        """The job ends: what is being recorded is kept, with the steps that it has."""
        session, self._session = self._session, None
        with self._sharing.by_us():
            if session is None:
                self._tell_what_lacks()
            elif not session.is_in_own_thread():
                self.run.problem(
                    self.NAME, f"{session.names()} lost: the job ended in a different thread than its steps"
                )
            elif session.is_recording and session.n_steps:
                self._end_early(session)
            else:
                session.drop()
                self._tell_what_lacks()
        self._script.close()
        self._ranges.remove()
        self._sharing.remove()

    def _advance_late(self) -> None:
        try:
            self._advance()
        except Exception as error:
            self._is_done = True
            self.run.problem(self.NAME, f"step failed: {type(error).__name__}: {error}")

    def _advance(self) -> None:
        """Does what is due between the step that has ended and the next one."""
        if self._session is not None and not self._session.is_in_own_thread():
            return  # a job that trains in several threads: torch's profiler belongs to the one it was started in
        began, began_ns = time.monotonic_ns(), time.time_ns()
        try:
            with self._sharing.by_us():
                next(self._script)
        except StopIteration:
            self._is_done = True
            self._sharing.remove()
        except Exception:
            self._clean_up()
            raise
        metrics = self.run.part(Metrics.NAME)
        if isinstance(metrics, Metrics):
            metrics.leave_out(time.monotonic_ns() - began)
        host = self.run.part(Host.NAME)
        if isinstance(host, Host):
            host.marks.add_ours(RECORDING, began_ns)

    def _follow_settings(self) -> _Steps:
        settings, rank = self.run.settings, self.run.rank
        n_first = settings.skip_first + settings.wait
        if not self.run.begins_with_step:
            n_first = max(n_first, 1)  # the first step began before anybody watched
        yield from self._pass_until(self._n_before + n_first)
        for cycle in range(1, max(settings.repeat, 1) + 1):
            folder = f"cycle_{cycle}/" if cycle > 1 else ""
            kineto = f"{folder}kineto_trace_{rank}.json" if settings.kineto else ""
            execution_trace = f"{folder}torch_et_{rank}.json" if settings.execution_trace else ""
            if cycle > 1:
                yield from self._pass_until(self.run.n_steps + settings.wait)
            yield from self._record(_Plan(settings.active, execution_trace, kineto))
            if kineto and execution_trace and settings.clean > 0:
                yield from self._record(_Plan(settings.clean, "", f"{folder}kineto_clean_{rank}.json"))

    def _pass_until(self, n_steps: int) -> _Steps:
        while self.run.n_steps < n_steps:
            yield

    def _record(self, plan: _Plan) -> _Steps:
        """Repeats until no profiler of the job has interfered."""
        while True:
            while self._sharing.is_taken():
                self.run.problem(self.NAME, "recording waited for the job's own profiler to end")
                yield
            self._session = session = Session(self.run, plan.execution_trace, plan.kineto)
            self._ranges.install()
            yield from self._run_session(session, plan.n_steps)
            self._session = None
            self._ranges.remove()
            if not session.is_lost:
                session.keep()
                return
            session.drop()

    def _run_session(self, session: Session, n_steps: int) -> _Steps:
        session.prepare()
        for _ in range(self.run.settings.warmup):
            yield
            if session.is_lost:
                return
        session.start()
        for _ in range(n_steps):
            session.mark(self.run.n_steps + 1)
            yield
            if session.is_lost:
                return
            session.end_step()
        session.stop()

    def _make_room(self) -> None:
        """A profiler of the job's own code is about to start."""
        session = self._session
        if session is None or session.is_lost:
            return
        self.run.problem(
            self.NAME,
            f"the job started its own profiler in step {self.run.n_steps + 1}: recording stopped and will restart",
        )
        session.give_way()

    def _end_early(self, session: Session) -> None:
        session.stop()
        session.keep(cut=self.run.n_steps + 1)
        whole = "1 complete step" if session.n_steps == 1 else f"{session.n_steps} complete steps"
        self.run.problem(self.NAME, f"the job ended during the recording: {session.names()} cover {whole}")

    def _tell_what_lacks(self) -> None:
        if self._is_done:
            return
        settings, n_steps = self.run.settings, self.run.n_steps
        if not n_steps:
            problem = "no training steps detected: no optimizer, model, data loader or collective was used repeatedly"
            hint = "call rankscope.step() at the end of each step"
        else:
            steps = "1 step" if n_steps == 1 else f"{n_steps} steps"
            problem = f"the job ended after {steps}, before the requested steps were recorded"
            n_first = max(settings.skip_first + settings.wait, not self.run.begins_with_step) + settings.warmup
            hint = f"recording starts after {n_first} steps: use a smaller wait, or fewer active steps"
        self.run.problem(self.NAME, problem, hint)

    def _clean_up(self) -> None:
        session, self._session = self._session, None
        with contextlib.suppress(Exception), self._sharing.by_us():
            if session is not None:
                session.drop()
        self._ranges.remove()
        self._sharing.remove()
