"""Which runs show what holding an entropy is worth: every rule with every seed, from the same warm start.

- vanilla: left to itself; the entropy of its first step is what the targets are shares of
- fixed thresholds: what a person would push once and leave
- hold: the thresholds moved from step to step, at each target
- adaptive bonus: an entropy bonus whose coefficient follows the entropy, at each target
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import isentrope
from isentrope_trainer.experiments.recorded_runs import Recipe, RecordedRun, recorded
from isentrope_trainer.settings import AdaptiveEntropyConfig, TrainingConfig
from isentrope_wire.metrics import ENTROPY_MEAN

SHARES = (0.5, 0.75, 0.25)
"""Targets, as shares of the entropy of step 1; in the order in which they are run."""
LARGEST_CHANGES = {0.25: 0.1}
"""Of a step, as a share of the target, where hold's default of 0.05 would bring the entropy there long after the step from
which it counts: a quarter of the start is 30 such steps below where the calibration is ready, and at 0.05 it took 65."""
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
    """Of the entropy of step 1, that the target is."""


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
    target = share * start.steps[0].scalars[ENTROPY_MEAN]
    hold: dict[str, float] = {"target_entropy": target}
    if share in LARGEST_CHANGES:
        hold["max_change_per_step"] = LARGEST_CHANGES[share] * target
    held = Recipe(name=f"hold-{share:.0%}", config=config, control=isentrope.Control(hold=hold))
    bonus = AdaptiveEntropyConfig(target_entropy=target)
    adaptive = Recipe(name=f"adaptive-{share:.0%}", config=replace(config, adaptive_entropy=bonus))
    return [
        PlannedRun(rule=rule, recipe=recipe, target_entropy=target, share=share)
        for rule, recipe in (("hold", held), ("adaptive", adaptive))
    ]
