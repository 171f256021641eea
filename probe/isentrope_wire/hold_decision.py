"""What was decided for a step: the control it puts in force, what reports say of it, and how rank 0 tells the others.

The decision for a step: which threshold brings about a bounded correction of the entropy.

The resting point s (`entropy_estimate`) moves by g u + b per step, u being the step's unit prediction and g its gain
(`effect`). Wanted is

    g u* + b = clamp(RATE (H* - s), -max_change_per_step, max_change_per_step)

and the what-if curve of the newest measured step says which mu gives u*: clipping tokens whose update lowers entropy
(scope `decreasing`) raises u from what it is with nothing clipped, clipping those that raise it lowers u. Numbers arrive
a step or more late; what was decided since is added to s as it was planned.

A pure function of what was measured and of its state: no clock, no thread, no torch.

Whether the calibrated prediction may be acted on.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from isentrope_wire.control import Control, Hold, HoldSide, Method, Scope
from isentrope_wire.errors import CodecError
from isentrope_wire.metrics import (
    CONTROL_MU_HIGH,
    CONTROL_MU_LOW,
    HOLD_DRIFT,
    HOLD_GAIN,
    HOLD_MU,
    HOLD_RESTING_POINT,
    HOLD_TARGET,
)
from isentrope_wire.what_if import EDGES, WhatIfCurve, WhatIfSums


class HoldWord(StrEnum):
    """What the controller does in a step, in one word."""

    HOLDING = "holding"
    """The threshold in force is the one that the correction asks for."""
    SLEWING = "slewing"
    """On its way there: it moves only so far in a step."""
    LIMIT = "limit"
    """More would have to be clipped than mu_min, or the pushed max_fraction, lets it."""
    RESTING = "resting"
    """Nothing need be clipped."""
    SIDE = "side"
    """Nothing is clipped: it would take the side that is not allowed."""
    FALLBACK = "fallback"
    """The prediction can't be acted on: the method and thresholds that were pushed are in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The decision for one step."""

    version: int
    """Of the control that asked for it: under another one it counts for nothing."""
    word: HoldWord
    scope: Scope = Scope.ALL
    """`decreasing` or `increasing` with a threshold."""
    mu: float | None = None
    """Both thresholds, in standard deviations; None: nothing is clipped, or what was pushed is in force."""
    why: str = ""
    """For a person: what keeps it from holding; empty where nothing does."""
    gain: float | None = None
    drift: float | None = None
    resting_point: float | None = None
    """What it went by: of the newest step measured then, see `EntropyEstimate`. None: not known yet."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Action:
        """What `encode` wrote.

        Raises:
            CodecError: it is something else.
        """
        try:
            document = json.loads(content)
            return cls(
                version=int(document["version"]),
                word=HoldWord(document["word"]),
                scope=Scope(document["scope"]),
                mu=None if document["mu"] is None else float(document["mu"]),
                why=str(document["why"]),
                **{name: _number(document.get(name)) for name in ("gain", "drift", "resting_point")},
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CodecError(
                f"expected rank 0's decision on a held entropy, got {content[:80]!r} ({error})."
            ) from error


def _number(value: object) -> float | None:
    """Of an older checkpoint's action, which said nothing of what it went by: None."""
    return float(value) if isinstance(value, int | float) else None


def undecided(version: int) -> Action:
    """For the step in which a control takes effect before anybody could decide about it."""
    return Action(version=version, word=HoldWord.FALLBACK, why="Nothing is decided about this control yet.")


def clipping_method(pushed: Control) -> Method:
    """Whose thresholds are moved."""
    return Method.CLIP_V if pushed.method == Method.NONE else pushed.method


def control_under(action: Action | None, pushed: Control) -> Control:
    """The control that a step runs under: the pushed one, with the thresholds that the controller chose."""
    if action is None or action.word == HoldWord.FALLBACK or (action.mu is None and pushed.method == Method.NONE):
        return pushed
    return Control(
        method=clipping_method(pushed),
        mu_low=action.mu,
        mu_high=action.mu,
        scope=action.scope,
        parameters=pushed.parameters,
        hold=pushed.hold,
        reason=pushed.reason,
    )


