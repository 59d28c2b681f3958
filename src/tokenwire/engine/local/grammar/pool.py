"""Threads that compile grammars, with a limit on how long a caller waits.

A hostile regex can keep a compiler busy for hours, and a thread cannot be stopped from outside. So an overdue job is
given up: its future fails, another thread takes over the queue, and the lost one is a daemon that ends with its job.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tokenwire.engine.local.grammar.source import invalid

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.future: Future[T] = Future()
        self.started = False
        self.abandoned = False

    def run(self) -> None:
        try:
            result = self.work()
        except Exception as exc:
            with suppress(InvalidStateError):  # given up meanwhile
                self.future.set_exception(exc)
        else:
            with suppress(InvalidStateError):
                self.future.set_result(result)


class CompilePool:
    """`submit` returns at once; a job that takes longer than `timeout_s` of running or waiting fails."""

    def __init__(self, *, workers: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._workers = workers
        for _ in range(workers):
            self._add_worker()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        job = _Job(work)
        timer = threading.Timer(self._timeout_s, self._give_up, (job,))
        timer.daemon = True
        timer.start()
        job.future.add_done_callback(lambda _: timer.cancel())
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Let the workers end; jobs still queued before it are done first."""
        for _ in range(self._workers):
            self._jobs.put(None)

    def _add_worker(self) -> None:
        threading.Thread(target=self._work, name="tokenwire-grammar", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.done():
                continue
            job.started = True
            job.run()
            if job.abandoned:
                return  # a replacement has been started

    def _give_up(self, job: _Job[Any]) -> None:
        error = invalid(
            f"Compiling structured_outputs took longer than {self._timeout_s:g} s; use a simpler constraint."
        )
        with suppress(InvalidStateError):
            job.future.set_exception(error)
            if job.started:
                job.abandoned = True
                self._add_worker()
