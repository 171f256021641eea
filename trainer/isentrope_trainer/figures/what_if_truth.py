"""What-if against the truth: what a step's curve showed for random thresholds, and what the next step had under them.

    python -m isentrope_trainer.figures.what_if_truth [--pushes 20] [--steps 60] [--seed 0] [--out DIR]

Thresholds are drawn, asked about, and pushed; the step after that runs under them. The tokens of two steps differ, so
the next step need not have what was shown even where the curve is exact. What the tokens alone make different is printed
beside it: how far the unclipped unit prediction of one step lies from the next one's.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

import isentrope
from isentrope.transport import InMemoryTransport, MakeMessage
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.control import Method, Scope
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_UNIT_PREDICTED_CHANGE
from isentrope_wire.reports import ControlSnapshot, StepReport
from isentrope_wire.what_if import what_if

LOWEST_MU, HIGHEST_MU = 0.25, 4.0
"""Between which thresholds are drawn; further out hardly a token lies."""
AUTHOR = "what_if_truth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One question and its answer. Changes are unit predictions, in nats per unit gain."""

    step: int
    """That ran under the thresholds."""
    method: str
    mu_low: float
    mu_high: float
    scope: str
    shown_clip_fraction: float
    had_clip_fraction: float
    shown_change: float
    had_change: float
    own_clip_fraction: float
    """What the step's what-if curve gives for the step's own thresholds."""
    own_change: float
    unclipped_before: float
    unclipped_after: float
    """Of the step asked and of the step that ran under the thresholds: the same but for the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians over the pushes."""

    pushes: int
    clip_fraction_error: float
    """|shown - had| / had."""
    clip_fraction_points: float
    """|shown - had| in percentage points."""
    change_error: float
    """|shown - had| / |had|."""
    change_error_of_size: float
    """|shown - had|, as a share of the median |had|: small changes weigh as much as large ones."""
    tokens_alone: float
    """|before - after| of the unclipped unit prediction, as the same share: what no curve can know."""
    own_clip_fraction_error: float
    own_change_error: float
    """The same relative errors of the step's own curve: what bins and interpolation cost."""


class PushingTransport(InMemoryTransport):
    """After each report from `first` on, asks it about thresholds drawn at random, and pushes them."""

    def __init__(self, first: int, pushes: int, seed: int) -> None:
        super().__init__()
        self._first, self._left = first, pushes
        self._random = random.Random(seed)
        self._asked: tuple[isentrope.Control, StepReport] | None = None
        self.pushes: list[Push] = []

    def put(self, make: MakeMessage) -> bool:
        taken = super().put(make)
        report = self.messages[-1]
        if isinstance(report, StepReport):
            if self._asked is not None and report.control_version > 0:
                self.pushes.append(_compared(*self._asked, report))
            self._asked = None
            if report.step >= self._first and self._left and report.what_if is not None:
                self._left -= 1
                self._asked = (self._drawn(), report)
                self._push(self._asked[0])
        return taken

    def _drawn(self) -> isentrope.Control:
        return isentrope.Control(
            method=self._random.choice((Method.CLIP_B, Method.CLIP_V)),
            mu_low=self._random.uniform(LOWEST_MU, HIGHEST_MU),
            mu_high=self._random.uniform(LOWEST_MU, HIGHEST_MU),
            scope=self._random.choice(list(Scope)),
        )

    def _push(self, control: isentrope.Control) -> None:
        before = self.requested_control()
        version = 1 if before is None else before.version + 1
        self.set_control(ControlSnapshot(version=version, control=control, author=AUTHOR, requested_at=time.time()))


def figures(pushes: Sequence[Push]) -> Figures:
    """Of thresholds under which the next step clipped nothing there is no relative error: they are not counted in it."""
    clipping = [push for push in pushes if push.had_clip_fraction > 0]
    size = median(abs(push.had_change) for push in pushes)
    return Figures(
        pushes=len(pushes),
        clip_fraction_error=median(abs(push.shown_clip_fraction / push.had_clip_fraction - 1) for push in clipping),
        clip_fraction_points=median(100 * abs(push.shown_clip_fraction - push.had_clip_fraction) for push in pushes),
        change_error=median(abs(push.shown_change / push.had_change - 1) for push in pushes),
        change_error_of_size=median(abs(push.shown_change - push.had_change) for push in pushes) / size,
        tokens_alone=median(abs(push.unclipped_before - push.unclipped_after) for push in pushes) / size,
        own_clip_fraction_error=median(abs(push.own_clip_fraction / push.had_clip_fraction - 1) for push in clipping),
        own_change_error=median(abs(push.own_change / push.had_change - 1) for push in pushes),
    )


def table(found: Figures) -> str:
    """One figure a line."""
    return "\n".join(f"{name.replace('_', ' '):28}{value:.4g}" for name, value in asdict(found).items())


def _compared(control: isentrope.Control, before: StepReport, after: StepReport) -> Push:
    assert before.what_if is not None
    assert after.what_if is not None
    asked = (control.mu_low, control.mu_high, control.scope, control.method)
    shown, own = what_if(before.what_if, *asked), what_if(after.what_if, *asked)
    return Push(
        step=after.step,
        method=str(control.method),
        mu_low=control.mu_low or 0.0,
        mu_high=control.mu_high or 0.0,
        scope=str(control.scope),
        shown_clip_fraction=shown.clip_fraction,
        had_clip_fraction=after.scalars[CLIP_FRACTION],
        shown_change=shown.unit_predicted_change,
        had_change=after.scalars[ENTROPY_UNIT_PREDICTED_CHANGE],
        own_clip_fraction=own.clip_fraction,
        own_change=own.unit_predicted_change,
        unclipped_before=before.what_if.change_sum / before.what_if.tokens,
        unclipped_after=after.what_if.change_sum / after.what_if.tokens,
    )


@click.command()
@click.option("--pushes", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--steps", type=click.IntRange(min=2), default=60, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the run and of the thresholds.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for what_if_truth.json.")
def main(pushes: int, steps: int, seed: int, out: Path | None) -> None:
    """Push thresholds drawn at random, and compare what was shown with what came."""
    if pushes >= steps:
        raise click.UsageError(f"--pushes must be less than --steps, got {pushes} and {steps}: each takes a step.")
    transport = PushingTransport(first=steps - pushes, pushes=pushes, seed=seed)
    train_reference_policy(TrainingConfig(steps=steps, seed=seed), isentrope.Control(), transport=transport)
    found = figures(transport.pushes)
    click.echo(table(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        document = {"figures": asdict(found), "pushes": [asdict(push) for push in transport.pushes]}
        (out / "what_if_truth.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
