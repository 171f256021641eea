"""What a control would do: the tokens it clips, the change it adds to each step, the pace that
follows, its dead knobs.

The sums of the last steps give the change of the unit prediction that a control makes against the
one that was active. Each step's change times that step's gain is what the tokens gain that the gain
was fitted to, in nats; of a step's own tokens, times `Course.own_share`, what the entropy does. The
mean of these products is added to the forecast, so a promise and the drawn line are one number. A
gain of one step would not do for all: the factor that clipped that step's gradient is in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from isentrope_wire import hold_decision, metrics
from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.control_answers import EffectCurve, EffectCurves, PredictedEffect
from isentrope_wire.diagnosis.course import WATCH_LEFT, Course
from isentrope_wire.hold_action import Action
from isentrope_wire.methods import (
    RATIO_TOLERANCE,
    SUGGESTED,
    StepEvidence,
    idle_parameters,
)
from isentrope_wire.numbers import percent, round_to_step
from isentrope_wire.what_if import (
    EDGES,
    WhatIf,
    WhatIfCurve,
    WhatIfSums,
    band_answer,
    bonus_answer,
    evaluate_control,
    merged,
)

EFFECT_STEPS = 10
"""Steps that a control's effect is predicted from: the tokens of one step alone scatter by half."""
PROMISED_STEPS = 20
"""Steps whose mean pace is promised, and after which a control is judged."""
SUGGESTED_THRESHOLDS: tuple[tuple[float, ...], ...] = (
    (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0),
    tuple(round_to_step(10 ** (place / 24)) for place in range(-24, 49)),
    (*(hundredth / 100 for hundredth in range(10, 400)),),
)
"""In standard deviations, from coarse to fine. The coarsest that serves is taken, so that one
situation gives one threshold; a steep curve needs a finer one."""
_WORTH = 0.5
"""A control that leaves more than this share of the pace is not suggested."""
_NEAR = 0.25
"""A pace of at most this share of the one before is near enough to 0."""
_TOO_STEEP = 0.02
"""If a threshold that differs by this share changes the pace by more than all of it, no threshold
is suggested."""
_LEAST_CLIPPED = 1e-3
"""A control that clips a smaller share of the tokens does nothing."""
_CLEARLY = 1.6449
"""Standard errors that a gain must lie above 0."""
_OFF = 0.33
"""Standard error of a promised effect, as a share of it, measured in forked runs."""
_SLEWS = 20
"""Steps after which a hold's threshold has come from any score to any other."""


