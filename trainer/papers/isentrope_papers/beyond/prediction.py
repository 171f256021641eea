"""How well a step's entropy change is predicted: by the theory and by the entropy's gradient, by
algorithm, on- and off-policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from isentrope_papers.drawing import Picture, averaged, look, panels
from isentrope_papers.evidence import check_at_least, check_at_most, higher, pearson
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.fresh import FRESH_CHANGE
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS
from isentrope_wire import metrics

LEARNING = 0.2
"""Share of a run's steps in which the prediction is still calibrated; they are not judged."""
LOWEST_COVERAGE, HIGHEST_COVERAGE = 0.87, 0.93
"""Accepted coverage of the 90 % interval."""


FRESH_COMPLETIONS = 512
"""That judge each update."""


class Quality(NamedTuple):
    """Quality of a run's predictions, each made before its change was observed."""

    fresh: float
    """Correlation of the coupled prediction with the change of fresh completions, which nothing
    else saw (`isentrope_papers.fresh`)."""
    fresh_coverage: float
    """Share of the fresh changes inside the 90 % interval."""
    fresh_ratio: float
    """Sum of the fresh changes by that of the coupled predictions."""
    coupled: float
    """Correlation of the coupled prediction with the change of unseen tokens."""
    theory: float
    """Correlation of the theory's prediction with the change of fresh completions."""
    coupled_own: float
    """Correlation of the coupled prediction with the change of the step's own tokens."""
    coupled_r2: float
    """Share of the squared changes of unseen tokens about their mean that it explains, without a
    fitted factor."""
    ratio: float
    """Sum of the unseen changes by that of the coupled predictions."""
    course: float
    """Change of `entropy/mean` over the judged steps, in nats."""
    unseen_sum: float
    """Sum of the changes of unseen tokens between the middles of the course's ends."""
    own_sum: float
    """The same of the step's own tokens."""
    sign_agreement: float
    coverage: float


def judged(run: Run, metric: str) -> np.ndarray:
    """The steps that are judged."""
    return correlate_judged(run.series(metric))


def correlate_judged(values: np.ndarray) -> np.ndarray:
    return values[int(LEARNING * len(values)) :]


def theory(run: Run) -> np.ndarray:
    """What the theory says of each step's change, but for a gain: the unit prediction as the
    optimiser adds it up, times H."""
    return correlate_judged(
        averaged(run.series(metrics.ENTROPY_UNIT_PREDICTED_CHANGE))
        * run.series(metrics.ENTROPY_MEAN)
    )


def r2(predicted: np.ndarray, came: np.ndarray) -> float:
    """1 - (squared error) / (squared deviation from the mean), where both are known."""
    known = ~np.isnan(predicted * came)
    return float(
        1 - np.sum((came - predicted)[known] ** 2) / np.sum((came[known] - came[known].mean()) ** 2)
    )


