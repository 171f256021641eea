"""A held entropy beside fixed thresholds, an adaptive entropy bonus and a run left to itself: deviation and reward.

    python -m isentrope_trainer.figures.hold_target --out DIR

Trains every run of `planned_runs` that DIR does not have yet, each from the same warm start: about 30 runs of four
minutes on two quiet cores. It may be killed and started again, and two of it may share DIR; a file deleted from DIR is
trained again. Then writes `hold_target.md`, the table, and `hold_target.svg`, the picture, of what is there. Ends with
status 1 when a run is missing or a held one misses what is asked of it.

Every rule runs with every seed (`planned_runs`):

- vanilla: no method; the targets are shares of its early level (`isentrope_wire.metrics`)
- fixed thresholds: pushed once and left
- hold: the thresholds moved from step to step, at each target
- adaptive bonus: an entropy bonus whose coefficient follows the entropy, at each target

The table has deviation from the target, reward and clip fraction (`hold_figures`); the picture entropy and reward of every rule
at every target (`write_picture`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import isentrope
from isentrope_trainer.figures.recorded_runs import Recipe, RecordedRun, record, recorded
from isentrope_trainer.reference_run import THREADS
from isentrope_trainer.settings import AdaptiveEntropyConfig, TrainingConfig
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, REWARD_MEAN, EarlyLevel

SHARES = (0.5, 0.75, 0.25, 0.1)
"""Targets, as shares of the early level; in the order in which they are run."""
FIXED_THRESHOLDS = (("decreasing", 2.0), ("decreasing", 3.0), ("decreasing", 1.0))
"""Scope and mu of Clip_V. At 2 the entropy stays near 70 % of its start; at 1 it explodes; left to itself is mu without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run, and what it is judged by."""

    rule: str
    """vanilla, fixed, hold or adaptive."""
    recipe: Recipe
    target_entropy: float | None = None
    """In nats."""
    share: float | None = None
    """Of the early level, that the target is."""


def planned_runs(folder: Path, *, steps: int, seeds: Sequence[int]) -> list[PlannedRun]:
    """What can be run now: runs with a target are added once the vanilla run of their seed is finished.

    Args:
        folder: where finished runs are kept.
    """
    configs = {seed: TrainingConfig(steps=steps, seed=seed) for seed in seeds}
    vanilla = {seed: Recipe(name="vanilla", config=config) for seed, config in configs.items()}
    runs = [PlannedRun(rule="vanilla", recipe=recipe) for recipe in vanilla.values()]
    starts = {seed: recorded(recipe, folder) for seed, recipe in vanilla.items()}
    for share in SHARES:
        for seed, start in starts.items():
            if start is not None:
                runs += _with_target(configs[seed], start, share)
    runs += [fixed_run(config, scope, mu) for scope, mu in FIXED_THRESHOLDS for config in configs.values()]
    return runs


def row_names() -> list[tuple[str, str]]:
    """Every name that a planned run can have, and its rule."""
    names = [("vanilla", "vanilla")]
    names += [(_fixed_name(scope, mu), "fixed") for scope, mu in FIXED_THRESHOLDS]
    shares = sorted(SHARES, reverse=True)
    return names + [(f"{rule}-{share:.0%}", rule) for rule in ("hold", "adaptive") for share in shares]


def fixed_run(config: TrainingConfig, scope: str, mu: float) -> PlannedRun:
    control = isentrope.Control(method="clip_v", mu_low=mu, mu_high=mu, scope=scope)
    return PlannedRun(rule="fixed", recipe=Recipe(name=_fixed_name(scope, mu), config=config, control=control))


def _fixed_name(scope: str, mu: float) -> str:
    return f"clip_v-{scope}-{mu:g}"


def _with_target(config: TrainingConfig, start: RecordedRun, share: float) -> list[PlannedRun]:
    target = share * early_level(start)
    held = Recipe(name=f"hold-{share:.0%}", config=config, control=isentrope.Control(hold={"target_share": share}))
    bonus = AdaptiveEntropyConfig(target_entropy=target)
    adaptive = Recipe(name=f"adaptive-{share:.0%}", config=replace(config, adaptive_entropy=bonus))
    return [
        PlannedRun(rule=rule, recipe=recipe, target_entropy=target, share=share)
        for rule, recipe in (("hold", held), ("adaptive", adaptive))
    ]


def early_level(run: RecordedRun) -> float:
    """What the shares are of, in nats."""
    early = EarlyLevel()
    for entropy in run.column(ENTROPY_MEAN):
        early.add(entropy)
    assert early.level is not None, "a run has more steps than it takes"
    return early.level


SETTLED_FROM = 50
"""The first step that counts, or the one at which the target is reached where that is later."""
REACHED = 0.1
"""Share of the target within which a mean over AVERAGED steps must lie for the target to be reached."""
AVERAGED = 5
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
    reached: int | None
    """The step at which the target was reached; None without a target, and where it was not."""
    deviation: float | None
    """Mean |H - H*| / H* over the steps that count; None without a target."""
    offset: float | None
    """Mean (H - H*) / H* over the same steps: what of the deviation is no noise."""
    furthest: float | None
    """The largest |H - H*| / H* over the same steps, of an average over AVERAGED."""
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
    reached = None if target is None else _reached(run, target)
    begins = max(SETTLED_FROM, reached or 0)
    settled = [entropy for step, entropy in zip(run.steps, entropies, strict=True) if step.step >= begins]
    return HoldFigures(
        seed=run.recipe["config"]["seed"],
        steps=len(run.steps),
        reached=reached,
        deviation=None if target is None else fmean(abs(entropy - target) for entropy in settled) / target,
        offset=None if target is None else fmean(settled) / target - 1,
        furthest=None
        if target is None
        else max(abs(mean - target) for mean in running_means(settled, AVERAGED)) / target,
        entropy_end=fmean(entropies[-ENDS:]),
        reward_end=fmean(run.column(REWARD_MEAN)[-ENDS:]),
        clip_fraction=fmean(step.scalars.get(CLIP_FRACTION, 0.0) for step in run.steps),
        states=Counter(step.labels.get("hold/state", "none") for step in run.steps),
    )


def _reached(run: RecordedRun, target: float) -> int | None:
    means = running_means(run.column(ENTROPY_MEAN), AVERAGED)
    near = (
        step for step, mean in zip(run.steps[AVERAGED - 1 :], means, strict=True) if abs(mean / target - 1) <= REACHED
    )
    return next((step.step for step in near), None)


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
    heads = [
        "",
        "seeds",
        "reached at step",
        "mean deviation",
        "offset",
        "furthest",
        "tokens clipped",
        "entropy at the end",
    ]
    heads += ["reward at the end", "of the best fixed"]
    lines = [f"| {' | '.join(heads)} |", f"{'|---' * len(heads)}|"]
    return "\n".join([*lines, *(_line(row, best) for row in rows)])


def _line(row: TableRow, best: float | None) -> str:
    cells = [row.name, f"{len(row.figures)} of {row.planned}"]
    if not row.figures:
        return f"| {' | '.join(cells)} | " + " | ".join(["missing"] + [""] * 7) + " |"
    reached = [str(figures.reached or "never") for figures in row.figures if figures.deviation is not None]
    cells.append(", ".join(reached))
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


COLOURS = {"hold": "#4456c8", "adaptive": "#d96c1c", "vanilla": "#94a3b8"}
NAMES = {"hold": "hold", "adaptive": "adaptive entropy bonus", "vanilla": "left to itself"}
REWARD_WINDOW = 10
"""Steps averaged in the reward's lines."""