def hold_scalars(action: Action | None, pushed: Control) -> dict[str, float]:
    """What a step's report says of it; nothing where nobody asked for an entropy to be held."""
    hold = pushed.held
    if action is None or hold is None:
        return {}
    in_force = control_under(action, pushed)
    numbers = {
        HOLD_TARGET: hold.target_entropy,
        HOLD_MU: action.mu,
        HOLD_GAIN: action.gain,
        HOLD_DRIFT: action.drift,
        HOLD_RESTING_POINT: action.resting_point,
        CONTROL_MU_LOW: in_force.mu_low,
        CONTROL_MU_HIGH: in_force.mu_high,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def hold_labels(action: Action | None) -> dict[str, str]:
    """The same in words."""
    if action is None:
        return {}
    return {"hold/state": str(action.word)} | ({"hold/why": action.why} if action.why else {})


COMPARED_STEPS = 5
"""Predictions that must have met their observation before the first action."""
SIGN_AGREEMENT_TO_BEGIN = 0.65
SIGN_AGREEMENT_TO_GO_ON = 0.35
"""Below the half that chance gives: near the target the changes are small and their signs are chance, however good the
gain. Asking for as much as at the beginning would end the hold by its own success."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the calibration says after a step. A value is None while there is too little past to say it."""

    r2: float | None = None
    sign_agreement: float | None = None
    compared_steps: int = 0


def distrust(calibrated: Calibrated, gain: float | None, *, acting: bool) -> str:
    """Why it may not be acted on, in one sentence; empty when it may.

    Args:
        gain: that would be steered by, see `effect.py`; None while there is none.
        acting: whether it was acted on in the step before; trust once won is lost only by clear evidence.
    """
    agreement, r2 = calibrated.sign_agreement, calibrated.r2
    if gain is None:
        return "No gain is known yet: it takes some steps whose entropy was observed, which is what rescore= is for."
    if not math.isfinite(gain) or gain <= 0:
        return f"The gain is {gain:.3g}: clipping would not move the entropy the way it is meant to."
    if calibrated.compared_steps < COMPARED_STEPS or agreement is None:
        return f"The prediction was compared in {calibrated.compared_steps} steps, it takes {COMPARED_STEPS}."
    if acting:
        # Both must fail: each alone is noise where the entropy stands still.
        lost = agreement < SIGN_AGREEMENT_TO_GO_ON and (r2 is None or r2 < 0)
    else:
        lost = agreement < SIGN_AGREEMENT_TO_BEGIN and (r2 is None or r2 < SIGN_AGREEMENT_TO_BEGIN)
    if not lost:
        return ""
    explained = "unknown" if r2 is None else f"{r2:.2f}"
    return f"The prediction's sign was right in {agreement:.0%} of the steps, and its R² is {explained}."


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyEstimate:
    """After one step."""

    mean_entropy: float
    """Under the policy that the step's update left, in nats."""
    gain: float | None
    """a_t g in nats per unit, at the step's learning rate; None while there is too little past to say it."""
    to_come: float = 0.0
    """What updates so far will still do to it, in nats."""
    drift: float = 0.0
    """b in nats: the mean change that g x does not explain."""

    @property
    def resting_point(self) -> float:
        """s: where the entropy would come to rest, in nats."""
        return self.mean_entropy + self.to_come


RATE = 0.2
"""Share of what is missing that one step corrects: low enough for numbers that come some steps late and jitter."""
HYSTERESIS = 0.05
"""Clipping begins when it is worth this share of the largest correction, and ends when it is worth nothing: at the
border it would switch on and off with the noise."""
SLEW_FACTOR = 2.0
SLEW_STEP = 0.1
"""From one step to the next mu goes to at most SLEW_FACTOR mu + SLEW_STEP, and back: one step's odd tokens move it little.
It sets out from where clipping begins: a way through thresholds that no token reaches would be steps without control."""
LARGEST_LAG = 5
"""Steps; numbers older than that are not acted on."""
_HALVINGS = 30
"""Of the interval in which the threshold is looked for: a millionth of a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of the newest step whose numbers have arrived."""

    step: int
    """Counted from 0 in steps closed by this process."""
    entropy: EntropyEstimate
    calibrated: Calibrated
    what_if: WhatIfSums
    """What its unit prediction would have been under any thresholds."""

    @property
    def unclipped_prediction(self) -> float:
        """The unit prediction with nothing clipped."""
        return self.what_if.change_sum / self.what_if.tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What a decision was meant to bring about."""

    step: int
    unit_prediction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldState:
    """What the controller remembers from step to step; all of it, so that it can be written down and read again."""

    acting: bool = False
    """Whether the calibration was trusted."""
    scope: Scope | None = None
    """The side that was clipped; None: neither."""
    mu: float | None = None
    plans: tuple[Plan, ...] = ()
    """For the steps whose numbers have not arrived."""


def decide(
    hold: Hold,
    state: HoldState,
    measured: Measured | None,
    *,
    step: int,
    method: Method = Method.CLIP_V,
    max_fraction: float | None = None,
    shrink_denominator: bool = False,
) -> tuple[HoldState, Action]:
    """The thresholds for a step that is about to begin.

    Args:
        measured: the newest there is, of a step before this one; None: nothing has arrived.
        step: the one about to begin, counted as in `Measured.step`.
        method: clip_v or clip_b, whose thresholds are moved.
        max_fraction, shrink_denominator: what the pushed parameters make of a threshold, see `WhatIfCurve.at`.

    Returns:
        The state to come back with, and the action, whose version is the caller's to fill in.
    """
    why = _why_not(measured, state, step)
    if measured is None or why:
        return HoldState(plans=_plans(state, measured, step)), Action(version=0, word=HoldWord.FALLBACK, why=why)
    gain, drift = measured.entropy.gain or 0.0, measured.entropy.drift
    plans = _outstanding(state, measured)
    standing = measured.entropy.resting_point + sum(gain * plan.unit_prediction + drift for plan in plans)
    largest = hold.largest_change
    correction = min(max(RATE * (hold.target_entropy - standing), -largest), largest) - drift
    # In nats: what the step would bring about with nothing clipped, and what clipping has to add.
    missing = correction - gain * measured.unclipped_prediction
    scope = _side_to_clip(missing, HYSTERESIS * largest, state)
    if scope is None or not _allowed(scope, hold.side):
        word = HoldWord.RESTING if scope is None else HoldWord.SIDE
        idle = HoldState(acting=True, plans=_plans(state, measured, step))
        return idle, Action(version=0, word=word, why=_why_idle(scope))
    curve = WhatIfCurve(measured.what_if, scope, method)
    lowest = max(hold.mu_min, min(_cap_binds_from(curve, max_fraction), hold.mu_max))

    def reached(mu: float) -> float:
        # Uncapped: no threshold below the one at which the cap begins to bind is asked about.
        return curve.at(mu, mu, shrink_denominator=shrink_denominator).unit_predicted_change

    solved = _solve(reached, scope, correction / gain, lowest, hold.mu_max)
    mu, word = _threshold(hold, state, curve, scope, solved, lowest)
    plan = Plan(step, reached(mu))
    return (
        HoldState(acting=True, scope=scope, mu=mu, plans=(*plans, plan)),
        Action(version=0, word=word, scope=scope, mu=mu),
    )


def _why_not(measured: Measured | None, state: HoldState, step: int) -> str:
    if measured is None:
        return "No step's numbers have arrived yet."
    lag = step - measured.step
    if lag > LARGEST_LAG:
        return f"The newest numbers are of {lag} steps before."
    return distrust(measured.calibrated, measured.entropy.gain, acting=state.acting)


def _outstanding(state: HoldState, measured: Measured) -> tuple[Plan, ...]:
    """What was planned for steps that `measured` does not know of yet."""
    return tuple(plan for plan in state.plans if plan.step > measured.step)


def _plans(state: HoldState, measured: Measured | None, step: int) -> tuple[Plan, ...]:
    """With the step about to begin, in which nothing is clipped."""
    if measured is None:
        return ()
    return (*_outstanding(state, measured), Plan(step, measured.unclipped_prediction))


def _side_to_clip(missing: float, band: float, state: HoldState) -> Scope | None:
    """Which tokens stand in the way.

    Args:
        missing: what clipping has to add to the step's change, in nats.
        band: how much that must be before clipping begins, or changes sides.
    """
    wanted = Scope.DECREASING if missing > 0 else Scope.INCREASING
    return wanted if abs(missing) > (0.0 if wanted == state.scope else band) else None


def _allowed(scope: Scope, side: HoldSide) -> bool:
    return side == HoldSide.BOTH or (scope == Scope.DECREASING) == (side == HoldSide.RAISE)


def _why_idle(scope: Scope | None) -> str:
    if scope is None:
        return ""
    return f"Only clipping with scope {scope} would bring the entropy nearer, and side does not allow it."


@dataclass(frozen=True, slots=True)
class _Solved:
    mu: float
    enough: bool
    """Whether it does what is wanted; else it comes nearest."""


def _threshold(
    hold: Hold, state: HoldState, curve: WhatIfCurve, scope: Scope, solved: _Solved, lowest: float
) -> tuple[float, HoldWord]:
    """The threshold that was solved for, as far as the slew lets it.

    Args:
        lowest: by mu_min and the cap; a threshold below it does no more.
    """
    begins = min(_furthest_score(curve), hold.mu_max)
    last = min(state.mu, begins) if state.mu is not None and state.scope == scope else begins
    mu = min(max(solved.mu, (last - SLEW_STEP) / SLEW_FACTOR), last * SLEW_FACTOR + SLEW_STEP)
    mu = min(max(mu, lowest), hold.mu_max)
    if mu != solved.mu:
        return mu, HoldWord.SLEWING
    return mu, HoldWord.HOLDING if solved.enough else HoldWord.LIMIT


def _furthest_score(curve: WhatIfCurve) -> float:
    """The lowest threshold, of those counted, beyond which no token in scope lies."""
    within = bisect_left(EDGES, True, key=lambda edge: curve.at(edge, edge).clip_fraction == 0)
    return EDGES[min(within, len(EDGES) - 1)]


def _cap_binds_from(curve: WhatIfCurve, max_fraction: float | None) -> float:
    """The threshold below which the cap lets no more be clipped, however low; 0 where there is no cap, or none binds."""
    if max_fraction is None:
        return 0.0
    low, high = 0.0, _furthest_score(curve)
    if curve.at(low, low).clip_fraction <= max_fraction:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if curve.at(middle, middle).clip_fraction > max_fraction else (low, middle)
    return high


def _solve(reached: Callable[[float], float], scope: Scope, wanted: float, low: float, high: float) -> _Solved:
    """The highest threshold within bounds that does what is wanted; the one that comes nearest when none does."""
    sign = 1 if scope == Scope.DECREASING else -1

    def missing(mu: float) -> float:
        return sign * (wanted - reached(mu))

    # From above, edge by edge: with a mean over the kept tokens alone, a lower threshold may do less than a higher one.
    places = [high, *(edge for edge in reversed(EDGES) if low < edge < high), low]
    first = next((index for index, mu in enumerate(places) if missing(mu) <= 0), None)
    if first is None:
        return _Solved(min(reversed(places), key=missing), enough=False)
    if first == 0:
        return _Solved(high, enough=True)
    low, high = places[first], places[first - 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if missing(middle) <= 0 else (low, middle)
    return _Solved(low, enough=True)
