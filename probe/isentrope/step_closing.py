"""How a step becomes a report: sums on the device now, numbers and calibration later, off the training thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.errors import InputError
from isentrope.interventions.threshold_source import SOURCES
from isentrope.scores import TokenScores
from isentrope.statistics.calibration import Calibration
from isentrope.statistics.host_copy import HostCopy
from isentrope.statistics.report_scalars import calibration_scalars, report_histograms, summary_scalars, unit_prediction
from isentrope.statistics.step_summary import StepSummary, measure, read_measurement
from isentrope.statistics.token_ledger import TokenBatch
from isentrope_wire.messages import ControlOutcome, ControlSnapshot, OutcomeState, StepReport

if TYPE_CHECKING:
    from torch.optim import Optimizer


class StepCloser:
    """Makes the reports of a run, in order; the calibration it carries learns from each."""

    def __init__(self) -> None:
        self.latest: StepReport | None = None
        self._calibration = Calibration()

    def close(
        self,
        *,
        step: int,
        batches: Sequence[TokenBatch],
        entropies_after: Sequence[Tensor] | None,
        logged: Mapping[str, float | Tensor],
        in_force: ControlSnapshot,
        outcomes: Sequence[ControlOutcome],
        momentum: float | None,
    ) -> Callable[[], StepReport]:
        """Measure now; the function returned builds the report and is called once, later, in step order."""
        measured = HostCopy(measure(batches, entropies_after)) if batches else None
        recorded_at = time.time()
        labels = {
            "control/method": str(in_force.control.method),
            "control/scope": str(in_force.control.scope),
            "calibration/momentum": "unknown" if momentum is None else f"{momentum:g}",
        }
        used = {batch.threshold_source for batch in batches}
        if used - {None}:
            labels["threshold/source"] = "+".join(source for source in SOURCES if source in used)

        def build() -> StepReport:
            summary = None if measured is None else read_measurement(measured.wait())
            report = StepReport(
                step=step,
                recorded_at=recorded_at,
                scalars=self._scalars(summary, momentum or 0.0) | {n: float(v) for n, v in logged.items()},
                histograms=() if summary is None else report_histograms(summary),
                control_version=in_force.version,
                outcomes=tuple(outcomes),
                labels=labels,
            )
            self.latest = report
            return report

        return build

    def _scalars(self, summary: StepSummary | None, momentum: float) -> dict[str, float]:
        if summary is None:
            return {}
        scalars = summary_scalars(summary)
        unit = unit_prediction(summary)
        if unit is not None:
            scalars |= calibration_scalars(
                self._calibration.step(unit, scalars.get("entropy/observed_change"), momentum)
            )
        return scalars


def entropies_after_update(
    rescore: Callable[[], TokenScores | Sequence[TokenScores]], batches: Sequence[TokenBatch]
) -> list[Tensor]:
    """H of the step's tokens under the updated policy, one tensor per batch.

    Random numbers drawn while re-scoring are given back, so that observing leaves the run as it was.
    """
    devices = [batches[0].mask.device] if batches[0].mask.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        rescored = rescore()
    parts = [rescored] if isinstance(rescored, TokenScores) else rescored
    if not isinstance(parts, Sequence) or not all(isinstance(part, TokenScores) for part in parts):
        raise InputError(f"rescore must return TokenScores, such as probe.score gives, got {rescored!r}.")
    shapes = [list(part.entropies.shape) for part in parts]
    expected = [list(batch.mask.shape) for batch in batches]
    if shapes != expected:
        raise InputError(
            f"rescore must return TokenScores of the tokens gated in this step, shapes {expected}, got {shapes}."
        )
    return [part.entropies.detach() for part in parts]


def momentum_of(optimizer: Optimizer | None) -> float | None:
    """beta_1 of Adam's family, momentum of SGD's, 0 where there is none; None when there is no optimiser to ask."""
    if optimizer is None:
        return None
    if not hasattr(optimizer, "param_groups"):
        raise InputError(f"optimizer must be a torch optimiser, got {optimizer!r}. Leave it out if there is none.")
    group = optimizer.param_groups[0]
    betas = group.get("betas")
    return float(betas[0] if betas else group.get("momentum", 0.0))


def at_step(outcome: ControlOutcome, step: int) -> ControlOutcome:
    """The desk guesses the next step's number; when the step closes it is known."""
    return replace(outcome, step=step) if outcome.state == OutcomeState.APPLIED else outcome