@dataclass(frozen=True, kw_only=True)
class LastSteps:
    """What effects are predicted from. A search asks about hundreds of thresholds: what is the same
    for all of them is computed once."""

    sums: Sequence[WhatIfSums] = ()
    """What-if sums of the last EFFECT_STEPS steps that have some, by rising step."""
    intervention: float = 0.0
    """Mean part of the unit prediction that the active control made in these steps, in nats per
    unit gain."""
    active: Control | None = None
    """The active control, which may be newer than these steps; None: not known, or it is a hold,
    whose thresholds move."""
    gain: float | None = None
    """From the unit prediction to nats, of the newest step; None: not known."""
    gains: Sequence[float] = ()
    """Gain of each step with `sums`; empty: the newest holds for all."""
    gain_error: float | None = None
    """Standard error of `gain`; None: not known."""
    of_unseen: bool = False
    """Whether the gain was fitted to tokens that no update is fitted to; else to the steps' own."""
    scalars: Mapping[str, float] | None = None
    """The newest step's scalars; None: none was reported."""

    @property
    def has_clear_gain(self) -> bool:
        """Whether the gain is above 0 for certain. Where the entropy is level it often is not: then
        it says nothing of what a threshold does."""
        if self.gain is None or not all(gain > 0 for gain in (self.gain, *self.gains)):
            return False
        return self.gain_error is None or self.gain > _CLEARLY * self.gain_error

    @cached_property
    def _curves(self) -> dict[tuple[Method, Scope], list[WhatIfCurve]]:
        return {}

    def curves(self, method: Method, scope: Scope) -> list[WhatIfCurve]:
        """Each step's answer for a method with thresholds and a scope."""
        if (method, scope) not in self._curves:
            self._curves[method, scope] = [WhatIfCurve(sums, scope, method) for sums in self.sums]
        return self._curves[method, scope]

    def evaluate(self, control: Control) -> list[WhatIf] | None:
        """Each step under a control; None where there are none, or their sums do not know it."""
        curves: Sequence[WhatIfCurve | None] = [None] * len(self.sums)
        if control.method.thresholds and control.hold is None:
            curves = self.curves(control.method, control.scope)
        answers = [
            evaluate_control(control, sums, curve)
            for sums, curve in zip(self.sums, curves, strict=True)
        ]
        known = [answer for answer in answers if answer is not None]
        if known and len(known) == len(answers):
            return known
        return None

    @cached_property
    def added_by_active(self) -> list[float]:
        """What the active control adds to the unit prediction of each of the steps; where their
        sums don't know it, what was added to them on average."""
        answers = None
        if self.active is not None:
            answers = self.evaluate(self.active)
        if answers is None:
            return [self.intervention] * len(self.sums)
        return self.added(answers)

    def added(self, answers: Sequence[WhatIf]) -> list[float]:
        """What a control adds to the unit prediction of each of the steps."""
        return [
            answer.unit_predicted_change - sums.change_sum / sums.tokens
            for answer, sums in zip(answers, self.sums, strict=True)
        ]

    def factors(self, course: Course | None) -> list[float] | None:
        """From each step's unit prediction to what the entropy moves today, in nats; None where the
        gain is not clear.

        An entropy moves by shares of itself, so a step's nats are brought to today's level."""
        if self.gain is None or not self.has_clear_gain:
            return None
        own_share, shares = 1.0, [1.0] * len(self.sums)
        if course is not None:
            shares = course.shares(len(self.sums))
        if course is not None and not self.of_unseen:
            own_share = course.own_share
        gains = self.gains or [self.gain] * len(self.sums)
        return [own_share * gain * share for gain, share in zip(gains, shares, strict=True)]


def predicted_effect(
    control: Control, last: LastSteps, course: Course | None
) -> PredictedEffect | None:
    """What a control would have done to the last steps, and the pace that follows; without a course
    no pace.

    None for a method that the sums do not know, for a held entropy, whose thresholds move, and
    without steps."""
    known = _answers(control, last, course)
    if known is None:
        return None
    tokens = [sums.tokens for sums in last.sums]
    fractions = [answer.clip_fraction for answer in known]
    change = error = pace = None
    factors = last.factors(course)
    if factors is not None:
        added = [
            factor * (of_new - of_active)
            for factor, of_new, of_active in zip(
                factors, last.added(known), last.added_by_active, strict=True
            )
        ]
        change = fmean(added, tokens)
        error = math.hypot(_OFF * change, _std(added) / math.sqrt(len(added)))
        if course is not None:
            pace = course.mean_pace(PROMISED_STEPS, change, error)
    return PredictedEffect(
        steps=len(known),
        clip_fraction=fmean(fractions, tokens),
        clip_fraction_std=_std(fractions),
        change=change,
        change_error=error,
        pace=pace,
    )


