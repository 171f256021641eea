"""From a closed step to its report: numbers and calibration, off the training thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsFloat

from torch import Tensor

from isentrope.client.inline import RunHistory
from isentrope.config import Coupling
from isentrope.global_step import GlobalStep, read_ranks
from isentrope.guard import SafeLog
from isentrope.methods.what_if import WHAT_IF
from isentrope.statistics import step as of_step
from isentrope.statistics.alerts import AlertWatch, gradient_alert, has_learnt
from isentrope.statistics.calibration import Calibration, Momentum
from isentrope.statistics.contributions import CONTRIBUTIONS
from isentrope.statistics.covariance import GROUPS
from isentrope.statistics.mismatch import RATIO, TOKEN_HASH, Epochs, likely_cause
from isentrope.statistics.samples import SAMPLES, part_means
from isentrope.statistics.sums import NOT_FINITE_GRADIENTS, StepSums
from isentrope.statistics.texts import TokenTexts, add_texts, rollouts_of
from isentrope.statistics.tokens import THRESHOLD_SOURCES
from isentrope.steps.acknowledgement import Acknowledgement, Passage, name_control
from isentrope.steps.machine import Machine, current_device
from isentrope_wire import metrics, reports
from isentrope_wire.control import Control, Method
from isentrope_wire.diagnosis.effect import dead_knobs
from isentrope_wire.hold_action import Action, hold_labels, hold_scalars
from isentrope_wire.methods import StepEvidence
from isentrope_wire.numbers import document_of, read_exactly
from isentrope_wire.what_if import WhatIfCurve, WhatIfSums

INFLUENCE_TOLERANCE = 0.1
"""Of `entropy/influence_check`, beyond which no influence is reported."""


logger = SafeLog(__name__)

NumbersOfRanks = Callable[[], Sequence[Sequence[float]]]
"""Waits for one vector of numbers per rank, as `global_step.rank_vector` makes it. For the writer
thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedStep:
    """What the training thread knows of a step when it is closed; its report is built from it
    later, on another thread."""

    step: int
    measured: NumbersOfRanks | None = None
    """On rank 0 the numbers of all ranks; None on the others, and where nothing was measured."""
    logged: Mapping[str, float | Tensor] = field(default_factory=dict)
    active: reports.ControlSnapshot
    """The control that was active, as it was pushed."""
    control: Control
    """The control that the step ran under: a hold moves its thresholds."""
    action: Action | None = None
    """What was decided to hold the entropy; None: it is not held."""
    outcomes: Sequence[reports.ControlOutcome] = ()
    gated: bool = True
    """Whether this rank called `gate` in the step."""
    ranks_gate: bool | None = None
    """Whether tokens of any of several ranks have passed it, as rank 0 knew when the step began;
    None: not known."""
    momentum: Momentum | None = None
    """None without an optimiser."""
    learning_rate: SupportsFloat | None = None
    clip_factor: SupportsFloat | None = None
    """What clipping multiplied the step's gradient by; None: not known, taken as 1."""
    coupling: Coupling | None = None
    has_unseen: bool = False
    """Whether the loop measures tokens that no update is fitted to, also where this step has no
    change of them."""
    what_if_source: str = ""
    """Which of THRESHOLD_SOURCES the what-if sums were counted from."""
    reward_parts: Sequence[str] = ()
    failed: str = ""
    """What failed inside the probe on this rank so far, and how often."""
    learn: Callable[[reports.StepReport], None] | None = None


