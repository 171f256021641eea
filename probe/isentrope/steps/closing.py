"""A step is closed: measured, exchanged with the other ranks, and handed over as a report.

In this order, on the training thread: the tokens are scored again after the update, what the next
step needs is counted and exchanged, and a report is queued that the writer thread builds later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor

from isentrope import inputs
from isentrope.control import NOTHING_GATED_MESSAGE
from isentrope.global_step import next_step_vector, rank_vector
from isentrope.host_copy import HostCopies
from isentrope.statistics.calibration import Momentum, SeveralOptimizers
from isentrope.statistics.coupling import EntropyGradient
from isentrope.statistics.rescoring import Rescore, Rescoring, rescore_of_calls
from isentrope.statistics.samples import reward_parts
from isentrope.statistics.tokens import TokenBatch
from isentrope.steps.open_step import OpenStep
from isentrope.steps.parts import Parts
from isentrope.steps.report import ClosedStep, NumbersOfRanks
from isentrope_wire.hold_action import Action
from isentrope_wire.metrics import (
    PROBE_FAILURES,
    PROBE_RESCORE_SECONDS,
    PROBE_SECONDS,
    TOKEN_VOCABULARY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The optimiser's update that ends a step, with the arguments of `Probe.step`."""

    step: int
    optimizer: Any
    """An `Optimizer`, several of them, or None."""
    rescore: Rescore | None
    unseen: Rescore | None
    learning_rates: inputs.LearningRates | None
    loss_scale: float | Tensor
    clip_factor: float | Tensor | None

    def read(self) -> Update:
        """The same with what is computed with; InputError: a number that is none."""
        optimizer, clip_factor = self.optimizer, self.clip_factor
        if isinstance(optimizer, Sequence):
            optimizer = SeveralOptimizers(optimizer)
        if clip_factor is not None:
            clip_factor = inputs.loggable("clip_factor", clip_factor)
        step = inputs.step_number(self.step)
        return replace(self, step=step, optimizer=optimizer, clip_factor=clip_factor)


class MeasuredStep(NamedTuple):
    """What was measured of a step on this rank."""

    what_if_source: str
    """Which of THRESHOLD_SOURCES the what-if sums are counted from."""
    sums: Tensor | Callable[[], Tensor]
    """The vector of this rank's sums; where the writer thread counts them, a function that counts
    what the next step needs of it."""
    numbers: NumbersOfRanks | None = None
    """What gives the writer thread the numbers that it counts itself."""


