"""Records the run that `isentrope demo --replay` shows: SmolLM2-135M-Instruct, whose entropy
collapses until its own alert's suggestion is followed.

    python -m isentrope_papers.record

It trains as `isentrope demo --llm --hard` does, and the control goes the probe's own way: asked for
between two steps, applied at the next, acknowledged with its report. Another CPU records other last
digits."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer import smollm2
from isentrope_trainer.language_model_run import USED, train_language_model
from isentrope_trainer.loop import StepResult
from isentrope_trainer.recording import SHIPPED, Recording, write_recording
from isentrope_trainer.settings import HARD_LANGUAGE_MODEL, TrainingConfig
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.metrics import PROBE_DROPPED_REPORTS
from isentrope_wire.reports import ControlSnapshot, RunStarted, StepReport


def record(folder: Path, config: TrainingConfig) -> Recording:
    """Train the model of a folder; the first suggestion that an alert makes is pushed after the
    step that raised it."""
    transport, began = InMemoryTransport(), time.time()
    pushed: list[ControlSnapshot] = []

    def push(probe: isentrope.Probe, result: StepResult) -> None:
        alerts = (alert for report in _reports(transport) for alert in report.alerts)
        cure = next((alert.suggestion for alert in alerts if alert.suggestion is not None), None)
        if cure is not None and not pushed:
            pushed.append(
                ControlSnapshot(version=1, control=cure, author="owner", requested_at=time.time())
            )
            transport.set_control(pushed[0])

    start = isentrope.Control()
    train_language_model(
        folder, config, start, name="recording", project="demo", follow=push, transport=transport
    )
    run = RunStarted(
        run_id="recording",
        incarnation="recording",
        rank=0,
        world_size=1,
        name=f"{folder.name} (recording)",
        project="demo",
        started_at=began,
        probe_version=isentrope.__version__,
        config={"recording": "a run that was trained earlier, shown again", "model": folder.name}
        | {name: getattr(config, name) for name in USED},
        tags=("recording",),
        capabilities=CAPABILITIES,
        planned_steps=config.steps,
        initial_control=ControlSnapshot(
            version=0, control=start, author="trainer", requested_at=began
        ),
    )
    return Recording(run, tuple(pushed), tuple(map(_drop_delivery, _reports(transport))))


def _reports(transport: InMemoryTransport) -> list[StepReport]:
    return [message for message in transport.messages if isinstance(message, StepReport)]


def _drop_delivery(report: StepReport) -> StepReport:
    """How reports are delivered is a matter of the replay."""
    scalars = {
        name: value for name, value in report.scalars.items() if name != PROBE_DROPPED_REPORTS
    }
    return dataclasses.replace(report, scalars=scalars)


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=SHIPPED,
    help="[default: in the package]",
)
@click.option("--steps", default=100, show_default=True, help="Optimiser updates.")
def main(out: Path, steps: int) -> None:
    """Train the language model for a quarter of an hour, and write down what its probe reports."""
    config = dataclasses.replace(HARD_LANGUAGE_MODEL, steps=steps)
    write_recording(record(smollm2.ensure(), config), out)
    click.echo(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
