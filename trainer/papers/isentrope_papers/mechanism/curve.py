"""Fig. 3 to 7 and 14: reward is a function of entropy, R = -a exp(H) + b (eq. 6): its fit, its
forecast, and what a and b depend on.

The curve is fitted by least squares: it is linear in a and b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isentrope_papers.drawing import Picture, draw_over, look, panels, points
from isentrope_papers.evidence import check_at_least, correlated, higher, trend
from isentrope_papers.figure import Check, Figure, Results, Row, group_by_seed
from isentrope_papers.runs import Run, Series
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS, SIZES, TASKS, TaskConfig
from isentrope_wire.metrics import ENTROPY_MEAN, EVAL_AVG_AT_K, REWARD_MEAN

NEIGHBOURS = 5
"""Steps whose mean entropy goes with an evaluation: those before it."""
EARLY = 0.15
"""First share of the run, from which a forecast is made."""
HELD_OUT_JUGS = 48
"""Problems of an evaluation on jugs: the task has 54 that are held out."""
COMPARED = ("grpo", "rloo", "prime")
"""The paper's algorithms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted curve; called with entropies in nats it gives rewards."""

    a: float
    b: float
    r_squared: float
    """R² on the points that it was fitted to."""

    def __call__(self, entropies: Series) -> Series:
        return -self.a * np.exp(entropies) + self.b

    @property
    def ceiling(self) -> float:
        """The reward at an entropy of 0."""
        return self.b - self.a


def fitted(entropies: Series, rewards: Series) -> Curve:
    """The least-squares curve through at least three points of entropy in nats and reward."""
    design = np.stack([-np.exp(entropies), np.ones_like(entropies)], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, rewards, rcond=None)
    residual = rewards - design @ [a, b]
    whole = float(np.sum((rewards - rewards.mean()) ** 2))
    return Curve(
        float(a), float(b), 1 - float(np.sum(residual**2)) / whole if whole else float("nan")
    )


def measured(run: Run) -> tuple[Series, Series]:
    """Mean entropies of the steps before each of the run's held-out evaluations, and their
    rewards."""
    entropies, rewards = run.series(ENTROPY_MEAN), run.series(EVAL_AVG_AT_K)
    places = np.flatnonzero(~np.isnan(rewards))
    means = [np.nanmean(entropies[max(0, place + 1 - NEIGHBOURS) : place + 1]) for place in places]
    return np.array(means), rewards[places]


def curve_of(run: Run) -> Curve:
    """Through the run's held-out evaluations."""
    return fitted(*measured(run))


def forecast(run: Run) -> tuple[Curve, float, float]:
    """From the first 15 % of a run's steps: the curve, its root mean square error over the rest,
    and that of the last rewards carried on. Of the training reward: evaluations are too few."""
    entropies, rewards = run.series(ENTROPY_MEAN), run.series(REWARD_MEAN)
    begun = max(3, round(EARLY * len(rewards)))
    curve = fitted(entropies[:begun], rewards[:begun])
    late_entropies, late_rewards = entropies[begun:], rewards[begun:]
    return (
        curve,
        float(np.sqrt(np.mean((curve(late_entropies) - late_rewards) ** 2))),
        float(np.sqrt(np.mean((rewards[max(0, begun - 10) : begun].mean() - late_rewards) ** 2))),
    )