class StepCloser:
    """Closes the steps of one rank; belongs to the training thread."""

    def __init__(self, parts: Parts, open_step: OpenStep) -> None:
        self._parts, self._open = parts, open_step
        config = parts.config
        entropy_gradient = None
        if config.coupling is not None:
            entropy_gradient = EntropyGradient(config.coupling, config.coupling_every)
        self._rescoring = Rescoring(
            entropy_gradient,
            parts.guard,
            parts.stopwatch,
            parts.warnings.warn_once,
            config.influence_every,
        )
        self._copies = HostCopies()

    @property
    def measures_influence(self) -> bool:
        """Whether the open step is to have each token's influence."""
        return self._rescoring.will_take_slopes

    def close(self, update: Update, *, expects_gate: bool, is_over: bool) -> None:
        """Close the open step.

        Args:
            expects_gate: whether a step that gates nothing is to be warned about.
            is_over: whether the run has ended before.
        """
        started = time.perf_counter()
        control, ranks, hold = self._parts.control, self._parts.ranks, self._parts.hold
        stopwatch = self._parts.stopwatch
        measured: MeasuredStep | None = None
        action: Action | None = None
        try:
            self._open.begin()
            calls = self._open.ledger.calls
            batches = self._open.take_batches()
            update = update.read()
            if update.rescore is not None and 0 < len(batches) < calls:
                trained = [batch.call for batch in batches]
                rescore = rescore_of_calls(update.rescore, trained, calls)
                update = replace(update, rescore=rescore)
            self._warn_of_misuse(update.step, batches, expects_gate, is_over)
            if batches or not ranks.alone:
                measured = self._measure(update, batches)
            hold.end_step()
            if ranks.leads and not ranks.alone:
                # On its own a process decides when the next step begins: more numbers have
                # arrived by then.
                action = hold.decide(control.active)
        finally:
            # Also when measuring failed: the other ranks wait for this one, and the next step
            # must be able to begin under another control.
            control.end_step()
            if measured is not None or not ranks.alone:
                ranks.close_step(
                    None if measured is None else measured.sums,
                    failures=self._parts.guard.failures,
                    requested=self._parts.transport.requested_control(),
                    action=action,
                    has_gated=self._parts.reports.has_gated,
                )
        numbers = self._find_numbers(measured)
        reported_from = time.perf_counter()
        stopwatch.seconds += reported_from - started
        self._send_report(update, batches, measured, numbers)
        # Counted with the next step.
        stopwatch.seconds = time.perf_counter() - reported_from
        self._parts.guard.settled = True
        self._open.end()

    def _warn_of_misuse(
        self, step: int, batches: Sequence[TokenBatch], expects_gate: bool, is_over: bool
    ) -> None:
        """Log once what the loop hardly means, such as a step that gates nothing."""
        open_step, warn_once = self._open, self._parts.warnings.warn_once
        if not open_step.has_gated and self._parts.ranks.alone:
            open_step.bypassed = True
        is_missed = expects_gate and self._parts.ranks.leads
        if open_step.bypassed and is_missed and not open_step.awaits_gate:
            warn_once(
                "gate",
                f"Step {step} was closed, but nothing has passed probe.gate: no entropy is "
                f"measured, and controls will be rejected. {NOTHING_GATED_MESSAGE}",
            )
        if open_step.awaits_gate and not batches and not open_step.ledger.overflowed:
            warn_once(
                "gate",
                f"Step {step} was scored, but nothing was passed to probe.gate: it is not measured,"
                " and no control acts. Take the log-probs of the loss from probe.gate(scores,"
                " advantages, mask).",
            )
        if any(batch.passed_by for batch in batches):
            warn_once(
                "passed_by",
                f"In step {step} a method was active, but the loss was computed from log-probs that"
                " did not pass probe.gate: it acts on nothing. Compute the loss from the tensor"
                " that gate returns.",
            )
        last = self._parts.control.last_step
        if not is_over and last is not None and step <= last:
            warn_once(
                "step",
                f"Step {step} was closed after step {last}: pass the count of optimiser updates,"
                " which rises. Both reports are stored, and charts show one for each number.",
            )

    def _measure(self, update: Update, batches: Sequence[TokenBatch]) -> MeasuredStep:
        """Score again what there is to score, and count this rank's sums."""
        config, basis, ranks = self._parts.config, self._parts.basis, self._parts.ranks
        failures = self._parts.guard.failures
        after = self._rescoring.measure(batches, update.rescore, update.unseen, update.optimizer)
        source, thresholds = basis.known(first_call=len(batches) == 1)
        counted: list[TokenBatch] = []
        entropies: Sequence[Tensor] | None = None
        if config.counts:
            counted = [replace(batch, rescore=None) for batch in batches]
            entropies = after.entropies
        given: Mapping[str, Any] = {
            "thresholds": thresholds,
            "centre": None if ranks.alone else basis.means(),
            "loss_scale": update.loss_scale,
            "unseen": after.unseen,
            "coupled": after.coupled,
            "slopes": after.slopes,
        }
        if ranks.alone and self._copies.takes([batch.mask for batch in counted]):
            on_host = self._copies.start((counted, entropies, given))

            def count_on_host() -> list[list[float]]:
                tokens, entropies, given = on_host()
                vector = rank_vector(update.step, failures, tokens, entropies, None, **given)
                return [vector.tolist()]

            measured = MeasuredStep(
                source, cache(partial(next_step_vector, counted)), count_on_host
            )
        else:
            vector = rank_vector(update.step, failures, counted, entropies, ranks.device, **given)
            measured = MeasuredStep(source, vector)
        basis.step_closed(self._parts.hold.control, batches, alone=ranks.alone)
        return measured

    def _send_report(
        self,
        update: Update,
        batches: Sequence[TokenBatch],
        measured: MeasuredStep | None,
        numbers: NumbersOfRanks | None,
    ) -> None:
        """Queue the report of the step, with what was logged in it."""
        parts, logged = self._parts, self._open.logged
        momentum = Momentum.read(update.optimizer)
        beta = None
        if momentum is not None:
            beta = momentum.beta
        learning_rates = update.learning_rates or inputs.learning_rates_of(update.optimizer)
        self._log_own_costs()
        if parts.ranks.leads and parts.hold.vocabulary is not None:
            logged[TOKEN_VOCABULARY] = float(parts.hold.vocabulary)
        logged |= parts.trackers.scalars()
        build = parts.reports.report_of(
            ClosedStep(
                step=update.step,
                measured=numbers,
                logged=logged.copy(),
                active=parts.control.active,
                control=parts.hold.control,
                action=parts.hold.action,
                outcomes=parts.control.outcomes_at(update.step),
                gated=self._open.gated,
                ranks_gate=self._open.ranks_gate,
                momentum=momentum,
                learning_rate=learning_rates,
                clip_factor=update.clip_factor,
                coupling=parts.config.coupling,
                has_unseen=update.unseen is not None,
                what_if_source="" if measured is None else measured.what_if_source,
                reward_parts=reward_parts(batches),
                failed=parts.guard.summary,
                learn=None if numbers is None else parts.hold.learner(beta, learning_rates),
            )
        )
        sent = parts.transport.put(parts.trackers.also(update.step, build))
        if not sent or parts.config.mode == "disabled":
            parts.reports.not_sent()
        parts.control.reported(update.step, sent=sent)
        logged.clear()

    def _find_numbers(self, measured: MeasuredStep | None) -> NumbersOfRanks | None:
        """What gives the writer thread the step's numbers; None where nothing was measured."""
        if measured is None:
            return None
        if measured.numbers is not None:
            return measured.numbers
        return self._parts.ranks.numbers_of_ranks()

    def _log_own_costs(self) -> None:
        """Log the probe's own failures and seconds."""
        logged, guard = self._open.logged, self._parts.guard
        if guard.failures:
            logged[PROBE_FAILURES] = float(guard.failures)
        logged[PROBE_SECONDS] = self._parts.stopwatch.seconds
        if self._rescoring.seconds:
            logged[PROBE_RESCORE_SECONDS] = self._rescoring.seconds
            self._rescoring.seconds = 0.0
