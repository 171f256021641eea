"""Fig. 3, Fig. 5 and App. D: what the scores of a batch say: their means, and their covariance with
the advantage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_papers.drawing import (
    Picture,
    averaged,
    course,
    courses,
    look,
    panels,
    smoothed,
)
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.evidence import check_at_least, correlated, ends_above, higher
from isentrope_papers.figure import Check, Figure, Results, Row, paired
from isentrope_papers.runs import Run, Series
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire import metrics

GRPO, CLIP_V = "GRPO", "Clip_V µ = 1"
USUAL_Z = 2.0
TOO_SMALL = "Tokens of one batch are not independent: the standard error is too small."
LATE = "The correlation is tested against 0; it was to exceed 0.3 before the first runs were seen."


def _size(run: Run, metric: str) -> float:
    return float(np.nanmean(np.abs(run.series(metric))))


def _share_within(run: Run) -> float:
    """Share of the steps whose mean S_c lies within two standard errors of 0."""
    return float(np.nanmean(np.abs(run.series(metrics.SCORE_SELF_CHECK_Z)) < USUAL_Z))


def pushed(run: Run) -> Series:
    """-Cov_B(A, S_c) of every step."""
    return -run.series(metrics.COVARIANCE_ADVANTAGE_SCORE)


def kept(run: Run) -> Series:
    """-Cov_B(A, S_c) of the tokens that clipping leaves, S_c taken from 0 on."""
    return run.series(metrics.ENTROPY_UNIT_PREDICTED_CHANGE)


class _OnPolicy(Figure):
    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {GRPO: plan.run(), CLIP_V: plan.run(clipping("clip_v"))}


class Centring(_OnPolicy):
    name = "dynamics-3"
    number = "Fig. 3"
    title = "batch means of S* and of S_c"
    claim = (
        "On-policy the centred score S_c = S* − E[S] has mean 0 over the tokens of a batch"
        " (Corollaries 1 and 2), while S* itself has not: with and without clipping."
    )

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2, height=2.6)
        for panel, letter, (label, runs) in zip(
            axes, "ab", self.finished(results).items(), strict=True
        ):
            course(
                panel, runs, metrics.SCORE_DISCRIMINATOR_MEAN, label="mean S*", index=2, smooth=1
            )
            course(
                panel, runs, metrics.SCORE_VOCAB_CENTERED_MEAN, label="mean S_c", index=1, smooth=1
            )
            panel.axhline(0, color="#888888", linewidth=0.6)
            panel.set(
                xlabel="step", ylabel="mean over the tokens, nats", title=f"({letter}) {label}"
            )
            panel.legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "size_of_mean_discriminator": _size(run, metrics.SCORE_DISCRIMINATOR_MEAN),
            "size_of_mean_centred": _size(run, metrics.SCORE_VOCAB_CENTERED_MEAN),
            "share_of_steps_within_2_standard_errors": _share_within(run),
        }

    def checks(self, results: Results) -> list[Check]:
        checks = []
        for label, runs in self.finished(results).items():
            checks += [
                higher(
                    f"{label}: |mean S*| is more than ten times |mean S_c|",
                    [_size(run, metrics.SCORE_DISCRIMINATOR_MEAN) for run in runs],
                    [10 * _size(run, metrics.SCORE_VOCAB_CENTERED_MEAN) for run in runs],
                    unit="nats (the second times ten)",
                    reason=(
                        "With few tokens a batch the mean of S_c scatters about 0 by its standard"
                        " error."
                    ),
                ),
                check_at_least(
                    f"{label}: mean S_c lies within 2 standard errors of 0 in nine of ten steps",
                    [_share_within(run) for run in runs],
                    0.9,
                    unit="of the steps",
                    reason=TOO_SMALL,
                ),
            ]
        return checks


class BatchCovariance(_OnPolicy):
    name = "dynamics-5"
    number = "Fig. 5"
    title = "−Cov_B(A, S_c) of a batch and the change of the entropy"
    claim = (
        "Over training −Cov_B(A, S_c) is mostly negative, so that a batch pushes the entropy down,"
        " and it goes with the change that is observed (Corollary 4); clipping takes the negative"
        " side away."
    )
    chosen_late = LATE

    def draw(self, results: Results) -> Picture:
        picture, (left, right) = panels(1, 2, height=2.6)
        found = self.finished(results)
        for index, (label, runs) in enumerate(found.items()):
            style = look(index)
            values = np.concatenate([kept(run) for run in runs])
            left.hist(
                values,
                bins=40,
                histtype="step",
                color=style.color,
                linestyle=style.dash,
                label=label,
            )
            change = np.mean([smoothed(averaged(pushed(run)), 5) for run in runs], axis=0)
            right.plot(
                runs[0].steps,
                change,
                color=style.color,
                linestyle=style.dash,
                label=f"{label}: −Cov, averaged",
            )
        left.axvline(0, color="#888888", linewidth=0.6)
        left.set(
            xlabel="−Cov_B(A, S_c) of the kept tokens, nats", ylabel="steps", title="(a) how often"
        )
        left.legend()
        right.axhline(0, color="#888888", linewidth=0.6)
        right.set(xlabel="step", ylabel="−Cov_B(A, S_c), nats", title="(b) over training")
        other = right.twinx()
        other.grid(visible=False)
        observed = np.mean(
            [smoothed(run.series(metrics.ENTROPY_OBSERVED_CHANGE), 5) for run in found[GRPO]],
            axis=0,
        )
        other.plot(
            found[GRPO][0].steps,
            observed,
            color="#0072B2",
            linestyle=":",
            label="GRPO: observed ΔH",
        )
        other.set_ylabel("observed ΔH, nats a step")
        other.spines.right.set_visible(True)
        lines = [*right.get_lines()[:2], *other.get_lines()]
        right.legend(
            lines, [str(line.get_label()) for line in lines], loc="lower right", fontsize=6
        )
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "arm": label,
                "seed": run.seed,
                "step": int(step),
                "minus_covariance": value,
                "observed_change": observed,
            }
            for label, runs in self.finished(results).items()
            for run in runs
            for step, value, observed in zip(
                run.steps, pushed(run), run.series(metrics.ENTROPY_OBSERVED_CHANGE), strict=True
            )
        ]

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        return [
            check_at_least(
                "GRPO: −Cov_B is negative in most steps",
                [float(np.mean(pushed(run) < 0)) for run in found[GRPO]],
                0.5,
                unit="of the steps",
                reason="Once the entropy has fallen, batches push it up about as often as down.",
            ),
            correlated(
                "GRPO: −Cov_B, averaged as AdamW does, goes with the observed change",
                [
                    (averaged(pushed(run)), run.series(metrics.ENTROPY_OBSERVED_CHANGE))
                    for run in found[GRPO]
                ],
                reason=(
                    "A batch of 512 short completions says little about the change of the policy."
                ),
            ),
            higher(
                "Clip_V at µ = 1: −Cov_B of the tokens that it keeps is nearer to 0 than GRPO's,"
                " mean of the steps",
                *paired(found[CLIP_V], found[GRPO], lambda run: float(np.nanmean(kept(run)))),
                unit="nats",
            ),
        ]


class OffPolicy(Figure):
    name = "dynamics-off-policy"
    number = "App. D"
    title = "several updates of one batch"
    claim = (
        "Off-policy the ratio-weighted score r S_c takes the place of S_c: its batch mean is 0"
        " (Corollary 2.1), its covariance with the advantage goes with the entropy's change"
        " (Corollaries 3.1 and 4.1), and clipping acts as on-policy."
    )
    chosen_late = LATE

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        controls = {GRPO: None, CLIP_V: clipping("clip_v")}
        return {
            f"{label}, off-policy": plan.run(control, **plan.several_updates)
            for label, control in controls.items()
        }

    def draw(self, results: Results) -> Picture:
        found = {label.split(",")[0]: runs for label, runs in self.finished(results).items()}
        picture, axes = panels(1, 3, height=2.4)
        courses(axes[0], found, metrics.ENTROPY_MEAN, "entropy, nats", smooth=9)
        courses(
            axes[1], found, metrics.SCORE_SELF_CHECK_Z, "mean r S_c,\nstandard errors", smooth=9
        )
        axes[0].set(xlabel="update", title="(a) entropy")
        axes[0].legend()
        axes[1].axhline(0, color="#888888", linewidth=0.6)
        axes[1].set(xlabel="update", title="(b) mean of r S_c")
        for run in found[GRPO]:
            axes[2].plot(
                averaged(pushed(run)),
                run.series(metrics.ENTROPY_OBSERVED_CHANGE),
                ".",
                color="#000000",
                markersize=2,
            )
        axes[2].locator_params(axis="x", nbins=4)
        axes[2].set(
            xlabel="−Cov_B(A, r S_c), averaged", ylabel="observed ΔH, nats", title="(c) GRPO"
        )
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "entropy_start": run.start(metrics.ENTROPY_MEAN),
            "entropy_end": run.end(metrics.ENTROPY_MEAN),
            "share_of_updates_within_2_standard_errors": _share_within(run),
            "mean_covariance": run.mean(metrics.COVARIANCE_ADVANTAGE_SCORE),
        }

    def checks(self, results: Results) -> list[Check]:
        runs, clipped = self.finished(results).values()
        return [
            check_at_least(
                "mean r S_c lies within 2 standard errors of 0 in nine of ten updates",
                [_share_within(run) for run in runs],
                0.9,
                unit="of the updates",
                reason=TOO_SMALL,
            ),
            correlated(
                "−Cov_B(A, r S_c), averaged as AdamW does, goes with the observed change",
                [
                    (averaged(pushed(run)), run.series(metrics.ENTROPY_OBSERVED_CHANGE))
                    for run in runs
                ],
                reason="Updates of a few prompts each: the covariance of one of them is noisy.",
            ),
            ends_above("Clip_V at µ = 1 ends above GRPO", clipped, runs),
        ]
