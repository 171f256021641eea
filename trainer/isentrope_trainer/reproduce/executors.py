"""Where runs are made: in processes of this machine, or as tasks of a Ray cluster. Both give the same bytes.

Each run computes with as many threads as its settings say, one by default, so that as many runs as there are cores go on
side by side.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from isentrope_trainer.reproduce.runs import RunFiles, make_run
from isentrope_trainer.reproduce.settings import RunSettings
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError, IsentropeError, install_command


class RunFailed(IsentropeError, RuntimeError):
    """A run ended with an error, given in words: the error itself may not survive the way to another process."""


PROCESS_DIED = "its process ended by itself (killed, or out of memory)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    settings: RunSettings
    tags: tuple[str, ...] = ()
    """Names of the figures that need it."""
    report: bool = False
    """Whether it reports to a server, too."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order."""

    order: Order
    files: RunFiles | None
    failure: str = ""
    """Why there are no files."""


class Executor(Protocol):
    """Makes runs side by side."""

    workers: int
    """How many at a time."""

    def make(self, orders: Sequence[Order]) -> Generator[Outcome, None, None]:
        """Make all runs; yields each outcome as soon as it is there. Closing the iterator ends the unfinished runs."""
        ...


class LocalProcesses:
    """A pool of processes on this machine."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def make(self, orders: Sequence[Order]) -> Generator[Outcome, None, None]:
        waiting = list(orders)
        while waiting:
            unfinished = yield from self._make_in_one_pool(waiting)
            # The pool does not tell whose process died: it ran one of the next orders.
            for order in unfinished[: self.workers]:
                yield Outcome(order, None, PROCESS_DIED)
            waiting = unfinished[self.workers :]

    def _make_in_one_pool(self, orders: Sequence[Order]) -> Generator[Outcome, None, list[Order]]:
        """Returns: the orders that a broken pool left, in their order."""
        unfinished: list[Order] = []
        pool = ProcessPoolExecutor(
            min(self.workers, len(orders)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=prepare_process,
        )
        with _EndedAtOnce(pool):
            futures = {pool.submit(_make_or_end, order): order for order in orders}
            for future in as_completed(futures):
                if isinstance(future.exception(), BrokenProcessPool):
                    unfinished.append(futures[future])
                else:
                    yield _outcome(futures[future], future)
        return sorted(unfinished, key=list(orders).index)


class RayCluster:
    """Tasks of a Ray cluster, a core for each thread of a run."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        """
        Args:
            address: of the cluster; `local` starts one on this machine, `auto` finds the one this machine belongs to.
            workers: cores of a cluster that is started. Default: all.

        Raises:
            ConfigurationError: Ray is not installed, or there is no cluster.
        """
        try:
            import ray  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"--ray needs the extra ray: {install_command('ray')}.") from error
        self._ray: Any = ray
        try:
            ray.init(
                address=address,
                num_cpus=workers if address == "local" else None,
                include_dashboard=False if address == "local" else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(f"There is no Ray cluster at {address}: {error}") from error
        self.workers = max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def make(self, orders: Sequence[Order]) -> Generator[Outcome, None, None]:
        ray = self._ray
        settings = _of_this_process()

        def task(order: Order) -> RunFiles:
            os.environ.update(settings)
            return make_order(order)

        remote = ray.remote(task)
        waiting = {
            remote.options(num_cpus=order.settings.threads, max_retries=1, name=str(order.settings)).remote(
                order
            ): order
            for order in orders
        }
        try:
            while waiting:
                (done, *_), _ = ray.wait(list(waiting))
                order = waiting.pop(done)
                try:
                    yield Outcome(order, ray.get(done))
                except ray.exceptions.RayError as error:
                    # Of an error of the run, the cause is the RunFailed; else the worker or its node is gone.
                    yield Outcome(order, None, str(getattr(error, "cause", None) or _in_words(error)))
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
            ray.shutdown()


def make_order(order: Order) -> RunFiles:
    """Make one run, in this process.

    Raises:
        RunFailed: it ended with an error.
    """
    with _ErrorsInWords():
        return make_run(order.settings, order.tags, report=order.report)


def _make_or_end(order: Order) -> RunFiles:
    """As `make_order`, in a process of a pool: it would begin its next order after an interrupt."""
    try:
        return make_order(order)
    except (KeyboardInterrupt, SystemExit):
        os._exit(1)


def prepare_process() -> None:
    """Before a local worker makes its first run. Ctrl-C is for the process that gave the orders; it ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    # Unwinds, so that the probe ends its run.
    sys.exit(128 + number)


class _ErrorsInWords(AbstractContextManager[None]):
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
            raise RunFailed(_in_words(error)) from None


class _EndedAtOnce(AbstractContextManager[None]):
    """Ends a pool's processes where the work is given up, instead of waiting until their runs are finished."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _outcome(order: Order, future: Future[RunFiles]) -> Outcome:
    error = future.exception()
    return (
        Outcome(order, future.result()) if error is None else Outcome(order, None, str(error) or type(error).__name__)
    )


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _of_this_process() -> Mapping[str, str]:
    """What a worker on another machine needs to report to the same server."""
    found = {"ISENTROPE_URL": environment.url(), "ISENTROPE_GRPC": environment.grpc_target(), "TQDM_DISABLE": "1"}
    token = environment.token()
    return found if token is None else found | {"ISENTROPE_TOKEN": token}
