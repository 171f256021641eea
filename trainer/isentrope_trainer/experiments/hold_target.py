"""A held entropy beside fixed thresholds, an adaptive entropy bonus and a run left to itself: deviation and reward.

    python -m isentrope_trainer.experiments.hold_target --out DIR

Trains every run that `hold_plan` names and DIR does not have yet, each from the same warm start: about 30 runs of four
minutes on two quiet cores. It may be killed and started again, and two of it may share DIR; a file deleted from DIR is
trained anew. Then writes `hold_target.md`, the table, and `hold_target.svg`, the picture, of what is there. Ends with
status 1 when a run is missing or a held one misses what is asked of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from isentrope_trainer.experiments.hold_figures import (
    ENDS,
    SETTLED_FROM,
    TableRow,
    hold_figures,
    markdown_table,
    missed,
)
from isentrope_trainer.experiments.hold_picture import write_picture
from isentrope_trainer.experiments.hold_plan import PlannedRun, planned_runs, row_names
from isentrope_trainer.experiments.recorded_runs import RecordedRun, record, recorded
from isentrope_trainer.reference_run import THREADS


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
