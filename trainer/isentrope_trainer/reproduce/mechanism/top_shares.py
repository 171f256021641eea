"""Table 1: how the tokens' covariances are distributed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isentrope_trainer.reproduce.drawing import against, panels
from isentrope_trainer.reproduce.evidence import at_least
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.settings import Plan, RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ARM = "GRPO"
SHARES = {share: f"covariance/top_{str(share).replace('.', '_')}" for share in (0.02, 0.2, 2, 20, 50, 100)}
"""Percent of the tokens -> the mean of their covariances."""


class TopShares(Figure):
    name = "mechanism-table-1"
    paper = MECHANISM
    number = "Table 1"
    title = "covariance of the top tokens"
    claim = "A few tokens have covariances far above the mean: the top 0.2 % hundreds of times as much as all tokens."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ARM: plan.run()}

    def draw(self, results: Results) -> Picture:
        picture, (panel,) = panels(1, 1)
        runs = results.runs(self.arms(results.plan)[ARM])
        shown = [share for share, metric in SHARES.items() if metric in runs[0].names]
        against(panel, shown, [[run.mean(SHARES[share]) for run in runs] for share in shown], label="", index=1)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("top tokens, %")
        panel.set_ylabel("mean covariance, nats")
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {"seed": run.seed}
            | {f"top_{share}_percent": run.mean(metric) for share, metric in SHARES.items() if metric in run.names}
            for run in results.runs(self.arms(results.plan)[ARM])
        ]

    def checks(self, results: Results) -> list[Check]:
        runs = results.runs(self.arms(results.plan)[ARM])
        return [
            at_least(
                f"the top {share} % have more than {times} times the mean of all",
                [run.mean(SHARES[share]) / abs(run.mean(SHARES[100])) for run in runs],
                times,
                unit="times",
                reason="Answers are short and the vocabulary small: a token's log-prob can't be as far from the mean as in a large model.",
            )
            for share, times in ((2, 10), (0.2, 100))
        ]


FIGURES = (TopShares(),)
