"""Alerts: which steps need attention, each with its level, the numbers behind it, a cause and a
suggestion.

They are found where the steps are closed, and not in the server: every step passes here once, in
order and over all ranks, a run without a server has alerts too, and an alert is never withdrawn. No
threshold is in nats or in steps: a run is compared with its own early level, its own noise and its
own age, a prediction with its own past."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from isentrope_wire import metrics
from isentrope_wire.diagnosis.course import AHEAD, DIRECTIONS, Course
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, LastSteps, stopping_control
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, cause_of, change_parts, mean_parts
from isentrope_wire.numbers import part_of, percent
from isentrope_wire.reports import LIKELY_CAUSE, Alert, AlertCause, AlertLevel, ControlSnapshot
from isentrope_wire.what_if import WhatIfSums

WINDOW = 20
"""Steps that a mean is taken of."""

PERSISTENCE = 5
"""Steps in a row that a condition must hold, where it is not about the share that is lost or tokens
that are not finite."""

REARM = 20
"""Steps in a row without the condition before the same alert may be raised again."""

MOVED = 1e-4
"""KL to the old policy, in nats, from which on a policy has left it: in an epoch after the first,
or a later mini-batch."""

SIGMAS = 5.0
"""How far from 0 the self-check's mean must be, in standard errors of two kinds."""

TOP_K = "generate of transformers has top_k=50 unless it is given top_k=0."

SELF_CHECK = "self_check"

_LEVELS = {1: AlertLevel.WATCH, 2: AlertLevel.ACT}


@dataclass(slots=True)
class _Raised:
    """Raises the alert of one kind once, until its condition has been over for a while."""

    is_raised: bool = False
    clear: int = 0

    def raises(self, finding: Alert | None) -> bool:
        self.clear = self.clear + 1 if finding is None else 0
        if self.clear >= REARM:
            self.is_raised = False
        is_news = finding is not None and not self.is_raised
        self.is_raised = self.is_raised or is_news
        return is_news


def has_learnt(scalars: Mapping[str, float]) -> bool:
    """Whether the policy may have learnt from a step's tokens before: it was trained on them, or
    has left its old self."""
    return scalars.get(metrics.TOKEN_EPOCH, 1.0) > 1 or scalars.get(metrics.KL_OLD, 0.0) > MOVED


