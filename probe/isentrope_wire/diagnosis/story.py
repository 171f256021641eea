"""One story of a run, not twelve alarms: which of its findings are causes, and in which order.

A finding that follows from one that was named before, and still holds, does not ring. A fall of the
entropy while the reward rises and the groups teach is no collapse by the share that is lost alone:
what counts is where it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isentrope_wire import metrics
from isentrope_wire.diagnosis.checks import CHECKS
from isentrope_wire.diagnosis.course import Course
from isentrope_wire.diagnosis.guard import MOST_LOST
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import MOST, reward_rises

_KEPT = 0.65
"""Share of today's entropy that must be expected to be left at the end of the forecast."""
_SLOW = 0.8
"""Share that must be left where the fall is slow."""
_PATIENCE = 5
"""Steps in a row without an excuse before a collapse that was excused is raised."""
EXPLAINS: Mapping[str, frozenset[str]] = {check.kind: check.explains for check in CHECKS} | {
    "collapse": frozenset({"plateau", "decline"}),
    "explosion": frozenset({"plateau", "decline"}),
}
"""Kind -> kinds that follow from it."""


def cause_among(kind: str, named: Iterable[str]) -> str | None:
    """The first of the kinds named before that explains this one; None where none does."""
    return next((cause for cause in named if kind in EXPLAINS.get(cause, ())), None)


def share_kept(course: Course) -> float:
    """Share of today's entropy that is expected to be left at the end of the forecast; 0 where
    there is none."""
    forecast = course.forecast()
    if forecast is None:
        return 0.0
    return forecast.entropy[-1] / course.entropy


def is_no_collapse(measures: Measures, course: Course) -> bool:
    """Whether the entropy falls as it does in a run that learns: half of the groups or more still
    teach, the reward rises, a quarter of the early entropy is left, and the forecast leaves most of
    what there is. Where less than half is lost and the pace is slow, the reward may also stand."""
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    reward = measures.trace(metrics.REWARD_MEAN)
    if zero is None or reward is None or zero.level > MOST:
        return False
    kept, lost = share_kept(course), course.share_lost or 0.0
    if kept > _KEPT and lost < MOST_LOST and reward_rises(measures):
        return True
    return kept > _SLOW and course.urgency < 2


def follows(kind: str, urgency: int, named: Iterable[str], course: Course) -> bool:
    """Whether a change of the entropy follows from a cause that was named, and is not fast."""
    is_slow = urgency == 1 or share_kept(course) > _KEPT
    return is_slow and cause_among(kind, named) is not None


@dataclass(slots=True)
class Excused:
    """Keeps what the course of the entropy raised back while it is excused."""

    waiting: dict[str, int] = field(default_factory=dict)
    """Kind -> its urgency."""
    without: int = 0
    """Steps in a row without an excuse."""

    def step(self, raised: Mapping[str, int], *, urgency: int, excused: set[str]) -> dict[str, int]:
        """What is to be said at this step: what was raised and is not excused, and what waited and
        is no longer excused. `urgency`: that of the course now."""
        self.without += 1
        if excused:
            self.without = 0
        if not urgency:
            self.waiting.clear()
        said = {kind: level for kind, level in raised.items() if kind not in excused}
        for kind, level in raised.items():
            if kind in excused:
                self.waiting[kind] = max(level, self.waiting.get(kind, 0))
        if self.without >= _PATIENCE:
            said = {
                kind: max(said.get(kind, 0), self.waiting.get(kind, 0))
                for kind in {**self.waiting, **said}
            }
        for kind in said:
            self.waiting.pop(kind, None)
        return said