class ReportBuilder:
    """Builds the reports of a run, in order; calibration and alerts learn from each.

    Rank 0 reports what all ranks measured together; the others report what only they know, so that
    no number is reported twice.
    """

    def __init__(
        self,
        texts: TokenTexts | None = None,
        transport_scalars: Callable[[], Mapping[str, float]] = dict,
        page: str = "",
        *,
        leads: bool = True,
    ) -> None:
        """`transport_scalars` gives metrics of the reports' way to the server as a report is built;
        `page` is the run's, empty: not known; `leads`: whether this rank finds the alerts."""
        self._page, self._leads = page, leads
        if texts is None:
            self._texts = TokenTexts(None)
        else:
            self._texts = texts
        self._transport_scalars = transport_scalars
        self.latest: reports.StepReport | None = None
        self.history = RunHistory()
        self._calibration = Calibration()
        self._alerts = AlertWatch()
        self._epochs = Epochs()
        self._machine = Machine()
        self._warned = False
        self._dropped_before = False
        # The writer thread learns; a checkpoint, on the training thread, reads what was learnt.
        self._lock = threading.Lock()
        self._acknowledgement = Acknowledgement()
        self._logged_last: Mapping[str, float | Tensor] = {}
        """What was logged in the step closed last."""
        self._closed = 0
        """Number of the newest report to be built."""
        self._built = 0
        """Number of the newest report that was built, by the writer thread."""

    def state(self, wait_seconds: float) -> dict[str, Any]:
        """What was learnt from the reports so far, as JSON values: for a checkpoint."""
        end = time.monotonic() + wait_seconds
        while self._built < self._closed and time.monotonic() < end:
            time.sleep(0.005)
        if self._built < self._closed:
            logger.warning(
                "The checkpoint does not include the last step: its report was not built within"
                " %g s.",
                wait_seconds,
            )
        with self._lock:
            return {
                "calibration": document_of(self._calibration),
                "alerts": document_of(self._alerts),
                "epochs": document_of(self._epochs),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave; no step may have been closed before."""
        self._calibration = read_exactly(Calibration, state["calibration"])
        self._alerts = read_exactly(AlertWatch, state["alerts"])
        self._epochs = read_exactly(Epochs, state["epochs"])

    @property
    def has_gated(self) -> bool | None:
        """See `Acknowledgement.has_gated`; by the reports that were built."""
        return self._acknowledgement.has_gated

    def not_sent(self) -> None:
        """Note that the report of the last step will not be built: it found no room."""
        self._closed -= 1

    def report_of(self, closed: ClosedStep) -> Callable[[], reports.StepReport]:
        """A function that builds the report of a step; called once, later, in the order of the
        steps."""
        recorded_at, at, device = time.time(), time.monotonic(), current_device()
        self._closed += 1
        self._logged_last = closed.logged
        number = self._closed

        def build() -> reports.StepReport:
            try:
                return self._build(closed, recorded_at, at, device)
            finally:
                self._built = number

        return build

    def rest_of(
        self, step: int, logged: Mapping[str, float | Tensor], *, replaces: bool
    ) -> Callable[[], reports.StepReport] | None:
        """A function that builds one more report of the last step, of what was logged since; None
        where nothing was. Unless it `replaces` them, without the names that the step itself
        logged."""
        kept = {
            name: value
            for name, value in logged.items()
            if replaces or name not in self._logged_last
        }
        recorded_at = time.time()

        def build() -> reports.StepReport:
            scalars, dropped = self._apply_limits(kept)
            return reports.StepReport(
                step=step,
                recorded_at=recorded_at,
                scalars={name: float(value) for name, value in scalars.items()},
                control_version=self._acknowledgement.shown_version,
                labels=_dropped_label(dropped),
            )

        if kept:
            return build
        return None

    def _build(
        self, closed: ClosedStep, recorded_at: float, at: float, device: int | None
    ) -> reports.StepReport:
        logged, dropped = self._apply_limits(closed.logged)
        together = self._together(closed.measured)
        sums = None if together is None else together.sums
        tokens = 0 if sums is None else sums.tokens
        outcomes = self._acknowledgement.take(closed.outcomes, _passage(closed, together))
        machine = self._machine.scalars(closed.step, at, tokens, device)
        if not logged.keys().isdisjoint(metrics.TIME_STEP_SECONDS.names):
            machine.pop(metrics.TIME_STEP_SECONDS, None)
        report = reports.StepReport(
            step=closed.step,
            recorded_at=recorded_at,
            scalars=machine
            | hold_scalars(closed.action, closed.active.control)
            | {name: float(value) for name, value in logged.items()}
            | dict(self._transport_scalars())
            | ({} if together is None else _health(together)),
            control_version=self._acknowledgement.shown_version,
            outcomes=outcomes,
            labels={
                "control/method": str(closed.control.method),
                "control/scope": str(closed.control.scope),
                "calibration/momentum": (
                    "unknown" if closed.momentum is None else f"{closed.momentum.beta:g}"
                ),
            }
            | ({"probe/failed": closed.failed} if closed.failed else {})
            | _dropped_label(dropped)
            | hold_labels(closed.action),
        )
        if sums is not None:
            report = self._add_sums(report, sums, closed)
        if self._leads:
            gradient = None
            if sums is not None:
                gradient = gradient_alert(sums[of_step.GRADIENT_FAULT], sums[NOT_FINITE_GRADIENTS])
            report = self._add_alerts(report, closed, gradient)
            self._acknowledgement.log(report.step, outcomes, closed.active)
        self.latest = report
        self.history.add(report)
        if closed.learn is not None:
            closed.learn(report)
        return report

    def _apply_limits(
        self, logged: Mapping[str, float | Tensor]
    ) -> tuple[Mapping[str, float | Tensor], Collection[str]]:
        """What was logged, without what a server would refuse the whole report for; and the names
        left out. Names of the probe's own count beside the loop's."""
        own = [name for name in logged if name not in metrics.METRICS]
        if len(own) <= reports.LOGGED_SCALARS and all(map(_is_short, own)):
            return logged, ()
        kept = set([*filter(_is_short, own)][: reports.LOGGED_SCALARS])
        dropped = [name for name in own if name not in kept]
        if not self._dropped_before:
            self._dropped_before = True
            logger.warning(
                "%d logged scalars are not reported; a name has at most %d characters, a step %d of"
                " them: %s",
                len(dropped),
                reports.NAME_CHARACTERS,
                reports.LOGGED_SCALARS,
                reports.first_of(dropped),
            )
        rest = logged.keys() - set(dropped)
        return {name: value for name, value in logged.items() if name in rest}, dropped

    def _add_sums(
        self, report: reports.StepReport, sums: StepSums, closed: ClosedStep
    ) -> reports.StepReport:
        """The report with what was measured of the step; what the loop logged under the same name
        stays."""
        measured = self._scalars(sums, closed)
        if sums.tokens:
            measured |= part_means(sums[SAMPLES], closed.reward_parts)
        labels = {**report.labels, **_sources(sums)}
        if sums.tokens and sums.basis is not None:
            contributions = sums[CONTRIBUTIONS]
            adds_up = metrics.INFLUENCES.values() & measured.keys()
            influence = None
            if adds_up:
                influence = _clip_factor(closed) * sums.change(1.0)
            texts = self._texts.make(
                lambda: (
                    add_texts(contributions.tokens, sums.scale, self._texts),
                    rollouts_of(
                        contributions.rows, sums.scale, self._texts, closed.reward_parts, influence
                    ),
                )
            )
            if texts is None:
                texts = add_texts(contributions.tokens, sums.scale, TokenTexts(None)), ()
                labels[reports.DROPPED_PARTS] = "texts"
            report = replace(
                report, what_if=sums[WHAT_IF].scaled(sums.scale), tokens=texts[0], rollouts=texts[1]
            )
            cause = likely_cause(sums, learnt=has_learnt(measured))
            basis = reports.ENTROPY_GRADIENT
            if sums[of_step.COUPLED_PREDICTION] is None:
                basis = sums.basis
            labels |= {reports.PREDICTION_BASIS: basis, "what_if/source": closed.what_if_source}
            if cause:
                labels |= {reports.LIKELY_CAUSE: cause}
        if sums.tokens:
            dead = dead_knobs(closed.control, _evidence(sums, closed.control, report.what_if))
            if dead:
                labels |= {"control/dead": " ".join(dead)}
        return replace(
            report,
            scalars=measured | dict(report.scalars),
            labels=labels,
            histograms=of_step.report_histograms(sums),
        )

    def _add_alerts(
        self, report: reports.StepReport, closed: ClosedStep, gradient: reports.Alert | None
    ) -> reports.StepReport:
        """The report with what its numbers give reason to say, also where the loop only logs."""
        scalars = dict(report.scalars)
        with self._lock:
            alerts = self._alerts.step(
                report.step, scalars, report.labels, report.what_if, closed.active, gradient
            )
            share_lost, said = self._alerts.share_lost, self._alerts.urgency_held_back
            following, holding = dict(self._alerts.following_now), self._alerts.holding
        if metrics.ENTROPY_MEAN in scalars and share_lost is not None:
            scalars[metrics.ENTROPY_SHARE_LOST] = share_lost
        labels = dict(report.labels)
        if said is not None:
            labels[reports.COURSE_SAID] = str(said)
        if following:
            pairs = [f"{kind}={cause}" for kind, cause in following.items()]
            labels[reports.CHECKS_FOLLOWING] = ",".join(pairs)
        if holding is not None:
            labels[reports.CHECKS_HOLDING] = ",".join(sorted(holding))
        report = replace(report, scalars=scalars, labels=labels, alerts=alerts)
        self._log_alerts(report)
        return report

    def _scalars(self, sums: StepSums, closed: ClosedStep) -> dict[str, float]:
        scalars = of_step.step_metrics(sums, intervening=closed.control.method != Method.NONE)
        epoch = self._epochs.step(sums[TOKEN_HASH])
        if epoch:
            scalars[metrics.TOKEN_EPOCH] = float(epoch)
        coupled = sums[of_step.COUPLED_PREDICTION]
        clip_factor = _clip_factor(closed)
        check = metrics.ENTROPY_INFLUENCE_CHECK
        if check in scalars:
            scalars[check] *= clip_factor
            names = metrics.INFLUENCES.values()
            parts = {str(name): scalars.pop(name) * clip_factor for name in names}
            if abs(scalars[check] - 1) <= INFLUENCE_TOLERANCE:
                scalars |= parts
        unit = of_step.unit_prediction(sums)
        if unit is not None:
            rate = 1.0
            if closed.learning_rate is not None:
                rate = float(closed.learning_rate)
            unseen = sums[of_step.UNSEEN_CHANGE]
            observed = scalars.get(metrics.ENTROPY_OBSERVED_CHANGE)
            if closed.has_unseen:
                observed = scalars.get(metrics.ENTROPY_UNSEEN_CHANGE)
            with self._lock:
                prediction = self._calibration.step(
                    unit,
                    observed,
                    closed.momentum or Momentum(),
                    rate * sums[of_step.ENTROPIES].mean,
                    clip_factor,
                    coupled=coupled,
                    is_part=closed.coupling == "last_block",
                    unseen=unseen,
                )
            scalars |= of_step.calibration_scalars(prediction)
            if coupled is not None and closed.coupling == "model":
                scalars |= of_step.coupled_parts(coupled, prediction)
        return scalars

    def _together(self, measured: NumbersOfRanks | None) -> GlobalStep | None:
        """The step of all ranks; None where nothing was measured, and when a rank is gone, for the
        sums of the others are not those of the step."""
        if measured is None:
            return None
        try:
            together = read_ranks(measured())
        except RuntimeError as error:
            self._warn(
                "A step's numbers did not arrive from all ranks, it is reported without them: %s",
                error,
            )
            return None
        if len(together.steps) > 1:
            self._warn(
                "The ranks closed different steps at once: %s. Call probe.step once per update.",
                together.steps,
            )
        return together

    def _log_alerts(self, report: reports.StepReport) -> None:
        """One line for each: who trains in a terminal sees no page."""
        for alert in report.alerts:
            if alert.suggestion is None:
                cure = ""
            else:
                cure = f" Suggested: {name_control(alert.suggestion)}."
            where = ""
            if self._page:
                where = f" {self._page}"
            level = alert.level.capitalize()
            logger.warning(
                "isentrope: step %d: %s: %s%s%s", report.step, level, alert.message, cure, where
            )

    def _warn(self, message: str, detail: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(message, detail)


def _passage(closed: ClosedStep, together: GlobalStep | None) -> Passage:
    """What is known of the gate: of all ranks, or of this one."""
    is_recorded = metrics.TOKEN_NOT_RECORDED not in closed.logged
    is_of_all = together is not None and not together.failed_ranks and is_recorded
    gated = has_tokens = closed.gated
    if together is not None and is_of_all:
        sums = together.sums
        gated, has_tokens = sums is not None, sums is not None and sums.tokens > 0
    return Passage(
        step=closed.step,
        active_version=closed.active.version,
        gated=gated,
        has_tokens=has_tokens,
        is_of_all=is_of_all,
        acts_elsewhere=closed.measured is None and bool(closed.ranks_gate),
    )


def _is_short(name: str) -> bool:
    return len(name) <= reports.NAME_CHARACTERS


def _clip_factor(closed: ClosedStep) -> float:
    if closed.clip_factor is None:
        return 1.0
    return float(closed.clip_factor)


def _dropped_label(dropped: Collection[str]) -> dict[str, str]:
    """The label that names logged scalars which are left out; none where all are reported."""
    if not dropped:
        return {}
    return {reports.DROPPED_SERIES: f"{len(dropped)}: {reports.first_of(dropped)}"}


def _health(together: GlobalStep) -> dict[str, float]:
    """Counts of what went wrong on any rank; empty where nothing did."""
    counts = {
        metrics.PROBE_FAILURES: together.failures,
        metrics.PROBE_FAILED_RANKS: together.failed_ranks,
        metrics.PROBE_RANKS_OUT_OF_STEP: len(together.steps) if len(together.steps) > 1 else 0,
    }
    return {name: float(count) for name, count in counts.items() if count}


def _sources(sums: StepSums) -> dict[str, str]:
    """Where the step's thresholds came from; several where `gate` calls differed, empty where none
    was counted."""
    names = [
        source
        for source, calls in zip(THRESHOLD_SOURCES, sums[of_step.SOURCES], strict=True)
        if calls
    ]
    if names:
        return {"threshold/source": "+".join(names)}
    return {}


def _evidence(sums: StepSums, control: Control, what_if: WhatIfSums | None) -> StepEvidence:
    counts, ratios, scores = sums[of_step.SIGNS], sums[of_step.RATIOS], sums[of_step.DISCRIMINATOR]
    outside_low = outside_high = 0.0
    if what_if is not None and control.method.thresholds and counts.selected:
        # Counted as the gate counted them.
        curve = WhatIfCurve(what_if, control.scope, control.method)
        outside_low = curve.evaluate(control.mu_low, None).clip_fraction * what_if.tokens
        outside_high = curve.evaluate(None, control.mu_high).clip_fraction * what_if.tokens
    return StepEvidence(
        tokens=sums.tokens,
        positive=counts.positive,
        negative=counts.negative,
        candidates=counts.selected,
        spared=counts.kept,
        decreasing=counts.decreasing,
        increasing=counts.increasing,
        discriminator_mean=scores.mean,
        discriminator_std=scores.standard_deviation,
        vocab_centered_std=sums[of_step.VOCAB_CENTERED].standard_deviation,
        largest_entropy=sums[of_step.LARGEST_ENTROPY],
        largest_expected_score=sums[of_step.LARGEST_EXPECTED_SCORE],
        groups=len(sums[GROUPS].complete_groups),
        old_entropies_known=bool(sums[of_step.OLD_ENTROPIES_KNOWN]),
        ratio_spread=(
            math.hypot(ratios.mean - 1, ratios.standard_deviation) if ratios.count else None
        ),
        ratio_to_sampler=bool(sums[RATIO].count and not sums[RATIO].to_old),
        outside_low=outside_low,
        outside_high=outside_high,
    )
