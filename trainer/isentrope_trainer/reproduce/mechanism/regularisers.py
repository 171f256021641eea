"""Fig. 9 and 10: an entropy bonus and a KL term to the reference, the usual means against entropy collapse."""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_trainer.reproduce.drawing import Picture, courses, panels
from isentrope_trainer.reproduce.evidence import higher, trend
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, by_seed
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

BONUSES = (0.0, 0.001, 0.01, 0.03)
DIVERGENCES = (0.0, 0.01, 0.05, 0.2)


class Regularisers(Figure):
    name = "mechanism-9"
    paper = MECHANISM
    number = "Fig. 9 and 10"
    title = "an entropy bonus, and a KL term to the reference"
    claim = (
        "An entropy bonus is sensitive to its coefficient: a small one changes little, a larger one makes the entropy explode; a KL "
        "term keeps the entropy up, but not the reward. Neither beats the run without."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            **{f"bonus {value:g}": plan.run(loss=LossConfig(entropy_coefficient=value)) for value in BONUSES},
            **{f"KL {value:g}": plan.run(loss=LossConfig(kl_coefficient=value)) for value in DIVERGENCES},
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 2)
        for row, (kind, title) in enumerate((("bonus", "entropy bonus"), ("KL", "KL to the reference"))):
            shown = {label: runs for label, runs in found.items() if label.startswith(kind)}
            for panel, metric, unit in zip(
                axes[2 * row : 2 * row + 2], (ENTROPY_MEAN, REWARD_MEAN), ("entropy, nats", "reward"), strict=True
            ):
                courses(panel, shown, metric, unit)
                panel.set_title(title)
            axes[2 * row].legend()
        return picture

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)

        def ends(kind: str, values: tuple[float, ...], metric: str) -> list[list[float]]:
            """[seeds][values]."""
            return by_seed([found[f"{kind} {value:g}"] for value in values], lambda run: run.end(metric))

        bonus, divergence = ends("bonus", BONUSES, ENTROPY_MEAN), ends("KL", DIVERGENCES, ENTROPY_MEAN)
        starts = [run.start(ENTROPY_MEAN) for run in found[f"bonus {BONUSES[-1]:g}"]]
        of_bonus, of_divergence = ends("bonus", BONUSES, REWARD_MEAN), ends("KL", DIVERGENCES, REWARD_MEAN)
        return [
            trend("the larger the bonus, the higher the entropy ends", BONUSES, bonus, rising=True, unit="nats"),
            higher(
                f"a bonus of {BONUSES[-1]:g} lifts the entropy above its start",
                [row[-1] for row in bonus],
                starts,
                unit="nats",
                reason="These runs are short, and rewards hold the entropy down as long as there is something to learn.",
            ),
            trend(
                "the larger the KL term, the higher the entropy ends", DIVERGENCES, divergence, rising=True, unit="nats"
            ),
            higher(
                "the largest KL term costs reward",
                [row[0] for row in of_divergence],
                [row[-1] for row in of_divergence],
                reason="Noise of the reward at this size.",
            ),
            higher(
                "the largest bonus costs reward",
                [row[0] for row in of_bonus],
                [row[-1] for row in of_bonus],
                reason="Noise of the reward at this size.",
            ),
        ]


FIGURES = (Regularisers(),)
