"""`WorkerPool`: worker processes that outlive the devices they serve, so that a test does not wait for a process.

`WorkerPools` has one for each device of a group.

A device that was opened with ``workers=pool`` takes its worker from the pool. A clean end gives the worker back;
everything is released but its context. A device kills a worker whose context was lost, and takes a spare that the pool
has started meanwhile.

The kernel kills a worker when the thread that started it ends, and a device of `atomr_trio.start` has a thread of its
own. So a pool starts workers in the main thread, or, for a device in any other thread, in one that lives as long as
the pool.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import queue
import select
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

import attrs
import outcome

from .. import AtomrInternalError, InvalidArgument
from .._generation.process import MAX_DEVICES, WorkerProcess
from .._values.backends import chosen_backend
from .._values.findings import chosen_checks
from .._values.util import Living

if TYPE_CHECKING:
    from collections.abc import Collection

    from .._values.findings import Check
    from .._wire.backends import Backend, BackendName

CLOSE_SECONDS = 30.0
"""Seconds to wait for the kernel to reap a killed worker, which takes tenths of a second. A worker that takes longer
hangs in a driver."""

MAX_SPARES = 8

_SETTINGS = ("ATOMR_TRIO_", "CUDA_")
"""Prefixes of the environment variables that a worker reads."""

_pools: Living[WorkerPool] = Living()


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """The counters of a pool at one moment."""

    idle: int
    """Workers that wait for a device, or soon will."""

    taken: int
    """Workers that are in use by devices."""

    started: int
    """Processes that were started since the pool was made."""

    reused: int
    """Times that a device got a worker that another device had given back."""

    missed: int
    """Times that no worker was ready, so that the device waited for a process to start."""


@attrs.define(eq=False)
class _Worker:
    """A process of the pool."""

    process: WorkerProcess
    settings: dict[str, str]
    """The environment variables with which it was started."""
    returned: bool = False


class _Starter:
    """A thread that starts workers, and ends by `end`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_do_jobs, args=(self._jobs,), name="atomr_trio.testing.WorkerPool", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def start(self, make: Callable[[], WorkerProcess]) -> WorkerProcess:
        """Call `make` in the thread, and return or raise what it does."""
        answers: queue.SimpleQueue[outcome.Outcome[WorkerProcess]] = queue.SimpleQueue()
        self._jobs.put(lambda: answers.put(outcome.capture(make)))
        return answers.get().unwrap()

    def end(self) -> None:
        """End the thread, and with it every worker that it has started and that still lives."""
        self._jobs.put(None)
        self._thread.join()


