"""What the probe adds to a step of the reference run, and how large its reports are.

    python -m isentrope_trainer.figures.step_cost [--steps 15] [--out DIR]

Loops of the same seed take turns, a step each, in one process: one with log-probs from plain torch and no probe, and
others under a probe that writes to a spool. CPU time of the whole process counts, so that what the writer's thread does
counts too, and other programs on the machine do not. Re-scoring is one more forward pass of the policy and has a row of
its own. Ratios are of medians.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import click
import torch
from torch import Tensor

import isentrope
from isentrope_trainer.loop import StepResult, train
from isentrope_trainer.models.family import PolicyConfig
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.warm_start import WarmStartConfig, warm_started_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_trainer.tasks.countdown import Countdown
from isentrope_wire.codec import encode_payload
from isentrope_wire.metrics import PROBE_RESCORE_SECONDS, PROBE_SECONDS, TIME_STEP_SECONDS

NOT_COUNTED = 3
"""First steps, in which memory is found and the calibration has no prediction."""
SETTLE_SECONDS = 0.3
"""After each step, for the writer's thread to end what the step gave it; counted with the step."""
HELD_ENTROPY = 0.5
"""In nats: soon reached, so that thresholds are moved in nearly all steps."""


class NoProbe:
    """Log-probs by plain torch, in the place of a probe that measures."""

    def score(self, logits: Tensor, token_ids: Tensor, temperature: float = 1.0, **_: Any) -> isentrope.TokenScores:
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        chosen = logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
        nothing = chosen.new_zeros(()).expand_as(chosen)
        return isentrope.TokenScores(chosen, nothing, nothing, nothing, nothing)

    def gate(self, scores: isentrope.TokenScores, *_: Any, **__: Any) -> Tensor:
        return scores.logprobs

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Dropped."""

    def step(self, *_: Any, **__: Any) -> None:
        """Nothing is reported."""

    def finish(self) -> None:
        """There is nothing to end."""


class WithoutRescoring:
    """A probe that is not asked what the update did."""

    def __init__(self, probe: isentrope.Probe) -> None:
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._probe, name)

    def step(self, step: int, optimizer: Any, rescore: object) -> None:
        self._probe.step(step, optimizer)


@dataclass(slots=True)
class Turns:
    """Lets a loop make one step at a time, and counts its CPU time."""

    seconds: list[float] = field(default_factory=list)
    own_shares: list[float] = field(default_factory=list)
    report_bytes: list[int] = field(default_factory=list)
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def step(self) -> None:
        """Called by the main thread."""
        started = time.process_time()
        self._go.release()
        self._done.acquire()
        time.sleep(SETTLE_SECONDS)
        self.seconds.append(time.process_time() - started)

    def run(self, loop: Callable[[Callable[[StepResult], None]], None]) -> None:
        """The body of the loop's thread."""
        self._go.acquire()
        loop(self._made)

    def _made(self, result: StepResult) -> None:
        self._done.release()
        self._go.acquire()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one way to run the loop."""

    seconds: float
    """Median CPU time of a step."""
    ratio: float
    """To the loop without a probe."""
    own_share: float | None
    """Median share of the step that the probe itself reports for the training thread, re-scoring apart; free of the
    noise between two loops. None where nothing is reported."""
    report_bytes: int | None
    """Of the largest report."""


def probes(home: Path) -> dict[str, Any]:
    """The ways to run it, the one without a probe first."""
    os.environ["ISENTROPE_HOME"] = str(home)

    def probe(name: str, control: isentrope.Control) -> isentrope.Probe:
        return isentrope.Probe(name, mode="offline", control=control, threshold_source="micro_batch")

    held = isentrope.Control(hold={"target_entropy": HELD_ENTROPY})
    return {
        "no probe": NoProbe(),
        "probe": WithoutRescoring(probe("alone", isentrope.Control())),
        "probe, re-scoring": probe("rescored", isentrope.Control()),
        "probe, re-scoring, an entropy held": probe("held", held),
    }


def costs(candidates: Mapping[str, Any], policy: Policy, config: TrainingConfig) -> dict[str, Cost]:
    """Let all of them make their steps in turn.

    Args:
        policy: each begins with a copy of it.
    """
    turns = {name: Turns() for name in candidates}
    for name, probe in candidates.items():
        loop = _loop(copy.deepcopy(policy), cast(isentrope.Probe, probe), config)
        threading.Thread(target=turns[name].run, args=(loop,), daemon=True).start()
    for _ in range(config.steps):
        for name, turn in turns.items():
            turn.step()
            latest = getattr(candidates[name], "latest", None)
            if latest is not None:
                turn.report_bytes.append(len(encode_payload(latest)))
                own, step = latest.scalars[PROBE_SECONDS], latest.scalars[TIME_STEP_SECONDS]
                turn.own_shares.append(own / (step + latest.scalars.get(PROBE_RESCORE_SECONDS, 0.0)))
    seconds = {name: median(turn.seconds[NOT_COUNTED:]) for name, turn in turns.items()}
    plain = next(iter(seconds.values()))
    return {
        name: Cost(
            seconds=seconds[name],
            ratio=seconds[name] / plain,
            own_share=median(turn.own_shares[NOT_COUNTED:]) if turn.own_shares else None,
            report_bytes=max(turn.report_bytes, default=None),
        )
        for name, turn in turns.items()
    }


def _loop(
    policy: Policy, probe: isentrope.Probe, config: TrainingConfig
) -> Callable[[Callable[[StepResult], None]], None]:
    return lambda made: train(policy, Countdown(config.seed), probe, config, on_step=made)


@click.command()
@click.option("--steps", type=click.IntRange(min=NOT_COUNTED + 2), default=15, show_default=True, help="Of each loop.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for step_cost.json.")
def main(steps: int, seed: int, out: Path | None) -> None:
    """Print CPU time of a step, its ratio to the loop without a probe, and the size of the largest report."""
    torch.set_num_threads(1)
    policy = warm_started_policy(Countdown(seed), PolicyConfig(), WarmStartConfig())
    with tempfile.TemporaryDirectory() as home:
        candidates = probes(Path(home))
        found = costs(candidates, policy, TrainingConfig(steps=steps, seed=seed))
        for probe in candidates.values():
            probe.finish()
    click.echo("| loop | CPU time of a step | ratio | own share | largest report |\n|---|---|---|---|---|")
    for name, cost in found.items():
        share = "" if cost.own_share is None else f"{cost.own_share:.1%}"
        size = "" if cost.report_bytes is None else f"{cost.report_bytes / 1024:.1f} KiB"
        click.echo(f"| {name} | {cost.seconds * 1e3:.0f} ms | {cost.ratio:.3f} | {share} | {size} |")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        document = {name: asdict(cost) for name, cost in found.items()}
        (out / "step_cost.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