class Fit(Figure):
    name = "mechanism-3"
    number = "Fig. 3-5, 14"
    title = "reward against entropy"
    claim = (
        "Without an intervention reward and entropy lie on one curve R = -a exp(H) + b with a > 0;"
        " fitted to the first 15 % of a run, it forecasts the rest from the entropy, with an error"
        " of about 1 %."
    )
    label = "task"

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        assert plan.base.evaluation is not None, "every run is evaluated"
        few = replace(
            plan.base.evaluation, problems=min(HELD_OUT_JUGS, plan.base.evaluation.problems)
        )
        return {
            task: plan.run(
                task=TaskConfig(name=task),
                evaluation=few if task == "jugs" else plan.base.evaluation,
            )
            for task in TASKS
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(1, len(found))
        for panel, (label, runs) in zip(axes, found.items(), strict=True):
            for index, run in enumerate(runs):
                entropies, rewards = measured(run)
                as_look = look(index)
                points(
                    panel,
                    entropies,
                    rewards,
                    index=index,
                    label=f"seed {run.seed}",
                    size=3,
                    alpha=0.6,
                )
                along = np.linspace(entropies.min(), entropies.max(), 50)
                panel.plot(
                    along,
                    fitted(entropies, rewards)(along),
                    color=as_look.color,
                    linestyle=as_look.dash,
                )
                if not index:
                    panel.plot(
                        along,
                        forecast(run)[0](along),
                        color="#777777",
                        linestyle=":",
                        label="forecast, seed 0",
                    )
            panel.set(title=label, xlabel="entropy, nats", ylabel="Avg@K, held out")
            panel.invert_xaxis()
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        curve = curve_of(run)
        _, error, carried = forecast(run)
        return {
            "a": curve.a,
            "b": curve.b,
            "ceiling": curve.ceiling,
            "r_squared": curve.r_squared,
            "forecast_rmse": error,
            "carried_rmse": carried,
        }

    def checks(self, results: Results) -> list[Check]:
        checks = []
        for label, runs in self.finished(results).items():
            curves = [curve_of(run) for run in runs]
            errors = [forecast(run)[1:] for run in runs]
            checks += [
                check_at_least(
                    f"{label}: the curve explains most of the reward",
                    [curve.r_squared for curve in curves],
                    0.8,
                    unit="R²",
                    reason=(
                        "Held-out rewards are means of few answers, and their noise is not the"
                        " curve's."
                    ),
                ),
                check_at_least(f"{label}: a is above 0", [curve.a for curve in curves], 0.0),
                higher(
                    f"{label}: the forecast errs less than the last value carried on",
                    [carried for _, carried in errors],
                    [error for error, _ in errors],
                    unit="RMSE",
                    reason=(
                        "The first 15 % span so little of the entropy that a and b are hardly"
                        " determined."
                    ),
                ),
            ]
        return checks


class AlgorithmsShareACurve(Figure):
    name = "mechanism-6"
    number = "Fig. 6"
    title = "the curve across algorithms"
    claim = (
        "GRPO, RLOO and PRIME have the same coefficients a and b: how entropy is traded for reward"
        " is the model's and the data's."
    )
    chosen_late = (
        "PRIME's reward model learns at a tenth of the policy's rate; at the same rate, chosen"
        " first, its rewards were exploited and right answers were gone within 30 steps."
    )
    label = "algorithm"

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ALGORITHMS[name].label: plan.run(algorithm=name) for name in COMPARED}

    def draw(self, results: Results) -> Picture:
        picture, (left, right) = panels(1, 2)
        for index, (label, runs) in enumerate(self.finished(results).items()):
            as_look, curves = look(index), [curve_of(run) for run in runs]
            entropies, rewards = _points(runs)
            left.plot(
                entropies,
                rewards,
                as_look.marker,
                color=as_look.color,
                markersize=3,
                alpha=0.5,
                label=label,
            )
            along = np.linspace(entropies.min(), entropies.max(), 50)
            left.plot(
                along,
                fitted(entropies, rewards)(along),
                color=as_look.color,
                linestyle=as_look.dash,
            )
            coefficients = [curve.a for curve in curves], [curve.b for curve in curves]
            right.plot(*coefficients, as_look.marker, color=as_look.color, label=label)
        left.set(xlabel="entropy, nats", ylabel="Avg@K, held out")
        left.invert_xaxis()
        left.legend()
        right.set(xlabel="a", ylabel="b")
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        curve = curve_of(run)
        return {
            "a": curve.a,
            "b": curve.b,
            "r_squared": curve.r_squared,
            "entropy_end": run.end(ENTROPY_MEAN),
            "reward_end": run.end(REWARD_MEAN),
        }

    def checks(self, results: Results) -> list[Check]:
        of_seeds = group_by_seed(self.finished(results).values(), lambda run: run)
        pooled = [fitted(*_points(runs)).r_squared for runs in of_seeds]
        apart = [_apart(runs) for runs in of_seeds]
        reason = (
            "Another advantage reaches the same entropy with other answers here, where runs are"
            " short and noisy."
        )
        return [
            check_at_least(
                "one curve through all the algorithms of a seed explains most of their rewards",
                pooled,
                0.8,
                unit="R²",
                reason=reason,
            ),
            check_at_least(
                "and hardly less than a curve for each",
                [one - each for one, each in zip(pooled, apart, strict=True)],
                -0.1,
                unit="of R²",
                reason=reason,
            ),
        ]


