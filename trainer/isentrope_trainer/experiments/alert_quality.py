"""How early alerts come, and how often for nothing: on runs made of numbers, and on recorded ones.

    python -m isentrope_trainer.experiments.alert_quality --seeds 20 --recorded DIR --out DIR

Prints one table for each of the two, in Markdown, and with --out writes `alert_quality.json`. DIR of --recorded is what
another experiment kept its runs in (`recorded_runs.py`). Ends with status 1 when an alert of the runs made of numbers
came too late or too often for what we hold ourselves to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from isentrope.statistics.alerts import AlertWatch
from isentrope_trainer.experiments.alert_scenarios import LEVELS, Scenario, recorded, synthetic

KINDS = ("collapse", "explosion", "self_check", "prediction", "dead_knob", "zero_advantage")

MOST_FALSE_PER_1000_STEPS = 1.0
FEWEST_FORETOLD = 0.95
"""Share of the collapses and explosions that are said before they have arrived."""


@dataclass(frozen=True, slots=True)
class Said:
    """An alert, and what became of it."""

    kind: str
    scenario: str
    step: int
    verdict: str
    """`right`; `false`; `open` where the recording ends before what was foretold was due; `unjudged`."""
    lead: int | None = None
    """Steps from the alert to what it is about, below 0 when it came after; None where that did not come to pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one kind of alert comes to over many runs."""

    kind: str
    runs: int
    steps: int
    events: int
    """Runs in which what it is about came to pass."""
    told: int
    """Of those the ones it was said in: beforehand, where the kind foretells."""
    median_lead: float | None
    median_lead_share: float | None
    """The same as a share of the step at which it came to pass."""
    false: int
    open: int
    unjudged: int

    @property
    def false_per_1000_steps(self) -> float:
        return 1000 * self.false / self.steps


def judged(scenario: Scenario) -> list[Said]:
    """Every alert of a run."""
    watch, found = AlertWatch(), []
    for step, (scalars, labels) in enumerate(scenario.rows):
        for alert in watch.step(scalars, labels):
            left = alert.evidence.get("steps_left", 0.0)
            found.append(_said(scenario, alert.kind, step, left))
    return found


def _said(scenario: Scenario, kind: str, step: int, steps_left: float) -> Said:
    event = scenario.events.get(kind)
    if event is not None and (kind in LEVELS or step >= event):
        return Said(kind, scenario.name, step, "right", event - step)
    if kind in scenario.unjudged:
        return Said(kind, scenario.name, step, "unjudged")
    # Twice the time that was given: a forecast that is late by half is a poor one, but not for nothing.
    due_later = kind in LEVELS and step + 2 * steps_left >= len(scenario.rows)
    return Said(kind, scenario.name, step, "open" if due_later else "false")


def figures(scenarios: Sequence[Scenario], said: Sequence[Sequence[Said]]) -> list[Figures]:
    """One line for each kind.

    Args:
        said: the alerts of each scenario.
    """
    return [_figures_of(kind, scenarios, [[one for one in run if one.kind == kind] for run in said]) for kind in KINDS]


def _figures_of(kind: str, scenarios: Sequence[Scenario], said: Sequence[Sequence[Said]]) -> Figures:
    leads, shares, events = [], [], 0
    for scenario, alerts in zip(scenarios, said, strict=True):
        event = scenario.events.get(kind)
        events += event is not None
        first = next((one.lead for one in alerts if one.lead is not None), None)
        if event and first is not None and (first > 0 or kind not in LEVELS):
            leads.append(first)
            shares.append(first / event)

    def count(verdict: str) -> int:
        return sum(one.verdict == verdict for alerts in said for one in alerts)

    return Figures(
        kind=kind,
        runs=len(scenarios),
        steps=sum(len(scenario.rows) for scenario in scenarios),
        events=events,
        told=len(leads),
        median_lead=median(leads) if leads else None,
        median_lead_share=median(shares) if shares else None,
        false=count("false"),
        open=count("open"),
        unjudged=count("unjudged"),
    )


def table(lines: Iterable[Figures]) -> str:
    """In Markdown."""
    rows = [
        "| alert | came to pass | said | lead, steps (median) | of the way | false | per 1 000 steps | open | not judged |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in lines:
        lead = "–" if one.median_lead is None else f"{one.median_lead:+.0f}"
        share = "–" if one.median_lead_share is None else f"{one.median_lead_share:+.0%}"
        rows.append(
            f"| `{one.kind}` | {one.events} of {one.runs} runs | {one.told} | {lead} | {share} | {one.false} | "
            f"{one.false_per_1000_steps:.2f} | {one.open} | {one.unjudged} |"
        )
    return "\n".join(rows)


def good_enough(lines: Iterable[Figures]) -> bool:
    """Whether each kind is said when it should be, and not much else."""
    return all(
        one.told >= FEWEST_FORETOLD * one.events and one.false_per_1000_steps <= MOST_FALSE_PER_1000_STEPS
        for one in lines
    )


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Runs of each course.")
@click.option(
    "--recorded",
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A folder of recorded runs; may be repeated.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for alert_quality.json.")
def main(seeds: int, folders: tuple[Path, ...], out: Path | None) -> None:
    """Feed runs to the alerts, and print how early and how often for nothing they are said."""
    groups = {"made of numbers": [scenario for seed in range(seeds) for scenario in synthetic(seed)]}
    if folders:
        groups["recorded"] = [scenario for folder in folders for scenario in recorded(folder)]
    document, good = {}, True
    for name, scenarios in groups.items():
        said = [judged(scenario) for scenario in scenarios]
        lines = figures(scenarios, said)
        click.echo(f"\nRuns {name}: {len(scenarios)}, {sum(len(one.rows) for one in scenarios)} steps.\n")
        click.echo(table(lines))
        for one in (one for alerts in said for one in alerts if name == "recorded" or one.verdict == "false"):
            click.echo(f"- {one.scenario}: {one.kind} at step {one.step}, {one.verdict}, lead {one.lead}")
        good &= name == "recorded" or good_enough(lines)
        document[name] = {
            "figures": [asdict(one) | {"false_per_1000_steps": one.false_per_1000_steps} for one in lines],
            "alerts": [asdict(one) for alerts in said for one in alerts],
        }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "alert_quality.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