def _answers(control: Control, last: LastSteps, course: Course | None) -> Sequence[WhatIf] | None:
    """Each of the steps under a control; None of one that is not known."""
    if control.method == "entrocraft" and course is not None and last.sums:
        return [band_answer(control, sums, course.entropy) for sums in last.sums]
    effect = (last.scalars or {}).get(metrics.ENTROPY_BONUS_EFFECT)
    is_constant = control.value("target_entropy") is None
    if control.method == Method.ENTROPY_BONUS and is_constant and effect is not None and last.sums:
        return [bonus_answer(control, sums, effect) for sums in last.sums]
    return last.evaluate(control)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The control under which the entropy stays nearest to where it is."""

    control: Control
    effect: PredictedEffect
    left: float
    """Share of the pace that goes on under it; below 0 where the entropy would turn."""

    @property
    def stops(self) -> bool:
        """Whether next to nothing of the pace is left. False: this one comes nearest."""
        return self.left <= _NEAR


def why_unknown(last: LastSteps) -> str:
    """Why it is not known what a threshold does, in a sentence; empty where it is known."""
    if not last.sums:
        return "No step has what-if sums."
    if last.gain is None:
        return "The gain is not known: it takes steps with an observed entropy change (rescore=)."
    if not last.has_clear_gain:
        return "The gain may be 0: what a threshold does is not known."
    return ""


def stopping_control(
    course: Course, last: LastSteps, direction: int, reason: str = ""
) -> Stopping | None:
    """The threshold of the suggested method whose forecast pace is nearest to 0, to end a fall
    (direction -1), or a rise (1). One method alone: two would alternate from step to step.

    Returns:
        None where the forecast does not go that way, it is not known what a threshold does
        (`why_unknown`), or none is safe and of use: see `_Search`. What merely slows the change is
        of no use while less than a quarter of the early entropy is lost: it clips much, and there
        is time.
    """
    unchanged = course.mean_pace(PROMISED_STEPS)
    if unchanged is None or why_unknown(last) or direction * unchanged.value <= 0:
        return None
    found = _Search(course, last, direction, abs(unchanged.value)).best(reason)
    is_far = abs(course.share_lost or 0.0) >= 1 - WATCH_LEFT
    if found is not None and not found.stops and not is_far:
        return None
    return found


class _Search:
    """Looks for a threshold that is safe.

    Safe is one under which the entropy, also at the far end of the interval that is shown with it,
    turns no faster than it goes now; whose forecast's band does not pass the early level in the
    promised steps; that clips something, and where a control acts already, more than that; and
    whose neighbours do about the same."""

    def __init__(self, course: Course, last: LastSteps, direction: int, before: float) -> None:
        self._course, self._last, self._direction = course, last, direction
        self._before = before
        self._least_clipped = _LEAST_CLIPPED
        if last.active is not None and last.active.method.thresholds:
            active = predicted_effect(last.active, last, course)
            if active is not None:
                self._least_clipped = max(active.clip_fraction, _LEAST_CLIPPED)

    def best(self, reason: str) -> Stopping | None:
        """The threshold of the coarsest grid that serves; else the safe one nearest to 0. A finer
        grid is asked where the coarser one goes from too little to too much."""
        scope = Scope.INCREASING
        if self._direction < 0:
            scope = Scope.DECREASING
        weakest = SUGGESTED_THRESHOLDS[0][-1]
        control = Control(
            method=SUGGESTED, mu_low=weakest, mu_high=weakest, scope=scope, reason=reason
        )
        low, high, nearest = 0.0, math.inf, None
        for grid in SUGGESTED_THRESHOLDS:
            tried = [self._try_control(control, mu) for mu in reversed(grid) if low <= mu <= high]
            # Of equal ones the mildest.
            by_pace = sorted(
                [*([] if nearest is None else [nearest]), *tried],
                key=lambda stopping: abs(stopping.left),
            )
            nearest = next(filter(self._is_safe, by_pace), None)
            if nearest is not None and abs(nearest.left) <= _NEAR:
                break
            low, high = _enclosing(tried)
        if nearest is None or nearest.left > _WORTH or self._is_too_steep(nearest):
            return None
        return nearest

    def _try_control(self, like: Control, mu: float) -> Stopping:
        control = replace(like, mu_low=mu, mu_high=mu)
        effect = predicted_effect(control, self._last, self._course)
        assert effect is not None, "the sums know every threshold"
        assert effect.pace is not None, "the gain is known"
        left = self._direction * effect.pace.value / self._before
        return Stopping(control=control, effect=effect, left=left)

    def _is_safe(self, stopping: Stopping) -> bool:
        effect, early = stopping.effect, self._course.early.level
        if effect.clip_fraction <= self._least_clipped or early is None or not effect.change:
            return False
        assert effect.pace is not None, "the gain is known"
        fastest = effect.pace.low
        if self._direction < 0:
            fastest = effect.pace.high
        if stopping.left < -_WORTH or -self._direction * fastest > self._before:
            return False
        forecast = self._course.forecast(effect.change, effect.change_error or 0.0)
        if forecast is None:
            return False
        edge = forecast.low
        if self._direction < 0:
            edge = forecast.high
        return self._direction * (edge[PROMISED_STEPS - 1] - early) >= 0

    def _is_too_steep(self, stopping: Stopping) -> bool:
        mu = stopping.control.mu_low
        assert mu is not None
        low = self._try_control(stopping.control, mu * (1 - _TOO_STEEP))
        high = self._try_control(stopping.control, mu * (1 + _TOO_STEEP))
        return abs(high.left - low.left) > 1


def _enclosing(tried: Sequence[Stopping]) -> tuple[float, float]:
    """The two neighbouring thresholds, of falling ones, between which the change comes to its
    end."""
    thresholds = [stopping.control.mu_low or 0.0 for stopping in tried]
    ends = next((at for at, stopping in enumerate(tried) if stopping.left <= 0), len(tried))
    return (*thresholds, 0.0)[ends], (math.inf, *thresholds)[ends]


def effect_curves(control: Control, last: LastSteps, course: Course | None) -> EffectCurves | None:
    """Each side's threshold over all edges, with the other side off, for a control's method and
    scope.

    None of a method without thresholds, and without steps.
    """
    if not control.method.thresholds or not last.sums:
        return None
    answers = last.curves(control.method, control.scope)
    tokens = [sums.tokens for sums in last.sums]
    factors = last.factors(course)
    before = [
        sums.change_sum / sums.tokens + added
        for sums, added in zip(last.sums, last.added_by_active, strict=True)
    ]

    def effect_curve(thresholds: Iterable[tuple[float | None, float | None]]) -> EffectCurve:
        means, spreads, paces = [], [], []
        for mu_low, mu_high in thresholds:
            steps = [answer.evaluate(mu_low, mu_high) for answer in answers]
            fractions = [step.clip_fraction for step in steps]
            means.append(fmean(fractions, tokens))
            spreads.append(_std(fractions))
            if factors is None or course is None:
                continue
            added = [
                factor * (step.unit_predicted_change - unchanged)
                for factor, step, unchanged in zip(factors, steps, before, strict=True)
            ]
            pace = course.mean_pace(PROMISED_STEPS, fmean(added, tokens))
            if pace is not None:
                paces.append(pace.value)
        return EffectCurve(
            mu=list(EDGES), clip_fraction=means, clip_fraction_std=spreads, pace=paces or None
        )

    return EffectCurves(
        low=effect_curve((mu, None) for mu in EDGES), high=effect_curve((None, mu) for mu in EDGES)
    )


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def expected_action(
    wanted: Control,
    last: LastSteps,
    step: int,
    entropy: float,
    early_level: float | None,
    highest: float,
) -> Action:
    """What the probe would decide for a held entropy, once its threshold has moved as far as it is
    going to.

    The probe's own gain, drift and resting point are used where it reported them, which it does
    while it holds; else the calibration's gain, with no drift.

    Args:
        step: the newest; `entropy`, `early_level` (None: not known) and `highest` of the run so far
            are in nats.
    """
    newest = last.scalars or {}
    held = metrics.HOLD_GAIN in newest
    agreement = newest.get(metrics.ENTROPY_PREDICTION_SIGN_AGREEMENT)
    vocabulary = newest.get(metrics.TOKEN_VOCABULARY, math.nan)
    measured = hold_decision.Measured(
        step=0,
        run_step=step,
        entropy=hold_decision.EntropyEstimate(
            mean_entropy=entropy,
            gain=newest[metrics.HOLD_GAIN] if held else last.gain,
            to_come=newest.get(metrics.HOLD_RESTING_POINT, entropy) - entropy if held else 0.0,
            drift=newest.get(metrics.HOLD_DRIFT, 0.0) if held else 0.0,
        ),
        calibrated=hold_decision.Calibrated(
            r2=newest.get(metrics.ENTROPY_PREDICTION_R2),
            sign_agreement=agreement,
            compared_steps=0 if agreement is None else hold_decision.COMPARED_STEPS,
        ),
        what_if=merged(last.sums),
        bonus_effect=newest.get(metrics.ENTROPY_BONUS_EFFECT),
        early_level=early_level,
        highest_entropy=highest,
        vocabulary=round(vocabulary) if 1 < vocabulary < math.inf else None,
    )
    # While it holds, the probe goes on with less trust than it begins with.
    state = hold_decision.HoldState(acting=held)
    for _ in range(_SLEWS):
        before = state
        state, action = hold_decision.decide(wanted, replace(before, plans=()), measured, step=1)
        if (state.mu, state.bonus) == (before.mu, before.bonus):
            break
    return action


def dead_parts(wanted: Control, last: LastSteps) -> list[str]:
    """One sentence for each parameter of a control that would do nothing, or less than its number.

    The probe checks the active control with the same `dead_knobs`, from the sums of a step. Here
    they are read from what the newest step reported; what it did not report is taken to be no
    obstacle."""
    newest = last.scalars or {}
    if metrics.TOKEN_COUNT in newest:
        dead = [*dead_knobs(wanted, _evidence(newest))]
    else:
        dead = list(idle_parameters(wanted.method, wanted.parameters))
    return [*dead, *_warn_of_no_token(wanted, last)]


def _warn_of_no_token(wanted: Control, last: LastSteps) -> Iterator[str]:
    found = None
    if last.sums:
        found = evaluate_control(wanted, merged(last.sums))
    if found is None:
        return
    if wanted.method == "clip_cov" and found.capped:
        some = "none would be clipped"
        if found.clip_fraction:
            some = "all of them would be clipped"
        yield (
            f"Only {percent(found.clip_fraction, 1)} of the tokens lie between omega_low and"
            f" omega_high: {some}."
        )
    elif found.capped:
        yield (
            "max_fraction binds: more tokens lie beyond the thresholds, and moving µ changes"
            " nothing."
        )
    elif found.clip_fraction == 1:
        yield "Every token of these steps would be clipped: nothing is learnt from them."
    elif found.clip_fraction == 0 and (wanted.mu_low is not None or wanted.mu_high is not None):
        yield "No token of these steps lies beyond the thresholds."


def _evidence(newest: Mapping[str, float]) -> StepEvidence:
    tokens = round(newest[metrics.TOKEN_COUNT])
    acts = newest.get(metrics.TOKEN_EFFECTIVE_FRACTION) != 0
    is_measured = metrics.CLIP_FRACTION in newest
    ratio = newest.get(metrics.RATIO_MEAN)
    return StepEvidence(
        tokens=tokens,
        positive=int(acts and (not is_measured or metrics.CLIP_FRACTION_POSITIVE in newest)),
        negative=int(acts and (not is_measured or metrics.CLIP_FRACTION_NEGATIVE in newest)),
        candidates=tokens,
        spared=0,
        decreasing=1,
        increasing=1,
        discriminator_mean=newest.get(metrics.SCORE_DISCRIMINATOR_MEAN, 0.0),
        discriminator_std=newest.get(metrics.SCORE_DISCRIMINATOR_STD, 0.0),
        vocab_centered_std=newest.get(metrics.SCORE_VOCAB_CENTERED_STD, 0.0),
        largest_entropy=math.inf,
        largest_expected_score=math.inf,
        ratio_spread=None if ratio is None else abs(ratio - 1),
        ratio_to_sampler=ratio is not None and metrics.KL_OLD not in newest,
    )


THRESHOLD_TOLERANCE = 1e-9
"""Relative; a threshold at the bound is beyond it."""


def dead_knobs(control: Control, step: StepEvidence) -> tuple[str, ...]:
    """One sentence for each knob that does nothing, or not what its number asks for; empty where
    all knobs act."""
    if control.method == Method.NONE or not step.tokens:
        return ()
    idle = tuple(idle_parameters(control.method, control.parameters))
    own = () if idle else control.method.dead(control.number, step)
    return (
        *_nothing_to_act_on(control, step),
        *_ratio(control, step),
        *idle,
        *_thresholds(control, step),
        *own,
    )


def _nothing_to_act_on(control: Control, step: StepEvidence) -> Iterator[str]:
    if not step.positive and not step.negative:
        yield "Every advantage is 0: no token has a gradient, whatever the method."
    elif control.scope == Scope.NEGATIVE and not step.negative:
        yield "scope negative holds no token: no advantage is below 0."
    elif (control.scope == Scope.POSITIVE or control.method.positive_only) and not step.positive:
        tokens = "The positive side"
        if control.scope == Scope.POSITIVE:
            tokens = "scope positive"
        yield f"{tokens} holds no token: no advantage is above 0."
    elif control.scope == Scope.DECREASING and not step.decreasing:
        yield "scope decreasing holds no token: no update lowers the entropy."
    elif control.scope == Scope.INCREASING and not step.increasing:
        yield "scope increasing holds no token: no update raises the entropy."


def _ratio(control: Control, step: StepEvidence) -> Iterator[str]:
    parameters = control.method.parameters.items()
    knobs = [
        name
        for name, parameter in parameters
        if parameter.needs_ratio and control.value(name) is not None
    ]
    if not knobs:
        return
    names = " and ".join(knobs)
    if step.ratio_spread is None:
        yield (
            f"{names} can't act: the importance ratio is not known. Give gate the old policy's"
            " log-probs."
        )
    elif step.ratio_spread < RATIO_TOLERANCE:
        yield (
            f"{names} can't act: the importance ratio is 1 on every token, for each batch is used"
            " for one update. Use a batch for several updates, or another method."
        )


def _thresholds(control: Control, step: StepEvidence) -> Iterator[str]:
    if not control.method.thresholds:
        return
    bounds = control.method.bounds(step)
    for name, mu, bound, outside in (
        ("mu_low", control.mu_low, bounds.low, step.outside_low),
        ("mu_high", control.mu_high, bounds.high, step.outside_high),
    ):
        # A hold rests its threshold out there on purpose. The bounds are counted from this step's
        # tokens; the gate may have counted from the step's before, and have left some out all the
        # same.
        if control.hold is not None or mu is None or bound is None or outside:
            continue
        if mu >= bound * (1 - THRESHOLD_TOLERANCE):
            side = "upper"
            if name == "mu_low":
                side = "lower"
            yield (
                f"{name} {mu:g} clips nothing at this step: no token lies beyond it, for the {side}"
                f" side ends at {bound:.3g}. Only a smaller {name} would clip."
            )
    if control.value("max_fraction") is not None and step.spared:
        yield (
            f"max_fraction {control.value('max_fraction'):g} binds: {step.candidates} of"
            f" {step.tokens} tokens lie beyond the thresholds, and {step.candidates - step.spared}"
            " are clipped. Moving µ changes nothing."
        )