Finished = Sequence[tuple[PlannedRun, RecordedRun]]


def write_picture(finished: Finished, path: Path) -> None:
    """One row of panels per target, the highest first; every seed is a line."""
    shares = sorted(SHARES, reverse=True)
    figure = Figure(figsize=(10, 3 * len(shares)), layout="constrained")
    panels = figure.subplots(len(shares), 2, sharex=True, squeeze=False)
    for share, (entropy_panel, reward_panel) in zip(shares, panels, strict=True):
        shown = [pair for pair in finished if pair[0].share == share or pair[0].rule == "vanilla"]
        _draw_entropies(entropy_panel, shown, share)
        _draw_rewards(reward_panel, shown)
    for panel in panels[-1]:
        panel.set_xlabel("step")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without date and chance, the same runs give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hold"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_entropies(panel: Axes, shown: Finished, share: float) -> None:
    panel.axhspan(share * (1 - LARGEST_DEVIATION), share * (1 + LARGEST_DEVIATION), color="#4456c8", alpha=0.12, lw=0)
    panel.axhline(share, color="#1b2130", lw=0.8, ls="--", label="target, ± 6 %")
    panel.axvline(SETTLED_FROM, color="#94a3b8", lw=0.6, ls=":")
    for planned, run in _behind_first(shown):
        entropies = run.column(ENTROPY_MEAN)
        level = early_level(run)
        relative = [entropy / level for entropy in entropies]
        panel.plot([step.step for step in run.steps], relative, **_style(planned, panel))
    panel.set_ylabel(f"entropy / early level\ntarget {share:.0%}")
    panel.set_ylim(bottom=0)


