"""Records the run that `isentrope demo --replay` shows: the reference trainer, whose entropy collapses until it is held.

    python -m isentrope_trainer.record

It trains as `isentrope demo` does, and the control goes the probe's own way: asked for between two steps, applied at the
next, acknowledged with its report. Another CPU records other last digits.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.loop import StepResult
from isentrope_trainer.models.warm_start import WarmStartConfig
from isentrope_trainer.recording import SHIPPED, Recording, write_recording
from isentrope_trainer.reference_run import shown_settings, train_reference_policy
from isentrope_trainer.settings import PolicyConfig, TrainingConfig
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.metrics import PROBE_DROPPED_REPORTS
from isentrope_wire.reports import ControlSnapshot, RunStarted, StepReport

CURE = isentrope.Control(hold={"target_entropy": 0.3}, reason="the entropy has lost two thirds")
"""Half of what the run begins with, in nats."""


def record(
    config: TrainingConfig,
    cure_after: int,
    policy_config: PolicyConfig = PolicyConfig(),  # noqa: B008  (frozen)
    warm_start: WarmStartConfig = WarmStartConfig(),  # noqa: B008  (frozen)
) -> Recording:
    """Train the reference policy, and push `CURE` once `cure_after` steps are made."""
    transport, began = InMemoryTransport(), time.time()
    cure = ControlSnapshot(version=1, control=CURE, author="owner", requested_at=began)

    def push(probe: isentrope.Probe, result: StepResult) -> None:
        if result.step == cure_after:
            transport.set_control(cure)

    start = isentrope.Control()
    train_reference_policy(
        config, start, policy_config=policy_config, warm_start=warm_start, transport=transport, follow=push
    )
    run = RunStarted(
        run_id="recording",
        incarnation="recording",
        rank=0,
        world_size=1,
        name="countdown (recording)",
        project="demo",
        started_at=began,
        probe_version=isentrope.__version__,
        config={"recording": "a run that was trained earlier, shown again"}
        | shown_settings(config, policy_config, warm_start),
        tags=("recording",),
        capabilities=CAPABILITIES,
        planned_steps=config.steps,
        initial_control=ControlSnapshot(version=0, control=start, author="trainer", requested_at=began),
    )
    reports = [message for message in transport.messages if isinstance(message, StepReport)]
    return Recording(run, (cure,), tuple(map(_without_delivery, reports)))


def _without_delivery(report: StepReport) -> StepReport:
    """How reports are delivered is a matter of the replay."""
    scalars = {name: value for name, value in report.scalars.items() if name != PROBE_DROPPED_REPORTS}
    return dataclasses.replace(report, scalars=scalars)


@click.command()
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=SHIPPED, help="[default: in the package]"
)
@click.option("--steps", default=200, show_default=True, help="Optimiser updates.")
@click.option("--cure-after", default=80, show_default=True, help="Steps before the control is pushed.")
def main(out: Path, steps: int, cure_after: int) -> None:
    """Train the reference policy for some minutes, and write down what its probe reports."""
    write_recording(record(TrainingConfig(steps=steps), cure_after), out)
    click.echo(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
