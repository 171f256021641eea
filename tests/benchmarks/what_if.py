"""What-if against the truth: what a step's curve showed for thresholds drawn at random, and what the next step had under them.

The tokens of two steps differ, so that the next step need not have what was shown even where the curve is exact. What the tokens
alone make different is the row "nothing clipped". Medians over PUSHES pushes at the end of a run of STEPS steps, seed 0.
"""

from __future__ import annotations

import random
import time
from statistics import median

import isentrope
from isentrope.transport import InMemoryTransport, MakeMessage
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.control import Method, Scope
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_UNIT_PREDICTED_CHANGE
from isentrope_wire.reports import ControlSnapshot, StepReport
from isentrope_wire.what_if import WhatIfCurve

STEPS, PUSHES = 60, 20
LOWEST_MU, HIGHEST_MU = 0.25, 4.0
"""Between which thresholds are drawn; further out hardly a token lies."""


class PushingTransport(InMemoryTransport):
    """From step STEPS - PUSHES on, draws thresholds after each report and pushes them for the next step."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)
        self.pushes: list[tuple[isentrope.Control, StepReport, StepReport]] = []
        """The thresholds, the report that was asked about them, and the one of the step that ran under them."""
        self._asked: tuple[isentrope.Control, StepReport] | None = None

    def put(self, make: MakeMessage) -> bool:
        taken = super().put(make)
        report = self.messages[-1]
        if not isinstance(report, StepReport):
            return taken
        if self._asked is not None:
            self.pushes.append((*self._asked, report))
        self._asked = None
        if STEPS - PUSHES <= report.step < STEPS:
            mu_low, mu_high = (self._random.uniform(LOWEST_MU, HIGHEST_MU) for _ in range(2))
            method, scope = self._random.choice((Method.CLIP_B, Method.CLIP_V)), self._random.choice(list(Scope))
            control = isentrope.Control(method=method, mu_low=mu_low, mu_high=mu_high, scope=scope)
            self._asked = control, report
            version = len(self.pushes) + 1
            self.set_control(ControlSnapshot(version=version, control=control, author="", requested_at=time.time()))
        return taken


def _answer(control: isentrope.Control, report: StepReport) -> tuple[float, float]:
    """Clip fraction and unit prediction that a step's curve says of thresholds."""
    assert report.what_if is not None
    answer = WhatIfCurve(report.what_if, control.scope, control.method).at(control.mu_low, control.mu_high)
    return answer.clip_fraction, answer.unit_predicted_change


def _unclipped(report: StepReport) -> float:
    assert report.what_if is not None
    return report.what_if.change_sum / report.what_if.tokens


def measure() -> list[str]:
    """The lines of a Markdown table."""
    transport = PushingTransport()
    train_reference_policy(TrainingConfig(steps=STEPS), isentrope.Control(), transport=transport, quiet=True)
    had = [
        (after.scalars[CLIP_FRACTION], after.scalars[ENTROPY_UNIT_PREDICTED_CHANGE]) for *_, after in transport.pushes
    ]
    shown = [_answer(control, before) for control, before, _ in transport.pushes]
    own = [_answer(control, after) for control, _, after in transport.pushes]
    size = median(abs(change) for _, change in had)

    def clip_error(said: list[tuple[float, float]]) -> float:
        """Of thresholds under which nothing was clipped there is no relative error."""
        return median(abs(one[0] / true[0] - 1) for one, true in zip(said, had, strict=True) if true[0] > 0)

    def change_error(said: list[tuple[float, float]]) -> float:
        return median(abs(one[1] - true[1]) for one, true in zip(said, had, strict=True)) / size

    tokens_alone = median(abs(_unclipped(before) - _unclipped(after)) for _, before, after in transport.pushes) / size
    return [
        f"| {len(had)} pushes | clip fraction, error | unit prediction, error as a share of the median size |",
        "|---|---|---|",
        f"| shown for the step before | {clip_error(shown):.1%} | {change_error(shown):.1%} |",
        f"| nothing clipped, one step against the next | | {tokens_alone:.1%} |",
        f"| the step's own curve of its own thresholds | {clip_error(own):.1%} | {change_error(own):.1%} |",
    ]