def _draw_rewards(panel: Axes, shown: Finished) -> None:
    for planned, run in _behind_first(shown):
        rewards = running_means(run.column(REWARD_MEAN), REWARD_WINDOW)
        steps = [step.step for step in run.steps][REWARD_WINDOW - 1 :]
        panel.plot(steps, rewards, **_style(planned, panel))
    panel.set_ylabel(f"reward, mean of {REWARD_WINDOW} steps")


def _behind_first(shown: Finished) -> Finished:
    """What others are compared with is drawn below them."""
    return sorted(shown, key=lambda pair: list(reversed(COLOURS)).index(pair[0].rule))


def _style(planned: PlannedRun, panel: Axes) -> dict[str, Any]:
    name = NAMES[planned.rule]
    named = name in panel.get_legend_handles_labels()[1]
    return {"color": COLOURS[planned.rule], "lw": 1.0, "label": None if named else name}


def train_missing(folder: Path, *, steps: int, seeds: tuple[int, ...], only: tuple[str, ...], threads: int) -> None:
    """Every planned run that is not finished, one after the other.

    Args:
        only: names of runs, such as `hold-75%`; empty: all.
    """
    tried: set[Path] = set()
    # A finished vanilla run adds the runs with its targets to the plan.
    while left := [run for run in planned_runs(folder, steps=steps, seeds=seeds) if _untried(run, folder, only, tried)]:
        tried.add(left[0].recipe.path(folder))
        click.echo(f"{left[0].recipe.name}, seed {left[0].recipe.config.seed}", err=True)
        record(left[0].recipe, folder, threads=threads)


def _untried(run: PlannedRun, folder: Path, only: tuple[str, ...], tried: set[Path]) -> bool:
    path = run.recipe.path(folder)
    return path not in tried and not path.exists() and (not only or run.recipe.name in only)


def finished_runs(folder: Path, *, steps: int, seeds: tuple[int, ...]) -> list[tuple[PlannedRun, RecordedRun]]:
    """The planned runs that are there."""
    plan = planned_runs(folder, steps=steps, seeds=seeds)
    return [(run, found) for run in plan if (found := recorded(run.recipe, folder)) is not None]


def table_rows(finished: list[tuple[PlannedRun, RecordedRun]], seeds: int) -> list[TableRow]:
    """One for each rule and target, also where no run is there yet."""
    return [
        TableRow(
            name=name,
            rule=rule,
            planned=seeds,
            figures=tuple(
                hold_figures(run, planned.target_entropy) for planned, run in finished if planned.recipe.name == name
            ),
        )
        for name, rule in row_names()
    ]


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where runs are kept.")
@click.option("--steps", type=click.IntRange(min=SETTLED_FROM + ENDS), default=200, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Seeds 0, 1, ...")
@click.option("--only", multiple=True, metavar="NAME", help="Train these alone, e.g. vanilla or hold-75%.")
@click.option("--threads", type=click.IntRange(min=1), default=THREADS, show_default=True, help="Torch's.")
@click.option("--table-only", is_flag=True, help="Train nothing.")
def main(out: Path, steps: int, seeds: int, only: tuple[str, ...], threads: int, table_only: bool) -> None:
    """Train what is missing, and write the table and the picture."""
    counted = tuple(range(seeds))
    if not table_only:
        train_missing(out, steps=steps, seeds=counted, only=only, threads=threads)
    finished = finished_runs(out, steps=steps, seeds=counted)
    rows = table_rows(finished, seeds)
    table = markdown_table(rows)
    click.echo(table)
    out.mkdir(parents=True, exist_ok=True)
    (out / "hold_target.md").write_text(table + "\n", encoding="utf-8")
    write_picture(finished, out / "hold_target.svg")
    sentences = missed(rows)
    if any(len(row.figures) < row.planned for row in rows):
        sentences.append("Runs are missing.")
    for sentence in sentences:
        click.echo(sentence, err=True)
    sys.exit(1 if sentences else 0)


if __name__ == "__main__":
    main()
