"""Alarms about a collapse on the runs of the papers' figures, for none of which they were tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from isentrope_papers.drawing import Picture, panels, points, smoothed
from isentrope_papers.dynamics.clipping import Models, Thresholds
from isentrope_papers.dynamics.masked_signs import MaskedSigns
from isentrope_papers.dynamics.methods import method_arms
from isentrope_papers.evidence import LEVEL
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire.diagnosis.course import ACT_LEFT, WATCH_LEFT, Course
from isentrope_wire.metrics import EARLY_STEPS, ENTROPY_MEAN, HOLD_TARGET, measured_change

NEIGHBOURS = 9
"""Steps about one whose mean is the entropy that an alarm is judged by."""
TOLERANCE = 0.05
"""An alarm is wrong where the lowest share left lies further than this above the level."""
IN_TIME, MOST_FALSE = 0.9, 0.05
"""Shares: of the collapses that are announced, and of the runs without one that an alarm is raised
in."""
NO_SUCH_RUN = "no such run"


class Alarm(NamedTuple):
    """What a run's entropy did, and when the first alarm about it was raised."""

    lost_half_at: int | None
    """The first step at which half of the early entropy is gone; None: it never is."""
    raised_at: int | None
    lowest: float
    """Share of the early entropy that is left at least."""

    @property
    def lead(self) -> int | None:
        """Steps from the alarm to the loss of half."""
        if self.lost_half_at is None or self.raised_at is None:
            return None
        return self.lost_half_at - self.raised_at

    @property
    def false(self) -> bool:
        """An alarm was raised, and the entropy never fell to where one is due."""
        return self.raised_at is not None and self.lowest > WATCH_LEFT + TOLERANCE


def alarm(run: Run) -> Alarm:
    """The first alarm about a collapse, at any level, raised again from what the steps reported."""
    entropies = run.series(ENTROPY_MEAN)
    left = smoothed(entropies, NEIGHBOURS) / np.nanmedian(entropies[:EARLY_STEPS])
    gone = np.flatnonzero(left <= ACT_LEFT)
    course, raised = Course(), list[int]()
    for step, *values in zip(run.steps.tolist(), *map(run.series, run.names), strict=True):
        scalars = {
            name: float(value)
            for name, value in zip(run.names, values, strict=True)
            if np.isfinite(value)
        }
        if ENTROPY_MEAN in scalars and "collapse" in course.add(
            step,
            scalars[ENTROPY_MEAN],
            observed=measured_change(scalars),
            target=scalars.get(HOLD_TARGET),
        ):
            raised.append(step)
    return Alarm(
        int(run.steps[gone[0]]) if len(gone) else None,
        raised[0] if raised else None,
        float(np.nanmin(left)),
    )


class Alarms(Figure):
    name = "beyond-alarms"
    number = "Alarms"
    title = "lead time and false alarms"
    claim = (
        "An alarm about a collapse is raised before half of the entropy is gone, and hardly ever in"
        " a run whose entropy stays, in runs of many methods and models that it was not tuned for."
    )

    label = "run"
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        figures = (MaskedSigns(), Thresholds(), Models())
        others = {
            f"{figure.number}: {label}": arm
            for figure in figures
            for label, arm in figure.arms(plan).items()
        }
        by_key = {arm.key: (label, arm) for label, arm in (others | method_arms(plan)).items()}
        return dict(by_key.values())

    def draw(self, results: Results) -> Picture:
        alarms = self._alarms(results)
        picture, (left, right) = panels(1, 2, height=2.8)
        for index, label in ((2, "alarm raised"), (1, "no alarm")):
            shown = [run for run in alarms if (run.raised_at is None) == (label == "no alarm")]
            raised = [run.raised_at or 0 for run in shown]
            points(left, [100 * run.lowest for run in shown], raised, index=index, label=label)
        left.axvline(100 * WATCH_LEFT, color="#888888", linestyle="--", linewidth=0.8)
        left.axvline(100 * ACT_LEFT, color="#888888", linestyle=":", linewidth=0.8)
        left.set(
            xlabel="entropy left at least, % of the early level",
            ylabel="step of the alarm (0: none)",
            title="(a) every run",
        )
        left.legend()
        leads = [run.lead for run in alarms if run.lead is not None]
        right.hist(leads, bins=20, color="#c8d7e6", edgecolor="#0072B2")
        right.axvline(0, color="#888888", linewidth=0.8)
        right.set(
            xlabel="lead, steps before half is gone",
            ylabel="runs",
            title="(b) lead of the first alarm",
        )
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        raised = alarm(run)
        return raised._asdict() | {"lead": raised.lead, "false": raised.false}

    def checks(self, results: Results) -> list[Check]:
        alarms = self._alarms(results)
        collapsed = [run for run in alarms if run.lost_half_at is not None]
        healthy = [run for run in alarms if run.lowest > WATCH_LEFT + TOLERANCE]
        leads = [run.lead for run in collapsed if run.lead is not None]
        in_time = sum(lead > 0 for lead in leads)
        false = sum(run.false for run in healthy)
        number = f"{in_time} of {len(collapsed)}"
        if leads:
            number += f", median lead {np.median(leads):.0f} steps"
        checks = [
            Check(
                statement="nine of ten collapses are announced before half of the entropy is gone",
                holds=bool(collapsed) and in_time / len(collapsed) >= IN_TIME,
                number=number,
                test=_binomial(in_time, len(collapsed)),
                reason="In fast collapses half is gone within a few steps of the early level.",
            ),
            Check(
                statement=(
                    "in runs whose entropy stays alarms are not shown to be more frequent than one"
                    " in twenty"
                ),
                holds=bool(healthy)
                and float(
                    stats.binomtest(false, len(healthy), MOST_FALSE, alternative="greater").pvalue
                )
                >= LEVEL,
                number=f"{false} of {len(healthy)}",
                test=_binomial(false, len(healthy)),
                reason=(
                    "The mean entropy of small batches scatters, and some runs fall first and"
                    " recover."
                ),
            ),
        ]
        return [check for check in checks if check.test != NO_SUCH_RUN]

    def _alarms(self, results: Results) -> list[Alarm]:
        return [alarm(run) for runs in self.finished(results).values() for run in runs]


def _binomial(hits: int, of: int) -> str:
    if not of:
        return NO_SUCH_RUN
    interval = stats.binomtest(hits, of).proportion_ci(0.9)
    return (
        f"share {hits / of:.2f}, 90 % interval {interval.low:.2f} to {interval.high:.2f}"
        f" (binomial), {of} runs"
    )