def _do_jobs(jobs: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job


@final
class WorkerPool:
    """Workers of one device, kept from one `trio.run` to the next: ``open_device(workers=pool)``.

    A context manager; leave it after the last device was closed. Synchronous, and for any thread: devices of
    `atomr_trio.start` have workers of it too.

    - `index`: the number of the device, as `open_device` counts.
    - `backend`: `"cuda"`, which may be called `"gpu"` too, or `"sim"`; by default what ``ATOMR_TRIO_BACKEND`` says,
      else `"cuda"`.
    - `spares`: workers kept ready beside those that devices have, 0 to 8, so that a rebuild after a fault finds one.
      Each costs a context, about 0.6 GiB of device memory on an H200. 0 for a GPU in exclusive-process mode.
    - `check`: what the simulator checks in them, as `open_device` takes it; their devices are opened with the same.

    A worker that is given back has released its streams, modules, arrays and pinned memory. The context stays, and with
    it the device heap from which ``malloc`` in a kernel allocates. A worker keeps the environment with which it was
    started. When a variable ``ATOMR_TRIO_...`` or ``CUDA_...`` has changed since, the worker is replaced.

    Raises `InvalidArgument` for arguments that are not valid.
    """

    def __init__(
        self,
        index: int = 0,
        backend: BackendName | None = None,
        spares: int = 1,
        *,
        check: Check | Collection[Check] | None = None,
    ) -> None:
        if type(index) is not int or not 0 <= index < MAX_DEVICES:
            raise InvalidArgument(f"index is {index!r}; it must be an int from 0 to {MAX_DEVICES - 1}")
        if type(spares) is not int or not 0 <= spares <= MAX_SPARES:
            raise InvalidArgument(f"spares is {spares!r}; it must be an int from 0 to {MAX_SPARES}")
        self.index: int = index
        """The index of the device that its workers serve."""
        self.backend: Backend = chosen_backend(backend)
        """`"cuda"` or `"sim"`."""
        self.spares: int = spares
        """The number of idle workers that the pool keeps; after one was taken, another one is started."""
        self.check: tuple[str, ...] = chosen_checks(check, self.backend)
        """The checks of the simulator in its workers, as in `open_device`."""
        self._idle: collections.deque[_Worker] = collections.deque()
        self._taken: dict[WorkerProcess, _Worker] = {}
        self._ending: list[WorkerProcess] = []
        self._started = self._reused = self._missed = 0
        self._closed: str | None = None
        self._starter: _Starter | None = None
        self._lock = threading.RLock()
        _pools.add(self)

    def __repr__(self) -> str:
        now = self.statistics()
        counts = ", ".join(f"{count} {name}" for name, count in attrs.asdict(now).items())
        return f"<WorkerPool of device {self.index} ({self.backend}): {self._closed or counts}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def statistics(self) -> PoolStatistics:
        """The counters of this moment. A worker that died while it was idle counts until the pool notices."""
        with self._lock:
            self._forget_ended()
            return PoolStatistics(
                idle=len(self._idle),
                taken=len(self._taken),
                started=self._started,
                reused=self._reused,
                missed=self._missed,
            )

    # --- what a device asks for ---------------------------------------------------------------------------------------

    def take(self, backend: BackendName, index: int) -> WorkerProcess:
        """Return a worker process that is free, and start a spare in its place. Called by `open_device`.

        `backend` and `index` must be those of the pool.

        Raises `InvalidArgument` for a device other than the pool's, and once the pool is closed. Raises `OSError` when
        there is no worker and the system cannot start one.
        """
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"{self!r} has no worker to give", device=index)
            if (chosen_backend(backend), index) != (self.backend, self.index):
                raise InvalidArgument(f"{self!r} has no worker for device {index} ({backend})", device=index)
            self._forget_ended()
            settings = _settings()
            self._part_with_unfit(settings)
            if self._idle:
                worker = self._idle.popleft()
                self._reused += worker.returned
            else:
                worker = self._start(settings)
                self._missed += 1
            self._taken[worker.process] = worker
            with contextlib.suppress(OSError):  # the next device that needs one tries again
                while len(self._idle) < self.spares:
                    self._idle.append(self._start(settings))
            return worker.process

    def give_back(self, process: WorkerProcess) -> None:
        """Take back a worker when its device was closed; `process` can be adopted again. Raises nothing."""
        with self._lock:
            worker = self._taken.pop(process)
            worker.returned = True
            if self._closed:
                self._end(process)
            else:
                self._idle.appendleft(worker)  # it is ready, and a spare may still be starting

    def _start(self, settings: dict[str, str]) -> _Worker:
        process = self._start_there(functools.partial(WorkerProcess, self.backend, self.index, self.check))
        self._started += 1
        return _Worker(process, settings)

    def _start_there(self, make: Callable[[], WorkerProcess]) -> WorkerProcess:
        """Start a process in a thread that lives as long as the pool."""
        if threading.current_thread() is threading.main_thread():
            return make()
        try:
            self._starter = self._starter or _Starter()
        except RuntimeError as error:  # what Python raises when the system has no room for a thread
            raise OSError(str(error)) from error
        return self._starter.start(make)

    # --- the end of a worker ------------------------------------------------------------------------------------------

    def _part_with_unfit(self, settings: dict[str, str]) -> None:
        """End the idle workers that have died, or that were started under other settings."""
        alike = [worker for worker in self._idle if worker.settings == settings]
        fit = [worker for worker in alike if not worker.process.reap()]
        for worker in self._idle:
            if worker not in fit:
                self._end(worker.process)
        self._idle = collections.deque(fit)

    def _end(self, process: WorkerProcess) -> None:
        """Kill a process, without waiting: the kernel takes its time."""
        process.kill()
        self._ending.append(process)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Forget the processes that have been reaped, by the pool or by their devices."""
        for process in [process for process in self._ending if process.reap()]:
            process.close()
            self._ending.remove(process)
        for process in [process for process in self._taken if process.pidfd < 0]:
            del self._taken[process]

    def close(self) -> None:
        """Kill every worker and wait until it is reaped. A device that still has one loses it. Can be called twice.

        Raises `AtomrInternalError` if a worker is not gone after 30 s.
        """
        with self._lock:
            self._closed = self._closed or "closed"
            self._forget_ended()
            self._ending += [worker.process for worker in self._idle]
            self._idle.clear()
            processes = [*self._ending, *self._taken]
            for process in processes:
                process.kill()
        deadline = time.monotonic() + CLOSE_SECONDS
        for process in processes:
            _wait_for_end(process, deadline)
        with self._lock:
            self._forget_ended()
            starter, self._starter = self._starter, None
        if starter is not None:
            starter.end()

    def _processes(self) -> list[WorkerProcess]:
        return [*self._taken, *self._ending, *(worker.process for worker in self._idle)]

    def _forget_in_child(self) -> None:
        """Close the copies of the workers' descriptors in a forked child: the workers belong to the parent."""
        self._closed = "of the process that this one was forked from"
        self._lock = threading.RLock()  # a thread that is not here may have held the other
        self._starter = None
        for process in self._processes():
            process.forget()
        self._taken.clear()
        self._ending.clear()
        self._idle.clear()


