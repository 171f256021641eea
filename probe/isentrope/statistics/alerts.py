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
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.checks import CHECKS, cure_of
from isentrope_wire.diagnosis.course import ACT_LEFT, AHEAD, DIRECTIONS, WATCH_LEFT, Course
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, LastSteps, stopping_control
from isentrope_wire.diagnosis.guard import ControlGuard, is_learning
from isentrope_wire.diagnosis.health import counts_since
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, cause_of, change_parts, mean_parts
from isentrope_wire.diagnosis.rules.finding import Finding
from isentrope_wire.diagnosis.story import Excused, cause_among, follows, is_no_collapse
from isentrope_wire.hold_action import HoldStatus
from isentrope_wire.numbers import is_usable, part_of, percent
from isentrope_wire.reports import (
    HOLD_STATE,
    HOLD_WHY,
    LIKELY_CAUSE,
    Alert,
    AlertCause,
    AlertLevel,
    ControlSnapshot,
)
from isentrope_wire.what_if import WhatIfSums

WINDOW = 20
"""Steps that a mean is taken of."""

PERSISTENCE = 5
"""Steps in a row that a condition must hold, where it is not about the share that is lost or tokens
that are not finite."""

HOLD_BEGINS = 10
"""Steps after which a hold that does not act yet is told of: it needs about eight. Where no change
was observed in the run's first LEAST_STEPS it can never act, and that is said at once."""
LEAST_STEPS = 3

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
_WATCHED = -math.log(WATCH_LEFT)
_URGENCIES = {level: urgency for urgency, level in _LEVELS.items()}


