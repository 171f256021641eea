"""Entropy and reward of every rule at every target, side by side, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isentrope_trainer.experiments.hold_figures import LARGEST_DEVIATION, SETTLED_FROM, running_means
from isentrope_trainer.experiments.hold_plan import SHARES, PlannedRun
from isentrope_trainer.experiments.recorded_runs import RecordedRun
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

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
        relative = [entropy / entropies[0] for entropy in entropies]
        panel.plot([step.step for step in run.steps], relative, **_style(planned, panel))
    panel.set_ylabel(f"entropy / that of step 1\ntarget {share:.0%}")
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