def _points(runs: Sequence[Run]) -> tuple[Series, Series]:
    entropies, rewards = (
        np.concatenate(column) for column in zip(*map(measured, runs), strict=True)
    )
    return entropies, rewards


def _apart(runs: Sequence[Run]) -> float:
    """R², over the points of all runs, of a curve for each run."""
    residual = sum(
        float(np.sum((curve_of(run)(measured(run)[0]) - measured(run)[1]) ** 2)) for run in runs
    )
    rewards = _points(runs)[1]
    return 1 - residual / float(np.sum((rewards - rewards.mean()) ** 2))


class Sizes(Figure):
    name = "mechanism-7"
    number = "Fig. 7"
    title = "the curve against the model's size"
    claim = (
        "Within a family a and b are linear in the logarithm of the number of parameters, so that"
        " small models forecast large ones."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {size: plan.run(policy=policy) for size, policy in SIZES.items()}

    def _curves(self, results: Results) -> dict[int, dict[int, Curve]]:
        """Parameters -> seed -> curve."""
        return {
            round(float(size.removesuffix("M")) * 1e6): {run.seed: curve_of(run) for run in runs}
            for size, runs in self.finished(results).items()
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2)
        curves = self._curves(results)
        for panel, name, label in zip(axes, ("a", "ceiling"), ("a", "ceiling b - a"), strict=True):
            values = [
                [getattr(curve, name) for curve in of_seeds.values()]
                for of_seeds in curves.values()
            ]
            draw_over(panel, list(curves), values, label=label, index=1)
            panel.set_xscale("log")
            panel.set_xticks(list(curves), [f"{parameters / 1e6:g}M" for parameters in curves])
            panel.minorticks_off()
            panel.set(xlabel="parameters", ylabel=label)
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "parameters": size,
                "seed": seed,
                "a": curve.a,
                "b": curve.b,
                "r_squared": curve.r_squared,
            }
            for size, of_seeds in self._curves(results).items()
            for seed, curve in of_seeds.items()
        ]

    def checks(self, results: Results) -> list[Check]:
        runs, sizes = self.finished(results).values(), list(self._curves(results))
        logarithms = np.log(sizes)
        slopes, ceilings = (
            group_by_seed(runs, lambda run: curve_of(run).a),
            group_by_seed(runs, lambda run: curve_of(run).ceiling),
        )
        reason = (
            "Each size has a warm start of its own, and its share of right answers moves the curve"
            " more than the size."
        )
        return [
            *(
                correlated(
                    f"{label} is linear in log size",
                    # Whether it rises or falls is the data's; a straight line it is either way.
                    [
                        (logarithms * np.sign(np.polyfit(logarithms, row, 1)[0]), row)
                        for row in of_seeds
                    ],
                    bound=0.8,
                    reason=reason,
                )
                for label, of_seeds in (("a", slopes), ("ceiling b - a", ceilings))
            ),
            trend(
                "larger models have a higher ceiling", sizes, ceilings, rising=True, reason=reason
            ),
        ]
