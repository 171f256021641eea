"""What the runs of `hold_plan` come to: how near the target, what reward, how much was clipped; and what is asked of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from isentrope_trainer.experiments.recorded_runs import RecordedRun
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, REWARD_MEAN

SETTLED_FROM = 50
"""The first step that counts: until then the entropy is on its way to the target."""
ENDS = 20
"""Steps averaged at the end of a run."""
LARGEST_DEVIATION = 0.06
"""Mean absolute deviation from the target, as a share of it, that we hold ourselves to."""
SMALLEST_REWARD = 0.95
"""Of the best fixed thresholds' reward at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFigures:
    """What a run comes to."""

    seed: int
    steps: int
    deviation: float | None
    """Mean |H - H*| / H* from step SETTLED_FROM on; None without a target."""
    offset: float | None
    """Mean (H - H*) / H* over the same steps: what of the deviation is no noise."""
    furthest: float | None
    """The largest |H - H*| / H* over the same steps, of an average over five."""
    entropy_end: float
    """In nats."""
    reward_end: float
    clip_fraction: float
    states: Mapping[str, int]
    """Steps in each state of the controller."""


def hold_figures(run: RecordedRun, target: float | None) -> HoldFigures:
    """
    Args:
        target: H* in nats; None: the run has none.
    """
    entropies = run.column(ENTROPY_MEAN)
    settled = [entropy for step, entropy in zip(run.steps, entropies, strict=True) if step.step >= SETTLED_FROM]
    return HoldFigures(
        seed=run.recipe["config"]["seed"],
        steps=len(run.steps),
        deviation=None if target is None else fmean(abs(entropy - target) for entropy in settled) / target,
        offset=None if target is None else fmean(settled) / target - 1,
        furthest=None if target is None else max(abs(mean - target) for mean in running_means(settled, 5)) / target,
        entropy_end=fmean(entropies[-ENDS:]),
        reward_end=fmean(run.column(REWARD_MEAN)[-ENDS:]),
        clip_fraction=fmean(step.scalars.get(CLIP_FRACTION, 0.0) for step in run.steps),
        states=Counter(step.labels.get("hold/state", "none") for step in run.steps),
    )


def running_means(values: Sequence[float], count: int) -> list[float]:
    """Of `count` neighbours each; one shorter for each beyond the first."""
    return [fmean(values[start : start + count]) for start in range(len(values) - count + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One rule at one target, over all seeds that were planned."""

    name: str
    rule: str
    planned: int
    figures: tuple[HoldFigures, ...]
    """Of the runs that are finished."""

    @property
    def reward_end(self) -> float | None:
        return fmean(figures.reward_end for figures in self.figures) if self.figures else None


def best_fixed_reward(rows: Sequence[TableRow]) -> float | None:
    """At the end, of the fixed thresholds that earned most over those of their seeds that are finished."""
    rewards = [row.reward_end for row in rows if row.rule == "fixed" and row.reward_end is not None]
    return max(rewards, default=None)


def markdown_table(rows: Sequence[TableRow]) -> str:
    """All rows; a figure of several seeds stands as their mean, with each seed's in brackets where it is asked about."""
    best = best_fixed_reward(rows)
    heads = ["", "seeds", "mean deviation", "offset", "furthest", "tokens clipped", "entropy at the end"]
    heads += ["reward at the end", "of the best fixed"]
    lines = [f"| {' | '.join(heads)} |", f"{'|---' * len(heads)}|"]
    return "\n".join([*lines, *(_line(row, best) for row in rows)])


def _line(row: TableRow, best: float | None) -> str:
    cells = [row.name, f"{len(row.figures)} of {row.planned}"]
    if not row.figures:
        return f"| {' | '.join(cells)} | " + " | ".join(["missing"] + [""] * 6) + " |"
    for name in ("deviation", "offset", "furthest"):
        values = [value for figures in row.figures if (value := getattr(figures, name)) is not None]
        cells.append(_shares(values, each=name == "deviation", signed=name == "offset") if values else "")
    cells.append(_shares([figures.clip_fraction for figures in row.figures], each=False, signed=False))
    cells.append(f"{fmean(figures.entropy_end for figures in row.figures):.3f}")
    reward = row.reward_end
    assert reward is not None, "there are figures"
    cells.append(f"{reward:.3f}")
    cells.append("" if best is None else f"{100 * reward / best:.0f} %")
    return f"| {' | '.join(cells)} |"


def _shares(values: Sequence[float], *, each: bool, signed: bool) -> str:
    text = f"{100 * fmean(values):{'+' if signed else ''}.1f} %"
    if each and len(values) > 1:
        text += f" ({', '.join(f'{100 * value:.1f}' for value in values)})"
    return text


def missed(rows: Sequence[TableRow]) -> list[str]:
    """What is asked of held runs and not met by those that are finished, in sentences."""
    best = best_fixed_reward(rows)
    sentences = []
    for row in rows:
        if row.rule != "hold":
            continue
        sentences += [
            f"{row.name}, seed {figures.seed}: deviation {figures.deviation:.1%}, at most {LARGEST_DEVIATION:.0%} is asked."
            for figures in row.figures
            if figures.deviation is not None and figures.deviation > LARGEST_DEVIATION
        ]
        if best is not None and row.reward_end is not None and row.reward_end < SMALLEST_REWARD * best:
            sentences.append(
                f"{row.name}: reward {row.reward_end:.3f}, at least {SMALLEST_REWARD * best:.3f} is asked."
            )
    return sentences
