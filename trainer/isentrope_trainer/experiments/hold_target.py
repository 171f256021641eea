"""A held entropy beside one that is left to itself: same seed, same policy, the target a share of the entropy at the start.

    python -m isentrope_trainer.experiments.hold_target --share 0.75 --steps 200 --seed 0 --out DIR

Prints how far from its target the entropy was, on average, from step 50 on, and writes `hold_target.json` with the
figures and every step's scalars. Ends with status 1 when it was further away than we hold ourselves to.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import click

import isentrope
from isentrope.transport.in_memory import InMemoryTransport
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.messages import StepReport

SETTLED_FROM = 50
"""The first step that counts: until then the entropy is on its way to the target."""
LARGEST_DEVIATION = 0.06
"""Mean absolute deviation from the target, as a share of it, that we hold ourselves to."""
ENDS = 20
"""Steps averaged at the end of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFigures:
    """What a run comes to. Entropies in nats."""

    steps: int
    deviation: float
    """Mean |H - H*| / H* from step SETTLED_FROM on; of a run that is left to itself too, for comparison."""
    offset: float
    """Mean (H - H*) / H* over the same steps: what of the deviation is no noise."""
    entropy_end: float
    reward_end: float
    clip_fraction: float
    states: Mapping[str, int]
    """Steps in each state of the controller."""


def hold_figures(reports: Sequence[StepReport], target: float) -> HoldFigures:
    """Figures of one run.

    Args:
        reports: of all its steps, in order.
        target: H* in nats.
    """
    entropies = [report.scalars["entropy/mean"] for report in reports]
    settled = entropies[SETTLED_FROM:]
    return HoldFigures(
        steps=len(reports),
        deviation=fmean(abs(entropy - target) for entropy in settled) / target,
        offset=fmean(settled) / target - 1,
        entropy_end=fmean(entropies[-ENDS:]),
        reward_end=fmean(report.scalars["reward/mean"] for report in reports[-ENDS:]),
        clip_fraction=fmean(report.scalars["clip/fraction"] for report in reports),
        states=Counter(report.labels.get("hold/state", "none") for report in reports),
    )


def table(target: float, runs: Mapping[str, HoldFigures]) -> str:
    """The runs side by side."""
    lines = [f"{f'target {target:.4f} nats':24}" + "".join(f"{name:>28}" for name in runs)]
    for name in ("steps", "deviation", "offset", "entropy_end", "reward_end", "clip_fraction"):
        figures = [f"{getattr(run, name):.4g}" for run in runs.values()]
        lines.append(f"{name.replace('_', ' '):24}" + "".join(f"{figure:>28}" for figure in figures))
    states = [", ".join(f"{state} {count}" for state, count in run.states.items()) for run in runs.values()]
    return "\n".join([*lines, f"{'states':24}" + "".join(f"  {words:>26}" for words in states)])


def run_and_record(config: TrainingConfig, control: isentrope.Control) -> list[StepReport]:
    """Train the reference policy; the report of each step."""
    transport = InMemoryTransport()
    train_reference_policy(config, control, transport=transport)
    return [message for message in transport.messages if isinstance(message, StepReport)]


@click.command()
@click.option("--share", default=0.75, show_default=True, help="The target, as a share of the entropy of step 1.")
@click.option("--steps", type=click.IntRange(min=SETTLED_FROM + ENDS), default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for hold_target.json.")
def main(share: float, steps: int, seed: int, out: Path | None) -> None:
    """Run the policy left to itself, then held, and print how far from the target both were."""
    config = TrainingConfig(steps=steps, seed=seed)
    vanilla = run_and_record(config, isentrope.Control())
    target = share * vanilla[0].scalars["entropy/mean"]
    held = run_and_record(config, isentrope.Control(hold={"target_entropy": target}))
    runs = {"vanilla": hold_figures(vanilla, target), "held": hold_figures(held, target)}
    click.echo(table(target, runs))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        document = {
            "config": asdict(config),
            "share": share,
            "target_entropy": target,
            "figures": {name: asdict(figures) for name, figures in runs.items()},
            "reports": {
                name: [{"step": report.step} | dict(report.scalars) | dict(report.labels) for report in reports]
                for name, reports in (("vanilla", vanilla), ("held", held))
            },
        }
        (out / "hold_target.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.exit(0 if runs["held"].deviation <= LARGEST_DEVIATION else 1)


if __name__ == "__main__":
    main()
