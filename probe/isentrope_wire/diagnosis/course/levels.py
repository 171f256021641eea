"""The entropy of a run's last steps, as log H, and how much of it moves by chance."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.metrics import NEWEST_STEPS


def name_end(share_lost: float | None) -> str:
    """How an ended run came out, by the share of its early entropy that it lost, in one word;
    empty where it lost and gained little, or that is not known."""
    if share_lost is None or abs(share_lost) < 1 - tuning.WATCH_LEFT:
        return ""
    is_far = abs(share_lost) >= 1 - tuning.ACT_LEFT
    if share_lost > 0:
        if is_far:
            return "collapsed"
        return "fallen"
    if is_far:
        return "exploded"
    return "risen"


@dataclass(slots=True)
class Levels:
    """log H of the last steps, oldest first. `add_raw` a step's own, then `add_level` it."""

    level: float = 0.0
    """log H now: the median of the last five steps."""
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    """log H of the last five steps."""
    _raw: deque[float] = field(default_factory=lambda: deque(maxlen=4 * NEWEST_STEPS))
    """log H of the last twenty steps."""
    moved: deque[tuple[float, float | None]] = field(
        default_factory=lambda: deque(maxlen=tuning.AHEAD)
    )
    """The level at the last steps, and what their updates changed of log H on their own tokens;
    None: not measured."""

    def add_raw(self, z: float) -> None:
        """Add the next step's log H."""
        self.newest.append(z)
        self.level = median(self.newest)
        self._raw.append(z)

    def add_level(self, moved: float | None) -> None:
        """Keep the level of the step that was added last, and what its update changed."""
        self.moved.append((self.level, moved))

    @property
    def entropy(self) -> float:
        """The level in nats."""
        return math.exp(self.level)

    @property
    def last(self) -> list[float]:
        """log H of the last five steps, each the median of five."""
        return [level for level, _ in self.moved][-NEWEST_STEPS:]

    @property
    def error(self) -> float:
        """Standard error of such a median, from the run's own scatter; 0 while it is not known."""
        noise = self.noise()
        if math.isfinite(noise):
            return noise * math.sqrt(math.pi / 2 / NEWEST_STEPS)
        return 0.0

    @property
    def own_share(self) -> float:
        """`own_share` of the last fifty steps."""
        return own_share(self.moved)

    @property
    def moved_by_updates(self) -> float:
        """How far the updates of the last fifty steps moved log H."""
        return self.own_share * sum(moved for _, moved in self.moved if moved is not None)

    @property
    def speeds_up(self) -> bool:
        """Whether the last ten steps clearly went further than the ten before, the same way, and so
        far that a quarter is gone, or added, at the end of the forecast at this pace."""
        levels = [level for level, _ in self.moved]
        if len(levels) <= 4 * NEWEST_STEPS:
            return False
        newest = levels[-1] - levels[-1 - 2 * NEWEST_STEPS]
        before = levels[-1 - 2 * NEWEST_STEPS] - levels[-1 - 4 * NEWEST_STEPS]
        # Of the difference of three medians of five.
        error = self.noise() * math.sqrt(math.pi / 2 * 6 / NEWEST_STEPS)
        is_faster = newest * before > 0 and abs(newest) - abs(before) > tuning.NOISES * error
        goes = abs(newest) * tuning.AHEAD / (2 * NEWEST_STEPS)
        return is_faster and goes > -math.log(tuning.WATCH_LEFT)

    def shares(self, steps: int) -> list[float]:
        """The entropy now by that of each of the last steps, at most AHEAD."""
        levels = [level for level, _ in self.moved][-steps:]
        padded = levels[:1] * (steps - len(levels)) + levels
        return [math.exp(self.level - level) for level in padded]

    def noise(self) -> float:
        """Standard deviation of a step's log H, from how three neighbours bend: neither a course
        nor an odd step shows there. Infinite before there are three."""
        z = self._raw
        bends = [abs(z[place] - 2 * z[place + 1] + z[place + 2]) for place in range(len(z) - 2)]
        if bends:
            return 1.4826 / math.sqrt(6) * median(bends)
        return math.inf

    def is_learnt(self, way: int) -> bool:
        """Whether the updates account for the change of the last steps in a direction, or it is not
        known; else the prompts changed."""
        steps = list(self.moved)
        known = [moved for _, moved in steps[1:] if moved is not None]
        change = way * (steps[-1][0] - steps[0][0])
        return len(known) < len(steps) / 2 or way * sum(known) >= tuning.UNEXPLAINED * change


def own_share(moved: Sequence[tuple[float, float | None]]) -> float:
    """What the entropy moves for each nat that updates move on their own tokens, which are fitted
    to them.

    Of steps with log H and its change on their own tokens (None: not measured), drawn towards what
    it was in recorded runs."""
    own = sum(change for _, change in moved if change is not None)
    if not own:
        return tuning.USUAL_OWN
    course = math.copysign(1, own) * (moved[-1][0] - moved[0][0])
    share = (tuning.USUAL_OWN * tuning.OWN_PRIOR + course) / (tuning.OWN_PRIOR + abs(own))
    return min(max(share, tuning.LEAST_OWN), 1 / tuning.LEAST_OWN)


def bound_nats(nats: float) -> float:
    """A change of the entropy that can be calculated with."""
    return min(max(nats, -tuning.CEILING), tuning.CEILING)