@dataclass(slots=True)
class AlertWatch:
    """Finds the alerts of a run; call `step` with each report, in order."""

    course: Course = field(default_factory=Course)
    """Course of the entropy: a collapse or an explosion is announced when it becomes more urgent,
    and at each further halving."""
    _version: int = 0
    _signal: metrics.EarlyLevel = field(default_factory=lambda: metrics.EarlyLevel(WINDOW // 2))
    """Share of groups whose advantage is not 0."""
    _parts: deque[tuple[int, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=CAUSE_STEPS)
    )
    _what_if: deque[WhatIfSums] = field(default_factory=lambda: deque(maxlen=EFFECT_STEPS))
    _checks: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _signals: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _trusted: int = 0
    _held: dict[str, int] = field(default_factory=dict)
    """Steps in a row that a condition has held, by its kind."""
    _raised: dict[str, _Raised] = field(default_factory=dict)

    def step(
        self,
        step: int,
        scalars: Mapping[str, float],
        labels: Mapping[str, str],
        what_if: WhatIfSums | None = None,
        active: ControlSnapshot | None = None,
        gradient: Alert | None = None,
    ) -> tuple[Alert, ...]:
        """Find the alerts of the next step; it ran under `active`, and `gradient` is about its
        gradients."""
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        self._parts.append((step, change_parts(finite)))
        if what_if is not None and what_if.tokens:
            self._what_if.append(what_if)
        dead = labels.get("control/dead")
        found = {
            SELF_CHECK: self._self_check(finite, labels.get(LIKELY_CAUSE, "")),
            "prediction": self._prediction(finite.get(metrics.ENTROPY_PREDICTION_R2)),
            "dead_knob": _alert("dead_knob", AlertLevel.WATCH, dead) if dead else None,
            "zero_advantage": self._zero_advantage(
                finite.get(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
            ),
        }
        lasting = {kind: self._lasting(kind, alert) for kind, alert in found.items()}
        counts = finite.get(metrics.TOKEN_NOT_FINITE, 0.0), finite.get(metrics.TOKEN_COUNT, 0.0)
        alerts = [
            alert
            for kind, alert in {
                **lasting,
                "not_finite": _not_finite(*counts),
                "gradient": gradient,
            }.items()
            if self._raised.setdefault(kind, _Raised()).raises(alert) and alert is not None
        ]
        return (*self._about_the_course(step, finite, active), *alerts)

    @property
    def share_lost(self) -> float | None:
        """Lost share of the early entropy at the newest step that measured one; None before the
        early level is known."""
        return self.course.share_lost

    def _about_the_course(
        self, step: int, scalars: Mapping[str, float], active: ControlSnapshot | None
    ) -> list[Alert]:
        """Collapse and explosion."""
        entropy, target = scalars.get(metrics.ENTROPY_MEAN), scalars.get(metrics.HOLD_TARGET)
        if entropy is None or (self.course.steps and step <= self.course.step):
            return []
        gain, version = scalars.get(metrics.ENTROPY_GAIN), 0 if active is None else active.version
        raised = self.course.add(
            step,
            entropy,
            observed=metrics.measured_change(scalars),
            target=target,
            is_new_control=version != self._version,
            by_control=None
            if gain is None
            else gain * scalars.get(metrics.CHANGE_BY_INTERVENTION, 0.0),
            explained=scalars.get(metrics.ENTROPY_PREDICTION_R2),
        )
        self._version = version
        interventions = [parts.get(metrics.CHANGE_BY_INTERVENTION, 0.0) for _, parts in self._parts]
        last = LastSteps(
            sums=list(self._what_if),
            intervention=fmean(interventions) if interventions else 0.0,
            active=None if active is None or active.control.hold is not None else active.control,
            gain=gain,
            of_unseen=metrics.ENTROPY_UNSEEN_CHANGE in scalars,
        )
        alerts = []
        for kind, urgency in raised.items():
            found = stopping_control(self.course, last, DIRECTIONS[kind])
            message, evidence = self._course_in_words(target)
            control = (
                None if found is None else replace(found.control, reason=f"Suggested: {message}")
            )
            alerts.append(
                Alert(
                    kind=kind,
                    level=_LEVELS[urgency],
                    message=message,
                    evidence=evidence,
                    cause=_cause(dict(self._parts), DIRECTIONS[kind]),
                    suggestion=control,
                )
            )
        return alerts

    def _course_in_words(self, target: float | None) -> tuple[str, dict[str, float]]:
        course, early = self.course, self.course.early.level
        assert early is not None, "nothing is raised before the early level is known"
        now = course.entropy
        base, named = (
            (early, "its early level") if target is None else (target, "the level to hold")
        )
        message = (
            f"The entropy is {percent(abs(1 - now / base))} {'below' if now < base else 'above'} {named}: "
            f"{now:.3g} instead of {base:.3g} nats."
        )
        evidence = {"entropy": now, "share_lost": 1 - now / early, "early_entropy": early}
        evidence |= {} if target is None else {"target_entropy": target}
        # What a hold will do is not in the course yet; the diagnosis says where it goes.
        forecast = course.forecast() if target is None else None
        if forecast is not None:
            low, middle, high = forecast.low[-1], forecast.entropy[-1], forecast.high[-1]
            message += f" In {AHEAD} steps {middle:.3g} nats ({low:.3g} to {high:.3g})."
            evidence |= {"forecast": middle, "forecast_low": low, "forecast_high": high}
        return message, evidence

    def _lasting(self, kind: str, finding: Alert | None) -> Alert | None:
        """The finding, once its condition has held for PERSISTENCE steps in a row."""
        self._held[kind] = 0 if finding is None else self._held.get(kind, 0) + 1
        return finding if self._held[kind] >= PERSISTENCE else None

    def _self_check(self, scalars: Mapping[str, float], cause: str) -> Alert | None:
        """The mean of r S_c is 0 where tokens were drawn as given, until they have been trained on.
        `cause`: why it may not be."""
        z = scalars.get(metrics.SCORE_SELF_CHECK_Z)
        if z is None:
            return None
        if not has_learnt(scalars):
            self._checks.append(z)
        if len(self._checks) < WINDOW:
            return None
        mean, spread = fmean(self._checks), stdev(self._checks)
        # Tokens of a sequence resemble each other, so z may scatter more than its own standard
        # error.
        in_errors = mean * math.sqrt(WINDOW) / max(1.0, spread)
        if abs(in_errors) < SIGMAS:
            return None
        message = (
            f"Over {WINDOW} steps the mean of r S_c is {abs(in_errors):.1f} standard errors from 0: the tokens were not "
            "drawn from the distribution that is scored. "
            + (
                f"Likely {cause}"
                if cause
                else f"Compare temperature, mask and top-k or top-p of the sampler: {TOP_K}"
            )
        )
        return _alert(SELF_CHECK, AlertLevel.ACT, message, standard_errors=in_errors, mean_z=mean)

    def _prediction(self, r2: float | None) -> Alert | None:
        if r2 is None:
            return None
        if r2 > 0:
            self._trusted += 1
            return None
        if self._trusted < WINDOW:
            return None
        message = (
            f"The calibrated prediction was of use for {self._trusted} steps and is now worse than the past's mean "
            f"change: R² {r2:.2f}."
        )
        return _alert(
            "prediction", AlertLevel.WATCH, message, r2=r2, trusted_steps=float(self._trusted)
        )

    def _zero_advantage(self, zero_share: float | None) -> Alert | None:
        if zero_share is None:
            return None
        self._signal.add(1 - zero_share)
        early = self._signal.level
        self._signals.append(1 - zero_share)
        if early is None or len(self._signals) < WINDOW or fmean(self._signals) >= early / 2:
            return None
        now = fmean(self._signals)
        message = (
            f"Only {percent(now)} of the groups have an advantage that is not 0, in the first steps it was {percent(early)}: "
            "most rollouts teach nothing."
        )
        return _alert("zero_advantage", AlertLevel.WATCH, message, share=now, early_share=early)


def _cause(steps: Mapping[int, Mapping[str, float]], direction: int) -> AlertCause | None:
    found = cause_of(steps, direction)
    return None if found is None else part_of(AlertCause, found, changes=mean_parts(steps))


def _alert(kind: str, level: AlertLevel, message: str, **evidence: float) -> Alert:
    return Alert(kind=kind, level=level, message=message, evidence=evidence)


def _not_finite(not_finite: float, measured: float) -> Alert | None:
    if not not_finite:
        return None
    message = (
        f"{not_finite:.0f} of {not_finite + measured:.0f} tokens that the mask counts hold NaN or an infinity in their "
        "advantage, score or ratio. No number here counts them; the loss may still contain them."
    )
    # One NaN in a loss is in the weights from then on: there is nothing to wait for.
    return _alert(
        "not_finite", AlertLevel.ACT, message, not_finite=not_finite, tokens=not_finite + measured
    )


@dataclass(frozen=True, slots=True)
class GradientFault:
    """The first micro-batch of a step with a gradient that is NaN or infinite, on the first rank
    that has one."""

    inside: int
    """Its tokens that the mask counts, and whose gradient is NaN or infinite."""
    outside: int
    """The same of those that the mask leaves out."""
    tokens: int
    """All of its tokens, padding included."""
    micro_batch: int
    """Its number among the `gate` calls of the step, from 1; 0: every gradient is finite."""
    micro_batches: int
    loss_known: bool
    loss: float
    """Of its backward; 0 where it is not known."""
    rank: int

    @classmethod
    def read(cls, numbers: Sequence[float], rank: int) -> GradientFault:
        """From the numbers of `step.GRADIENT_FAULT`."""
        inside, outside, size, place, calls = map(int, numbers[:5])
        return cls(inside, outside, size, place, calls, bool(numbers[5]), numbers[6], rank)

    def merge(self, other: GradientFault) -> GradientFault:
        """The first of two ranks' that has one."""
        return self if self.micro_batch else other


def gradient_alert(fault: GradientFault, tokens: float) -> Alert | None:
    """The alert of a step with such a gradient, on so many tokens in all; None without one."""
    if not fault.micro_batch:
        return None
    loss_is_finite = fault.loss_known and math.isfinite(fault.loss)
    message = (
        f"The loss gives {tokens:.0f} tokens a gradient that is NaN or infinite: nothing is "
        f"predicted for this step, and the update spoils the weights unless it is skipped. "
        f"First in micro-batch {fault.micro_batch} of {fault.micro_batches} "
        f"of rank {fault.rank}: {_place_in_words(fault)}; "
        f"{_loss_in_words(fault)} {_advice(fault, loss_is_finite)}"
    )
    evidence = {
        "tokens": float(tokens),
        "micro_batch": float(fault.micro_batch),
        "micro_batches": float(fault.micro_batches),
        "rank": float(fault.rank),
        "inside_mask": float(fault.inside),
        "outside_mask": float(fault.outside),
    }
    if fault.loss_known:
        evidence["loss_finite"] = float(loss_is_finite)
    return Alert(kind="gradient", level=AlertLevel.ACT, message=message, evidence=evidence)


def _place_in_words(fault: GradientFault) -> str:
    if not fault.outside:
        return f"{fault.inside} tokens inside the mask"
    if not fault.inside:
        return f"{fault.outside} tokens outside the mask"
    return f"{fault.inside} tokens inside and {fault.outside} outside the mask"


def _loss_in_words(fault: GradientFault) -> str:
    if not fault.loss_known:
        return "whether the loss is finite is not known."
    if math.isfinite(fault.loss):
        return "the loss itself is finite."
    return "the loss itself is NaN or infinite."


def _advice(fault: GradientFault, loss_is_finite: bool) -> str:
    if not fault.inside and fault.outside < fault.tokens:
        return (
            "Mask the log-ratios before they are exponentiated: NaN or infinity times 0 is NaN "
            "in backward, also where the loss leaves the value out."
        )
    if fault.inside + fault.outside == fault.tokens and not loss_is_finite:
        return "Look for 0 / 0: a mean over a micro-batch without a token that counts, say."
    return "Look at the advantages, the log-probs passed and the ratios of these tokens."