@final
class WorkerPools:
    """Workers of any number of devices, for groups: ``open_devices(workers=pools)``. It has a `WorkerPool` for each.

    A context manager, with the rules of a `WorkerPool`: leave it after the last device was closed. A device's pool is
    made when its first worker is taken.

    - `backend`, `spares` and `check`: those of each `WorkerPool`.

    Raises `InvalidArgument` for arguments that are not valid.
    """

    def __init__(
        self,
        backend: BackendName | None = None,
        spares: int = 1,
        *,
        check: Check | Collection[Check] | None = None,
    ) -> None:
        WorkerPool(0, backend, spares, check=check).close()  # which refuses what is not valid
        self.backend: Backend = chosen_backend(backend)
        """`"cuda"` or `"sim"`."""
        self._spares = spares
        self._check = check
        self._pools: dict[int, WorkerPool] = {}
        self._lent: dict[WorkerProcess, WorkerPool] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<WorkerPools ({self.backend}): {', '.join(map(repr, self._pools.values())) or 'no device yet'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def statistics(self) -> dict[int, PoolStatistics]:
        """Return the counters of this moment, for each device by its index."""
        return {index: pool.statistics() for index, pool in sorted(self._pools.copy().items())}

    def take(self, backend: BackendName, index: int) -> WorkerProcess:
        """Return a worker process of the device with this `index`. Called by `open_devices` and `open_device`.

        `backend` must be that of the pools.

        Raises `InvalidArgument` for another backend than that of the pools, and once they are closed. Raises `OSError`
        when there is no worker and the system cannot start one.
        """
        if self._closed:
            raise InvalidArgument(f"{self!r} is closed, and has no worker to give", device=index)
        pool = self._pools.get(index)
        if pool is None:
            made = WorkerPool(index, self.backend, self._spares, check=self._check)
            pool = self._pools.setdefault(index, made)  # another thread may have come first
        process = pool.take(backend, index)
        self._lent[process] = pool
        return process

    def give_back(self, process: WorkerProcess) -> None:
        """Take back a worker when its device was closed; `process` can be adopted again. Raises nothing."""
        self._lent.pop(process).give_back(process)
        for lost in [each for each in list(self._lent) if each.pidfd < 0]:
            self._lent.pop(lost, None)

    def close(self) -> None:
        """Close every pool, as `WorkerPool.close` does. Can be called twice.

        Raises `AtomrInternalError` if a worker is not gone after 30 s.
        """
        self._closed = True
        for pool in self._pools.values():
            pool.close()


def pooled_processes() -> list[WorkerProcess]:
    """Return every worker process of the pools of this process, including those that are ending."""
    return [process for pool in _pools for process in pool._processes()]


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}


def _wait_for_end(process: WorkerProcess, deadline: float) -> None:
    if process.pidfd < 0:
        return  # its device, in another thread, has reaped it
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    while not process.reap():
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000) or time.monotonic() > deadline:
            raise AtomrInternalError(f"worker {process.pid} was killed, but was not reaped within {CLOSE_SECONDS:g} s")


def _forget_pools_in_child() -> None:
    for pool in _pools:
        pool._forget_in_child()


if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_forget_pools_in_child)
