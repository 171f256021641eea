"""What is promised of a control when it is pushed, against a run that goes on without it from the
same state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import isentrope
from isentrope_papers.beyond.forecast import measured_at
from isentrope_papers.drawing import Picture, panels, points
from isentrope_papers.evidence import pearson
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire.control_answers import Outcome
from isentrope_wire.diagnosis.effect import PROMISED_STEPS
from isentrope_wire.diagnosis.health import preview
from isentrope_wire.diagnosis.slope import slope_of
from isentrope_wire.diagnosis.verdict import outcome_of, pace_without
from isentrope_wire.metrics import (
    CHANGE_BY_INTERVENTION,
    ENTROPY_GAIN,
    ENTROPY_MEAN,
    ENTROPY_UNSEEN_CHANGE,
)

STATES, LENGTH = (30, 90), 30
"""Steps after which a control is pushed, and steps under it."""
LATER, LONGER = 96, 64
"""States and length with several updates a batch: a batch is eight steps."""
AROUND = 5
"""Steps before and after the last promised one that are averaged with it: a step's mean
scatters."""
HELPED = 0.5
"""A control helped where at most this share of the pace without it is left."""
WITHOUT = "none"


class Fork(NamedTuple):
    """One control from one state, in nats a step."""

    promised: float | None
    """What it was to add to each step; None: that was not known."""
    came: float
    """What it added to each step up to then, by how far both runs are apart around the last of the
    promised steps."""
    without: float
    helped: bool
    verdict: bool | None
    """Whether the verdict after twenty steps says that it helped; None: undecided."""


class Forks(Figure):
    name = "beyond-forks"
    number = "Forks"
    title = "a control as it was promised and as it came, from one state"
    claim = (
        "What the preview of a control promises to add to the entropy's pace is what it adds,"
        " beside a run that goes on without it from the same state, and the verdict after twenty"
        " steps says whether it helped."
    )
    chosen_late = (
        "How long an effect lasts, and how much the entropy moves for a nat on own tokens (0.75"
        " before the run shows it), were fixed on such forks."
    )

    label = "control"
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        states, length = ((8,), 8) if plan.quick else (STATES, LENGTH)
        controls = {WITHOUT: isentrope.Control()}
        for mu in (0.5, 1.0, 2.0, 3.0):
            for scope in ("all", "decreasing", "negative"):
                control = isentrope.Control(method="clip_v", mu_low=mu, mu_high=mu, scope=scope)
                controls[f"Clip_V {mu:g}, {scope}"] = control
        for mu in (1.0, 2.0):
            controls[f"Clip_B {mu:g}, all"] = isentrope.Control(
                method="clip_b", mu_low=mu, mu_high=mu
            )
        controls["Clip-Cov 5 %"] = isentrope.Control(
            method="clip_cov", parameters={"ratio": 0.05, "omega_low": 0.2}
        )
        controls["KL-Cov 5 %"] = isentrope.Control(method="kl_cov", parameters={"k": 0.05})
        controls["Hold at 75 %"] = isentrope.Control(hold="75%")
        if plan.quick:
            controls = {name: controls[name] for name in (WITHOUT, "Clip_V 1, decreasing")}
        arms = {
            f"{name} from {state}": replace(
                plan.run(control, steps=state + length, evaluation=None), pushed_after=state
            )
            for state in states
            for name, control in controls.items()
        }
        if plan.quick:
            return arms
        # With one update a batch KL-Cov can't act.
        several = dict(plan.several_updates, steps=LATER + LONGER, evaluation=None)
        return arms | {
            f"{name} from {LATER}, off-policy": replace(
                plan.run(controls[name], **several), pushed_after=LATER
            )
            for name in (WITHOUT, "Clip-Cov 5 %", "KL-Cov 5 %")
        }

    def draw(self, results: Results) -> Picture:
        picture, (panel,) = panels(1, 1, height=3.4)
        shown = [
            (one.promised, one.came)
            for one in self._forks(results).values()
            if one.promised is not None
        ]
        promised, came = np.array(shown, dtype=float).reshape(-1, 2).T
        points(panel, promised, came, index=1, size=4)
        ends = [0.0, 1.0]
        if shown:
            ends = [float(came.min()), float(came.max())]
        panel.plot(ends, ends, color="#888888", linewidth=0.8)
        panel.set(xlabel="promised, nats a step", ylabel="came, nats a step")
        return picture

    def table(self, results: Results) -> list[dict[str, object]]:  # type: ignore[override]
        return [
            {"control": label, "seed": seed} | one._asdict()
            for (label, seed), one in self._forks(results).items()
        ]

    def checks(self, results: Results) -> list[Check]:
        forks = list(self._forks(results).values())
        predicted = [branch for branch in forks if branch.promised is not None]
        promised = np.array([branch.promised for branch in predicted], dtype=float)
        came = np.array([branch.came for branch in predicted])
        vanilla = float(np.mean([abs(branch.without) for branch in forks]))
        # KL-Cov changes nothing in the first update of a batch.
        changes = promised != 0
        sign = float(np.mean((promised > 0)[changes] == (came > 0)[changes]))
        error = float(np.mean(np.abs(promised - came)))
        ratio = float(promised @ came / (promised @ promised))
        decided = [branch for branch in forks if branch.verdict is not None]
        agree = sum(branch.verdict == branch.helped for branch in decided)
        test = f"{len(predicted)} forks, r = {pearson(promised, came):.2f}"
        noise = (
            "What came is the gap between two runs, a mean of eleven steps: noise alone makes it a"
            " fifth of what a run moves by then."
        )
        return [
            Check(
                statement="the sign is right in 95 %",
                holds=sign >= 0.95,
                number=f"{sign:.3f}",
                test=f"{changes.sum()} forks whose control was promised to change something",
            ),
            Check(
                statement="the mean error is below a tenth of the pace without a control",
                holds=error < 0.1 * vanilla,
                number=f"{error:.5f} against {vanilla:.5f} nats a step",
                test=test,
                reason=noise,
            ),
            Check(
                statement="0.9 to 1.1 of the promised effect comes",
                holds=0.9 <= ratio <= 1.1,
                number=f"{ratio:.3f}",
                test=f"{test}, least squares through 0",
                reason=(
                    "Under a control the scores change: large effects get larger as the entropy"
                    " rises."
                ),
            ),
            Check(
                statement="the verdict agrees in nine of ten",
                holds=bool(decided) and agree >= 0.9 * len(decided),
                number=f"{agree} of {len(decided)}, {len(forks) - len(decided)} undecided",
                test=(
                    "against the share that is left of the pace without the control, at most half"
                    " or not"
                ),
                reason=noise,
            ),
        ]

    def _forks(self, results: Results) -> dict[tuple[str, int], Fork]:
        """By control with its state, and seed."""
        finished = self.finished(results)
        runs = {(label, run.seed): run for label in finished for run in finished[label]}
        forks = {}
        for (label, seed), run in runs.items():
            name, _, state = label.partition(" from ")
            without = runs.get((f"{WITHOUT} from {state}", seed))
            if name != WITHOUT and without is not None:
                forks[label, seed] = fork(run, without)
        return forks


def fork(run: Run, without: Run) -> Fork:
    """Compare a run with the one without a control."""
    after = run.steps > run.settings.pushed_after
    courses = [one.series(ENTROPY_MEAN)[after] for one in (run, without)]
    paces = [np.polyfit(run.steps[after], course, 1)[0] for course in courses]
    apart = (courses[0] - courses[1])[: PROMISED_STEPS + AROUND][-2 * AROUND - 1 :]
    judged = after & (run.steps <= run.settings.pushed_after + PROMISED_STEPS)
    slope = slope_of(run.steps[judged].tolist(), run.series(ENTROPY_MEAN)[judged].tolist())
    course = measured_at(run, int(np.flatnonzero(judged)[-1])).course
    if ENTROPY_UNSEEN_CHANGE in run.names or course is None:
        share = 1.0
    else:
        share = course.own_share
    added = share * run.series(ENTROPY_GAIN)[judged] * run.series(CHANGE_BY_INTERVENTION)[judged]
    assert slope is not None, "there are as many steps"
    steps, entropies = run.steps[judged].tolist(), run.series(ENTROPY_MEAN)[judged].tolist()
    outcome, left = outcome_of(
        slope, pace_without(entropies, steps, float(np.nanmean(added)), steps[0])
    )
    return Fork(
        promised=promise(run),
        came=float(np.mean(apart)) / PROMISED_STEPS,
        without=float(paces[1]),
        helped=bool(paces[0] / paces[1] <= HELPED),
        verdict=None if outcome == Outcome.UNDECIDED else left is not None and left <= HELPED,
    )


def promise(run: Run) -> float | None:
    """What the preview says that a run's control adds to each of the next steps when it is pushed,
    in nats."""
    place = int(np.flatnonzero(run.steps <= run.settings.pushed_after)[-1])
    measured = measured_at(run, place, run.what_if)
    under, course = preview(measured, run.settings.control).forecast, measured.course
    if under is None or course is None:
        return None
    return (under.entropy[PROMISED_STEPS - 1] - course.ahead(PROMISED_STEPS)) / PROMISED_STEPS
