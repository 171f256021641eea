"""The line through log H, by least squares with weights that fade: how fast the entropy moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isentrope_wire.diagnosis.course import tuning


def memory_at(age: int) -> float:
    """Steps after which a step's weight is 1 / e, in a run of this age."""
    memory = max(tuning.LEAST_MEMORY, age / tuning.PART_OF_AGE)
    return min(memory, tuning.LONGEST_MEMORY)


@dataclass(slots=True)
class Line:
    """A line that is fitted again with each step. A step costs the same however many there were."""

    rate: float = 0.0
    """Slope per step, shrunk towards 0 the less certain it is."""
    rate_error: float = math.inf
    """Standard error of the slope."""
    end: float = 0.0
    """The line at the newest step, in log H."""
    scatter: float = math.inf
    """Standard deviation of a step about the line, in log H."""
    _steps: int = 0
    _off: float = 0.0
    """Mean error of the line about the next step."""
    _w: float = 0.0
    """Sum of the weights. Below, t is counted back from the newest step, and z is log H."""
    _wt: float = 0.0
    _wz: float = 0.0
    _wtt: float = 0.0
    _wtz: float = 0.0
    """Weighted sums of t, z, t² and t z."""
    _ww: float = 0.0
    """Sum of the squares of the weights."""
    _rests: float = 0.0
    """Weighted sum of the squares of what the line leaves over."""
    _neighbours: float = 0.0
    """Weighted sum of the products of neighbouring rests."""
    _counted: float = 0.0
    """Sum of the weights of the rests."""
    _odds: float = 0.0
    """Weighted sum of the squares of what the line leaves over of the steps themselves."""
    _last_rest: float = 0.0

    def add(self, z: float, raw: float, passed: int, memory: float, *, is_new: bool) -> None:
        """Fit the line again, with one more step.

        Args:
            z: its log H without odd steps.
            raw: its log H.
            passed: steps since the one before.
            memory: steps after which a weight is 1 / e.
            is_new: whether another control is active from this step on.
        """
        kept = 1.0
        if is_new:
            kept = tuning.KEPT_OF_WEIGHTS
        self._steps += 1
        if self._steps > tuning.LEAST_POINTS and self._has_turned(z, passed):
            kept *= tuning.KEPT_OF_A_TURN
        fade = kept * math.exp(-passed / memory)
        self._add_to_sums(z, passed, fade)
        if self._steps < tuning.LEAST_POINTS:
            self.end = z
            return
        middle = self._wt / self._w
        spread = self._wtt - self._w * middle * middle
        rate = (self._wtz - middle * self._wz) / spread
        self.end = self._wz / self._w - rate * middle
        variance = self._add_rest(z - self.end, raw - self.end, fade)
        self.rate_error = math.sqrt(variance * self._ww / self._w / spread)
        # A pace that noise could have made is no pace to go on at.
        if rate:
            self.rate = rate * max(0.0, 1 - (self.rate_error / rate) ** 2)
        else:
            self.rate = 0.0

    def _has_turned(self, z: float, passed: int) -> bool:
        off = z - self.end - self.rate * passed
        self._off += tuning.TRACKED * (off - self._off)
        return abs(self._off) > tuning.TURNED * self.scatter

    def _add_to_sums(self, z: float, passed: int, fade: float) -> None:
        w, wt, wz = self._w, self._wt, self._wz
        self._wtt = fade * (self._wtt - 2 * passed * wt + passed * passed * w)
        self._wtz = fade * (self._wtz - passed * wz)
        self._wt = fade * (wt - passed * w)
        self._wz = fade * wz + z
        self._w = fade * w + 1
        self._ww = fade * fade * self._ww + 1

    def _add_rest(self, rest: float, raw_rest: float, fade: float) -> float:
        """The variance of a step about the line, after what the line leaves over of one more."""
        self._odds = fade * self._odds + raw_rest * raw_rest
        self._rests = fade * self._rests + rest * rest
        self._counted = fade * self._counted + 1
        self._neighbours = fade * self._neighbours + rest * self._last_rest
        self._last_rest = rest
        self.scatter = math.sqrt(self._odds / self._counted)
        # Neighbouring steps resemble each other, as if there were fewer of them.
        alike = 0.0
        if self._rests > 0:
            alike = min(max(self._neighbours / self._rests, 0.0), 0.9)
        points = self._w * self._w / self._ww
        return self._rests / self._counted * points / max(points - 2, 1) * (1 + alike) / (1 - alike)