@dataclass(slots=True)
class _Raised:
    """Raises the alert of one kind once, and when it becomes more urgent, until its condition has
    been over for a while."""

    urgency: int = 0
    """0: it is not raised, 1: watch, 2: act."""
    clear: int = 0
    since: int = 0
    """Step at which it was raised first."""

    def raises(self, step: int, finding: Alert | None) -> bool:
        if finding is None:
            self.clear = self.clear + 1
        else:
            self.clear = 0
        if self.clear >= REARM:
            self.urgency = 0
        urgency = 0
        if finding is not None:
            urgency = _URGENCIES[finding.level]
        is_news = urgency > self.urgency
        if is_news and not self.urgency:
            self.since = step
        self.urgency = max(self.urgency, urgency)
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
    _has_observed: bool = False
    """Whether a step measured what its update changed."""
    measures: Measures = field(default_factory=Measures)
    """The course of all that the checks read."""
    _excused: Excused = field(default_factory=Excused)
    _parts: deque[tuple[int, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=CAUSE_STEPS)
    )
    _what_if: deque[WhatIfSums] = field(default_factory=lambda: deque(maxlen=EFFECT_STEPS))
    _gains: deque[float] = field(default_factory=lambda: deque(maxlen=EFFECT_STEPS))
    """The gain of each of these steps; NaN: not known yet."""
    _guard: ControlGuard = field(default_factory=ControlGuard)
    _checks: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _trusted: int = 0
    _held: dict[str, int] = field(default_factory=dict)
    """Steps in a row that a condition has held, by its kind."""
    _raised: dict[str, _Raised] = field(default_factory=dict)
    _began: dict[str, int] = field(default_factory=dict)
    """Kind -> step at which what a check finds now began."""
    _taught_nothing: int | None = None
    """The newest step whose alert says that most groups teach nothing."""
    following: dict[str, str] = field(default_factory=dict)
    """Kinds that were found and did not ring, each with the cause that it follows from."""
    following_now: dict[str, str] = field(default_factory=dict)
    """Those found at the newest step."""

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
        finite = {name: value for name, value in scalars.items() if is_usable(value)}
        self.measures.add(scalars)
        self._parts.append((step, change_parts(finite)))
        if what_if is not None and what_if.tokens and what_if.is_usable:
            self._what_if.append(what_if)
            self._gains.append(finite.get(metrics.ENTROPY_GAIN, math.nan))
        dead = labels.get("control/dead")
        found = {
            SELF_CHECK: self._self_check(finite, labels.get(LIKELY_CAUSE, "")),
            "prediction": self._prediction(finite.get(metrics.ENTROPY_PREDICTION_R2)),
            "dead_knob": _alert("dead_knob", AlertLevel.WATCH, dead) if dead else None,
        }
        lasting = {kind: self._lasting(kind, alert) for kind, alert in found.items()}
        counts = finite.get(metrics.TOKEN_NOT_FINITE, 0.0), finite.get(metrics.TOKEN_COUNT, 0.0)
        lasting |= self._about_a_hold(labels, finite)
        lasting |= self._checked(step)
        lasting["not_finite"] = _not_finite(*counts) or lasting["not_finite"]
        if gradient is not None:
            lasting["gradient"] = gradient
        alerts = [
            alert
            for kind, alert in lasting.items()
            if self._raised.setdefault(kind, _Raised()).raises(step, alert) and alert is not None
        ]
        if any(alert.kind == "zero_advantage" for alert in alerts):
            self._taught_nothing = step
        about_the_course = self._about_the_course(step, finite, active)
        overshoot = self._overshoot(finite.get(metrics.REWARD_MEAN), active)
        if self._raised.setdefault("overshoot", _Raised()).raises(step, overshoot):
            assert overshoot is not None, "only a finding is raised"
            alerts.insert(0, overshoot)
        return (*about_the_course, *alerts)

    def _about_a_hold(
        self, labels: Mapping[str, str], scalars: Mapping[str, float]
    ) -> dict[str, Alert | None]:
        """A hold that has ended, and one that waits for longer than its first steps take, or for
        ever, with the reason."""
        self._has_observed |= metrics.measured_change(scalars) is not None
        can_act = self._has_observed or self.course.steps < LEAST_STEPS - 1
        state, why = labels.get(HOLD_STATE), labels.get(HOLD_WHY, "")
        ended = waits = None
        if state == HoldStatus.ENDED:
            ended = _alert("hold_ended", AlertLevel.WATCH, why)
        if state == HoldStatus.FALLBACK:
            waits = _alert("hold_waits", AlertLevel.WATCH, f"The hold waits: {why}")
        waits = self._lasting("hold_waits", waits, HOLD_BEGINS if can_act else 1)
        return {"hold_ended": ended, "hold_waits": waits}

    def _overshoot(self, reward: float | None, active: ControlSnapshot | None) -> Alert | None:
        """Whether the active control does harm; the cure is the control before it."""
        if not self.course.steps:
            return None
        if active is None:
            version, control = (0, None)
        else:
            version, control = (active.version, active.control)
        finding = self._guard.step(version, control, reward, self.course)
        if finding is None:
            return None
        evidence = {
            "version": float(finding.version),
            "steps": float(finding.steps),
            "entropy_change": finding.entropy_change,
            "reward_lost": finding.reward_lost,
        }
        return Alert(
            kind="overshoot",
            level=AlertLevel.ACT,
            message=finding.message,
            evidence=evidence,
            suggestion=replace(finding.before, reason=f"Reverts version {finding.version}"),
        )

    def _checked(self, step: int) -> dict[str, Alert | None]:
        """What the checks found, without what follows from a cause that was named and holds."""
        checked: dict[str, Alert | None] = {}
        self.following_now = {}
        named = self.named
        for check in CHECKS:
            finding = check.find(self.measures)
            if finding is None:
                self._began.pop(check.kind, None)
                alert = None
            else:
                alert = alert_of(check.kind, finding, self._began.setdefault(check.kind, step))
            # A jump, or an infinite reward, is of one step: there is nothing to wait for.
            if check.kind not in {"gradient", "not_finite"}:
                alert = self._lasting(check.kind, alert)
            if alert is not None and check.kind not in named:
                cause = cause_among(check.kind, named)
                if cause is None:
                    named.append(check.kind)
                else:
                    self._follow(check.kind, cause)
                    alert = None
            checked[check.kind] = alert
        return checked

    def _follow(self, kind: str, cause: str | None) -> None:
        if cause is not None:
            self.following.setdefault(kind, cause)
            self.following_now[kind] = cause

    @property
    def named(self) -> list[str]:
        """The kinds that were raised and hold now, the first in time first."""
        holding = {
            kind: raised.since
            for kind, raised in self._raised.items()
            if raised.urgency and raised.clear < PERSISTENCE and self._may_explain(kind)
        }
        return sorted(holding, key=lambda kind: holding[kind])

    @property
    def holding(self) -> frozenset[str] | None:
        """The kinds that were raised and have not been over for a while; None before the first."""
        if not any(raised.since for raised in self._raised.values()):
            return None
        return frozenset(
            kind
            for kind, raised in self._raised.items()
            if raised.urgency and (kind not in DIRECTIONS or self._gone(kind) >= _WATCHED)
        )

    def _gone(self, kind: str) -> float:
        """How far log H is from its early level, in the direction of a collapse or an explosion; 0
        while that is not known."""
        early = self.course.early.level
        if not early or early <= 0:
            return 0.0
        return DIRECTIONS[kind] * (self.course.level - math.log(early))

    def _may_explain(self, kind: str) -> bool:
        """Of a collapse or an explosion: whether the entropy is far from its early level, and went
        further in one of the last ten steps, or stays where most of it is gone; true of the
        others. One that a control stopped explains nothing that comes later."""
        if kind not in DIRECTIONS:
            return True
        way, course = DIRECTIONS[kind], self.course
        if way * course.directions[-1] < 0 or self._gone(kind) < _WATCHED:
            return False
        return way in course.directions or self._gone(kind) >= -math.log(ACT_LEFT)

    @property
    def urgency_held_back(self) -> int | None:
        """The urgency of the course as it was said, where the course's own is higher."""
        raised = [self._raised[kind].urgency for kind in DIRECTIONS if kind in self._raised]
        said = max(raised, default=0)
        if said < self.course.urgency:
            return said
        return None

    @property
    def share_lost(self) -> float | None:
        """Lost share of the early entropy at the newest step that measured one; None before the
        early level is known."""
        return self.course.share_lost

    def _about_the_course(
        self, step: int, scalars: Mapping[str, float], active: ControlSnapshot | None
    ) -> list[Alert]:
        """Collapse and explosion."""
        entropy = self.measures.newest(metrics.ENTROPY_MEAN)
        target = scalars.get(metrics.HOLD_TARGET)
        if target is not None and target <= 0:
            target = None
        if entropy is None or (self.course.steps and step <= self.course.step):
            return []
        self.course.largest = metrics.largest_entropy(scalars) or self.course.largest
        gain, version = scalars.get(metrics.ENTROPY_GAIN), 0 if active is None else active.version
        raised = self.course.add(
            step,
            entropy,
            observed=metrics.measured_change(scalars),
            target=target,
            is_new_control=version != self._version,
            by_control=(
                None if gain is None else gain * scalars.get(metrics.CHANGE_BY_INTERVENTION, 0.0)
            ),
            explained=scalars.get(metrics.ENTROPY_PREDICTION_R2),
        )
        self._version = version
        interventions = [parts.get(metrics.CHANGE_BY_INTERVENTION, 0.0) for _, parts in self._parts]
        last = LastSteps(
            sums=list(self._what_if),
            intervention=fmean(interventions) if interventions else 0.0,
            active=None if active is None or active.control.hold is not None else active.control,
            gain=gain,
            gains=self._gains_beside(gain),
            gain_error=scalars.get(metrics.ENTROPY_GAIN_ERROR),
            of_unseen=metrics.ENTROPY_UNSEEN_CHANGE in scalars,
        )
        raised = self._excuse(step, raised, is_held=target is not None)
        alerts = []
        for kind, urgency in raised.items():
            message, evidence = self._course_in_words(target)
            alerts.append(
                Alert(
                    kind=kind,
                    level=_LEVELS[urgency],
                    message=message,
                    evidence=evidence,
                    cause=_cause(dict(self._parts), DIRECTIONS[kind]),
                    suggestion=self._suggest(step, last, DIRECTIONS[kind], message),
                )
            )
        return alerts

    def _suggest(self, step: int, last: LastSteps, direction: int, message: str) -> Control | None:
        """The threshold that would end a change, as in the health line: none while the run learns,
        or most groups teach nothing."""
        learns = is_learning(self.course.share_lost or 0.0, self._guard.newest_rewards)
        if learns or self._groups_teach_nothing(step):
            return None
        found = stopping_control(self.course, last, direction, f"Suggested: {message}")
        if found is None:
            return None
        return found.control

    def _groups_teach_nothing(self, step: int) -> bool:
        """Whether that was said and still counts, as in the health line: no control of the entropy
        changes it."""
        if self._taught_nothing is None:
            return False
        return self._taught_nothing >= counts_since(step, self.course.age)

    def _excuse(self, step: int, raised: dict[str, int], *, is_held: bool) -> dict[str, int]:
        """What is to be said of the course: what learning costs, and a slow change that follows
        from a cause that was named, is kept back."""
        excused = set[str]()
        waiting = {**self._excused.waiting, **raised}
        if waiting and not is_held:
            excused = {
                kind
                for kind, urgency in waiting.items()
                if follows(kind, urgency, self.named, self.course)
            }
            for kind in sorted(excused):
                self._follow(kind, cause_among(kind, self.named))
            if "collapse" in waiting and is_no_collapse(self.measures, self.course):
                excused.add("collapse")
        said = self._excused.step(raised, urgency=self.course.urgency, excused=excused)
        for kind in said.keys() - raised.keys():
            # What turned back meanwhile is no news of something that goes on.
            way = self.course.directions[-1]
            if said[kind] == 2 and (self.course.urgency < 2 or way != DIRECTIONS[kind]):
                self._excused.waiting[kind] = 2
                said[kind] = 1
        said = {kind: urgency for kind, urgency in said.items() if self._is_news(kind, urgency)}
        for kind in DIRECTIONS:
            memory = self._raised.setdefault(kind, _Raised())
            if kind in said and not memory.urgency:
                memory.since = step
            if not self.course.urgency:
                memory.urgency = 0
            memory.urgency = max(memory.urgency, said.get(kind, 0))
        return said

    def _is_news(self, kind: str, urgency: int) -> bool:
        """Of what the course raised: an act is raised again at each further halving."""
        return urgency == 2 or kind not in self._raised or urgency > self._raised[kind].urgency

    def _gains_beside(self, newest: float | None) -> list[float]:
        """Of the steps with what-if sums; the newest stands for those that it was not known in."""
        if newest is None:
            return []
        gains = list(self._gains)
        for index, gain in enumerate(gains):
            if math.isnan(gain):
                gains[index] = newest
        return gains

    def _course_in_words(self, target: float | None) -> tuple[str, dict[str, float]]:
        course, early = self.course, self.course.early.level
        assert early is not None, "nothing is raised before the early level is known"
        now = course.entropy
        if target is None:
            base, named = (early, "its early level")
        else:
            base, named = (target, "the level to hold")
        message = (
            f"The entropy is {percent(abs(1 - now / base))} {'below' if now < base else 'above'}"
            f" {named}: {now:.3g} instead of {base:.3g} nats."
        )
        evidence = {"entropy": now, "share_lost": 1 - now / early, "early_entropy": early}
        if target is not None:
            evidence |= {"target_entropy": target}
        # What a hold will do is not in the course yet; the diagnosis says where it goes.
        forecast = None
        if target is None:
            forecast = course.forecast()
        if forecast is not None:
            low, middle, high = forecast.low[-1], forecast.entropy[-1], forecast.high[-1]
            message += f" In {AHEAD} steps it comes to {middle:.3g} nats ({low:.3g} to {high:.3g})."
            evidence |= {"forecast": middle, "forecast_low": low, "forecast_high": high}
        return message, evidence

    def _lasting(self, kind: str, finding: Alert | None, steps: int = PERSISTENCE) -> Alert | None:
        """The finding, once its condition has held for so many steps in a row."""
        if finding is None:
            self._held[kind] = 0
        else:
            self._held[kind] = self._held.get(kind, 0) + 1
        if self._held[kind] >= steps:
            return finding
        return None

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
            f"Over {WINDOW} steps the mean of r S_c is {abs(in_errors):.1f} standard errors from 0:"
            " the tokens were not drawn from the distribution that is scored. "
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
            f"The calibrated prediction was of use for {self._trusted} steps and is now worse than"
            f" the past's mean change: R² {r2:.2f}."
        )
        return _alert(
            "prediction", AlertLevel.WATCH, message, r2=r2, trusted_steps=float(self._trusted)
        )


