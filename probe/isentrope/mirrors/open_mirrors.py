"""All mirrors of one probe: where a report is built, its scalars are handed to each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isentrope.mirrors.destination import Destination, StepScalars
from isentrope.mirrors.mirror_thread import MirrorThread
from isentrope_wire.messages import StepReport


class OpenMirrors:
    """Of rank 0, whose reports are the whole run's; the other ranks have none."""

    def __init__(self, destinations: Sequence[Destination], run_id: str) -> None:
        """
        Raises:
            ConfigurationError: one of them can't be written to.
        """
        for destination in destinations:
            destination.prepare(run_id)
        self._mirrors = tuple(MirrorThread(destination) for destination in destinations)

    def also(self, step: int, build: Callable[[], StepReport]) -> Callable[[], StepReport]:
        """A `build` that gives the report to the mirrors too. This is called on the training thread, `build` is not."""
        if not self._mirrors:
            return build
        found = [mirror for mirror in self._mirrors if mirror.found(step)]
        if not found:
            return build

        def build_and_mirror() -> StepReport:
            report = build()
            mirrored = StepScalars(report.step, report.recorded_at, report.scalars)
            for mirror in found:
                mirror.put(mirrored)
            return report

        return build_and_mirror

    def scalars(self) -> dict[str, float]:
        """What went wrong so far, for the next report; nothing where nothing did."""
        if not self._mirrors:
            return {}
        counts = {
            "probe/mirror_failures": sum(mirror.failures for mirror in self._mirrors),
            "probe/mirror_dropped_reports": sum(mirror.dropped for mirror in self._mirrors),
        }
        return {name: float(count) for name, count in counts.items() if count}

    def close(self, timeout_seconds: float) -> None:
        """Write what fits in the time, all mirrors together."""
        end = time.monotonic() + timeout_seconds
        for mirror in self._mirrors:
            mirror.end()
        for mirror in self._mirrors:
            mirror.wait(end - time.monotonic())
