"""How urgent a collapse, or an explosion, of the entropy is: when a person is told."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.course.forecast import Fading, PastForecasts
from isentrope_wire.diagnosis.course.levels import Levels
from isentrope_wire.diagnosis.course.line import Line
from isentrope_wire.metrics import EARLY_STEPS, NEWEST_STEPS


@dataclass(frozen=True, slots=True)
class Evidence:
    """What urgency is judged by at one step."""

    levels: Levels
    line: Line
    fading: Fading
    past: PastForecasts
    ahead: float
    """log H at the end of the forecast, less that of now."""

    def goes_on(self, way: int, error: float = 1e-9) -> bool:
        """Whether neither the forecast nor the pace clearly turns back from a direction; `error`:
        of the forecast's change of log H."""
        goes_back = -way * self.line.rate > tuning.NORMAL_95 * self.line.rate_error
        return way * self.ahead > -error and not goes_back

    def reach(self, rate: float) -> float:
        """How far log H goes over a forecast if a rise lasts as long as a fall: it is as urgent."""
        return math.copysign(self.fading.gone_in(tuning.AHEAD, -abs(rate)), rate)

    def is_sure(self, way: int, gone: float) -> bool:
        """Whether log H has really gone so far in a direction, by more than noise."""
        # What the updates changed of their tokens has less noise than the mean over new ones.
        if way * self.levels.moved_by_updates >= -math.log(tuning.WATCH_LEFT):
            return True
        spread = math.sqrt(math.pi / 2 * (1 / NEWEST_STEPS + 1 / EARLY_STEPS))
        return gone >= tuning.NOISES * self.levels.noise() * spread

    def is_half_expected(self, gone: float, further: float) -> bool:
        """Whether half is expected to go, even at the near end of the band."""
        if math.exp(-gone) > tuning.WATCH_LEFT or further < tuning.MOVES:
            return False
        width = self.past.usual_widths()[-1]
        return gone + further - tuning.SURE * width >= -math.log(tuning.ACT_LEFT)

    def is_level(self, way: int) -> bool:
        """Whether the entropy hardly goes further in a direction, even at the steepest pace."""
        steepest = self.line.rate + way * tuning.NORMAL_95 * self.line.rate_error
        return way * self.reach(steepest) < tuning.MOVES

    def moves(self, way: int, further: float) -> bool:
        """Whether the entropy goes on that way, or just did, faster than a line can follow."""
        recent = list(self.levels.moved)[-2 * NEWEST_STEPS :]
        noise = tuning.NOISES * self.levels.noise() * math.sqrt(math.pi / NEWEST_STEPS)
        went = way * (recent[-1][0] - recent[0][0])
        return further >= tuning.MOVES or went >= max(2 * tuning.MOVES, noise)


@dataclass(slots=True)
class Urgency:
    """How urgent a change in one direction is: 0 not, 1 watch, 2 act."""

    now: int = 0
    expected: int = 0
    """Steps in a row in which half was expected to go."""
    calm: int = 0
    """Steps in a row in which the course was level."""
    halvings: int = 0
    """Halvings of the base entropy at the time of the last alert."""
    onward: int = 0
    """Steps in a row in which the forecast went further that way."""
    has_turned: bool = False
    """Whether it does not go on, or did not in one of the last twenty steps."""

    @property
    def shown(self) -> int:
        """The urgency, no more than watch while the forecast turns back."""
        if self.has_turned:
            return min(self.now, 1)
        return self.now

    def judge(self, way: int, base: float, evidence: Evidence) -> int:
        """Bring the urgency up to date with one more step.

        Args:
            way: -1 for a collapse, 1 for an explosion.
            base: the entropy that it is counted from, in nats.

        Returns:
            The urgency where it is news, else 0.
        """
        before = self.now
        gone = way * (evidence.levels.level - math.log(max(base, tuning.FLOOR)))
        left = math.exp(-gone)
        if before == 0 and left > tuning.WATCH_LEFT:
            self.expected = 0
            return 0
        further = way * evidence.reach(evidence.line.rate)
        if evidence.is_half_expected(gone, further):
            self.expected += 1
        else:
            self.expected = 0
        if self._is_over(left, evidence.is_level(way)):
            self.calm += 1
        else:
            self.calm = 0
        if self.calm >= tuning.CALM:
            self.now, self.calm = int(left <= tuning.OVER_LEFT), 0
        elif left <= tuning.WATCH_LEFT and evidence.is_sure(way, gone):
            self._raise(way, left, further, evidence)
        halvings = math.floor(gone / math.log(2) + 1e-9)
        is_news = self.now > before or halvings > max(self.halvings, 1)
        goes_on = evidence.goes_on(way, evidence.levels.error) and not evidence.is_level(way)
        self.onward += 1
        if not goes_on:
            self.onward, self.has_turned = 0, True
        elif is_news or self.onward >= tuning.CALM:
            self.has_turned = False
        return self._tell_news(before, halvings)

    def _is_over(self, left: float, is_level: bool) -> bool:
        if self.now == 2:
            return is_level or left > tuning.BACK_LEFT
        return left > tuning.OVER_LEFT

    def _raise(self, way: int, left: float, further: float, evidence: Evidence) -> None:
        is_far = left <= tuning.ACT_LEFT or self.expected >= tuning.IN_A_ROW
        goes = evidence.goes_on(way) and evidence.moves(way, further)
        if goes and is_far and evidence.levels.is_learnt(way):
            self.now = 2
        else:
            self.now = max(self.now, 1)

    def _tell_news(self, before: int, halvings: int) -> int:
        """The urgency where it rose, or another half is gone."""
        if self.now > before:
            self.halvings = halvings
            return self.now
        if self.shown == 2 and halvings > max(self.halvings, 1):
            self.halvings = halvings
            return 2
        return 0