def alert_of(kind: str, finding: Finding, since: int) -> Alert:
    """The alert of what a check found since a step: with what to do, and how sure it is."""
    words = {}
    if finding.cause:
        words["cause"] = finding.cause
    return Alert(
        kind=kind,
        level=finding.level,
        message=f"{finding.message} {cure_of(kind, finding.cause)}",
        evidence={**finding.evidence, "certainty": finding.certainty, "since": float(since)},
        words=words,
    )


def _cause(steps: Mapping[int, Mapping[str, float]], direction: int) -> AlertCause | None:
    found = cause_of(steps, direction)
    if found is None:
        return None
    return part_of(AlertCause, found, changes=mean_parts(steps))


def _alert(kind: str, level: AlertLevel, message: str, **evidence: float) -> Alert:
    return Alert(kind=kind, level=level, message=message, evidence=evidence)


def _not_finite(not_finite: float, measured: float) -> Alert | None:
    if not not_finite:
        return None
    message = (
        f"{not_finite:.0f} of {not_finite + measured:.0f} tokens that the mask counts hold NaN or"
        " an infinity in their advantage, score or ratio. No number here counts them; the loss may"
        " still contain them."
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
    """Its tokens outside of the mask whose gradient is NaN or infinite."""
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
        if self.micro_batch:
            return self
        return other


def gradient_alert(fault: GradientFault, tokens: float) -> Alert | None:
    """The alert of a step with such a gradient, on so many tokens in all; None without one."""
    if not fault.micro_batch:
        return None
    loss_is_finite = fault.loss_known and math.isfinite(fault.loss)
    message = (
        f"The loss gives {tokens:.0f} tokens a gradient that is NaN or infinite: nothing is "
        "predicted for this step, and the update spoils the weights unless it is skipped. "
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
    words = {"cause": "not_finite"}
    return Alert(
        kind="gradient", level=AlertLevel.ACT, message=message, evidence=evidence, words=words
    )


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
