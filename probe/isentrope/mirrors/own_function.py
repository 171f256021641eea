"""Any other tracker: a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isentrope.mirrors.destination import StepScalars


class OwnFunction:
    """Calls `function(step, scalars)` with the names as the reports have them, without prefix."""

    remedy = ""

    def __init__(self, function: Callable[[int, Mapping[str, float]], object]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The function's own."""
        return getattr(self._function, "__qualname__", type(self._function).__qualname__)

    def prepare(self, run_id: str) -> None:
        """There is nothing to do."""

    def find(self) -> OwnFunction | None:
        return self

    def write(self, report: StepScalars) -> None:
        # A copy: what is done to it must not reach the report.
        self._function(report.step, dict(report.scalars))

    def close(self) -> None:
        """The user's to do."""