def quality(run: Run) -> Quality:
    """Quality of the predictions over the judged steps."""
    predicted, unseen, own = (
        judged(run, name)
        for name in (
            metrics.ENTROPY_PREDICTED_CHANGE,
            metrics.ENTROPY_UNSEEN_CHANGE,
            metrics.ENTROPY_OBSERVED_CHANGE,
        )
    )
    low, high = (
        judged(run, metrics.ENTROPY_PREDICTED_CHANGE_LOW),
        judged(run, metrics.ENTROPY_PREDICTED_CHANGE_HIGH),
    )
    fresh = judged(run, FRESH_CHANGE)
    measured, bounded = ~np.isnan(predicted * unseen), ~np.isnan(low * high)
    known = ~np.isnan(predicted)
    entropy = judged(run, metrics.ENTROPY_MEAN)
    ends = min(COURSE_ENDS, len(entropy) // 3)
    course = entropy[-ends:].mean() - entropy[:ends].mean()
    # Between the middles of the two ends.
    between = slice(ends // 2, len(entropy) - ends // 2)
    return Quality(
        fresh=pearson(predicted, fresh),
        fresh_coverage=float(np.mean(((low <= fresh) & (fresh <= high))[bounded])),
        fresh_ratio=float(np.sum(fresh[known]) / np.sum(predicted[known])),
        coupled=pearson(predicted, unseen),
        theory=pearson(theory(run), fresh),
        coupled_own=pearson(predicted, own),
        coupled_r2=r2(predicted, unseen),
        ratio=float(np.sum(unseen[measured]) / np.sum(predicted[measured])),
        course=float(course),
        unseen_sum=float(np.nansum(unseen[between])),
        own_sum=float(np.nansum(own[between])),
        sign_agreement=float(np.mean((predicted > 0)[measured] == (unseen > 0)[measured])),
        coverage=float(np.mean(((low <= unseen) & (unseen <= high))[bounded & ~np.isnan(unseen)])),
    )


COURSE_ENDS = 10
"""Steps whose mean entropy is an end of the course, at most."""


class Prediction(Figure):
    name = "beyond-prediction"
    number = "Prediction"
    title = "predicted change of a step, and what it did to fresh completions, by algorithm"
    claim = (
        "The entropy's gradient times the optimiser's step predicts the change of the entropy on"
        " fresh completions, whose prompts and tokens neither the updates nor the prediction saw,"
        " for every algorithm, on- and off-policy; its 90 % interval holds as often as it promises,"
        " and the changes of unseen tokens add up to the course."
    )
    chosen_late = (
        "PRIME's reward model learns at a tenth of the policy's rate; at the same rate, chosen"
        " first, its rewards were exploited and right answers were gone within 30 steps."
    )

    label = "setting"
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        settings = {
            f"{one.label}, {way}-policy": plan.run(algorithm=name, **changed)
            for way, changed in (("on", {}), ("off", plan.several_updates))
            for name, one in ALGORITHMS.items()
        }
        fresh = 32 if plan.quick else FRESH_COMPLETIONS
        return {label: replace(run, fresh=fresh) for label, run in settings.items()}

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 4, height=3.4)
        found = {
            label: [quality(run) for run in runs] for label, runs in self.finished(results).items()
        }
        titles = (
            ("theory", "(a) theory, r", 0.0),
            ("fresh", "(b) coupled, r", 0.8),
            ("fresh_ratio", "(c) came by predicted", 1.0),
            ("fresh_coverage", "(d) interval held", 0.9),
        )
        for panel, (what, title, line) in zip(axes, titles, strict=True):
            panel.axvline(line, color="#888888", linewidth=0.8, linestyle="--")
            for place, (label, of_seeds) in enumerate(found.items()):
                style = look(2 if label.endswith("off-policy") else 1)
                values = [getattr(one, what) for one in of_seeds]
                panel.plot(values, [place] * len(values), "|", color=style.color, markersize=8)
                panel.plot(
                    [np.mean(values)], [place], style.marker, color=style.color, markersize=4
                )
            panel.set_yticks(range(len(found)), list(found) if what == "theory" else [])
            panel.invert_yaxis()
            panel.set_title(title)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return quality(run)._asdict()

    def checks(self, results: Results) -> list[Check]:
        found = {
            label: [quality(run) for run in runs] for label, runs in self.finished(results).items()
        }
        checks = [
            higher(
                f"{label}: the coupled prediction goes with the fresh change more closely than the"
                " theory's",
                [one.fresh for one in of_seeds],
                [one.theory for one in of_seeds],
            )
            for label, of_seeds in found.items()
        ]
        count = min(map(len, found.values()))
        by_seed = [
            Quality(*np.mean([of_arm[place] for of_arm in found.values()], axis=0))
            for place in range(count)
        ]
        # Of all settings together: in some the entropy ends where it began.
        sums = [one.unseen_sum / one.course for one in by_seed]
        own = [one.own_sum / one.course for one in by_seed]
        coverages = [one.fresh_coverage for one in by_seed]
        return [
            *checks,
            check_at_least(
                "r with the fresh change is at least 0.8, mean of all settings",
                [q.fresh for q in by_seed],
                0.8,
            ),
            check_at_least(
                "what came is at least 0.8 of what was predicted",
                [q.fresh_ratio for q in by_seed],
                0.8,
            ),
            check_at_most("and at most 1.25", [q.fresh_ratio for q in by_seed], 1.25),
            check_at_least("the interval holds in at least 87 %", coverages, LOWEST_COVERAGE),
            check_at_most("and in at most 93 %", coverages, HIGHEST_COVERAGE),
            check_at_least("the unseen changes add up to at least 0.9 of the course", sums, 0.9),
            check_at_most("and to at most 1.1", sums, 1.1),
            higher("those of own tokens add up to more", own, sums),
        ]
