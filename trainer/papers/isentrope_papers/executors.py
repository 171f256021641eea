"""Where runs are made: in processes of this machine, or as tasks of a Ray cluster. Both give the
same bytes.

Each run computes with as many threads as its settings say, one by default, so that as many runs as
there are cores go on side by side.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from isentrope_papers.runs import make_run
from isentrope_papers.settings import RunSettings
from isentrope_wire.errors import ConfigurationError, IsentropeError, install_command


class RunFailed(IsentropeError, RuntimeError):
    """A run ended with an error, given in words: the error itself may not survive the way to
    another process."""


PROCESS_DIED = "its process ended by itself (killed, or out of memory)"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run."""

    settings: RunSettings
    files: Mapping[str, bytes] | None
    """As `make_run` gives them."""
    failure: str = ""
    """Why there are no files."""


class LocalProcesses:
    """A pool of processes on this machine; `workers` runs at a time."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def make(self, wanted: Sequence[RunSettings]) -> Generator[Outcome, None, None]:
        """Make them all; each outcome as soon as it is there. Closing the iterator ends those that
        go on."""
        waiting = list(wanted)
        while waiting:
            unfinished = yield from self._make_in_one_pool(waiting)
            # Nobody reports whose process died: it was one of those that were next.
            for settings in unfinished[: self.workers]:
                yield Outcome(settings, None, PROCESS_DIED)
            waiting = unfinished[self.workers :]

    def _make_in_one_pool(
        self, wanted: Sequence[RunSettings]
    ) -> Generator[Outcome, None, list[RunSettings]]:
        """Return the runs that a broken pool left, in their order."""
        unfinished: list[RunSettings] = []
        pool = ProcessPoolExecutor(
            min(self.workers, len(wanted)),
            mp_context=multiprocessing.get_context("spawn"),
            # Ctrl-C is for this process, which then ends the others.
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            futures = {pool.submit(make_or_fail, settings): settings for settings in wanted}
            for future in as_completed(futures):
                settings, error = futures[future], future.exception()
                if isinstance(error, BrokenProcessPool):
                    unfinished.append(settings)
                elif error is not None:
                    yield Outcome(settings, None, str(error) or type(error).__name__)
                else:
                    yield Outcome(settings, future.result())
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return sorted(unfinished, key=list(wanted).index)


class RayCluster:
    """Runs as tasks of a Ray cluster, a core for each thread of a run."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        """The address `local` starts a cluster on this machine, with `workers` cores or all; `auto`
        finds the one that this machine belongs to. ConfigurationError: Ray is not installed, or
        there is no cluster."""
        try:
            import ray  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"--ray needs the extra ray: {install_command('ray')}."
            ) from error
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

    def make(self, wanted: Sequence[RunSettings]) -> Generator[Outcome, None, None]:
        ray = self._ray
        task = ray.remote(make_or_fail)
        waiting = {
            task.options(num_cpus=one.threads, max_retries=1, name=str(one)).remote(one): one
            for one in wanted
        }
        try:
            while waiting:
                (done, *_), _ = ray.wait(list(waiting))
                settings = waiting.pop(done)
                try:
                    yield Outcome(settings, ray.get(done))
                except ray.exceptions.RayError as error:
                    # Of an error of the run, the cause is the RunFailed; else the worker or its
                    # node is gone.
                    yield Outcome(
                        settings, None, str(getattr(error, "cause", None) or _describe_error(error))
                    )
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
            ray.shutdown()


def make_or_fail(settings: RunSettings) -> dict[str, bytes]:
    """Make one run, in this process; RunFailed: it ended with an error."""
    try:
        return make_run(settings)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (raised again, in words)
        raise RunFailed(_describe_error(error)) from None


def _describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__
