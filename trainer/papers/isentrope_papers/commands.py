"""`isentrope reproduce`: makes the runs that are missing, then draws and judges every figure."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from isentrope_papers.figure import Figure, Results
    from isentrope_papers.runs import Run, RunFolder
    from isentrope_papers.settings import Plan, RunSettings

INTERRUPTED = 130
FULL_SEEDS, QUICK_SEEDS = 3, 1
LANGUAGE_MODEL = "beyond-llm"


@click.command()
@click.argument("names", nargs=-1, metavar="[FIGURE]...")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of runs, pictures and REPRODUCTION.md.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Few, small runs: shows in minutes that everything works, and proves nothing.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help=f"Seeds of each run.  [default: {FULL_SEEDS}; with --quick {QUICK_SEEDS}]",
)
@click.option(
    "--workers", type=click.IntRange(min=1), help="Runs at a time.  [default: one for each core]"
)
@click.option(
    "--llm",
    is_flag=True,
    help=(
        "The chapter on a real language model, SmolLM2-135M-Instruct under TRL, loaded once (extra"
        " llm). By default one run at a time, on two cores."
    ),
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Spread the runs over a Ray cluster; `local` starts one on this machine.",
)
@click.option(
    "--plan",
    "only_plan",
    is_flag=True,
    help="Print what would be run, and how long it takes; run nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def reproduce(
    names: tuple[str, ...],
    out: Path | None,
    quick: bool,
    seeds: int | None,
    workers: int | None,
    ray: str | None,
    llm: bool,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Run the papers' claims again, and judge them.

    FIGURE is a figure's name, such as dynamics-2, or the beginning of several, such as mechanism;
    without one, all are made. Runs are kept under --out and shared between figures: the command can
    be interrupted, and goes on when it is called again."""
    # Of this process and its workers, before any of them imports what reads it.
    os.environ |= {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    if llm:
        # Threads sleep while they wait for each other, nothing is asked of a model hub, TRL's
        # version is pinned.
        os.environ |= {
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
        }
        workers = workers or (1 if ray is None else None)
    from isentrope_papers.figure import Results, all_figures
    from isentrope_papers.runs import RunFolder
    from isentrope_papers.settings import Plan

    if out is None and not only_plan:
        raise click.UsageError(
            "--out is needed: the folder for runs, pictures and REPRODUCTION.md."
        )
    figures = _selected(all_figures(), names, llm)
    plan = Plan(seeds=tuple(range(seeds or (QUICK_SEEDS if quick else FULL_SEEDS))), quick=quick)
    folder = RunFolder((out or Path()) / "runs")
    if only_plan or out is None:
        _show_plan(figures, plan, folder if out else None, workers)
        return
    missing, runs = _wanted(figures, plan, folder)
    if llm and missing:
        from isentrope_trainer import smollm2

        smollm2.ensure()
    started = time.monotonic()
    # A scheduler's SIGTERM ends the command as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failures = {}
        if missing:
            failures = _make(missing, folder, runs, workers, ray)
    except KeyboardInterrupt:
        click.echo(
            "Interrupted. The finished runs are kept: the same command goes on from there.",
            err=True,
        )
        sys.exit(INTERRUPTED)
    _write(
        figures,
        Results(plan, runs, failures),
        out,
        as_json=as_json,
        seconds=time.monotonic() - started,
    )
    sys.exit(1 if failures else 0)


def _selected(figures: dict[str, Figure], names: Sequence[str], llm: bool) -> list[Figure]:
    # Those of the language model take hours and another extra: only when asked for.
    figures = {own: one for own, one in figures.items() if own.startswith(LANGUAGE_MODEL) == llm}
    chosen: dict[str, Figure] = {}
    for name in names:
        named = [own for own in figures if own == name or own.startswith(f"{name}-")]
        if not named:
            raise click.UsageError(f"There is no figure {name}; there are {', '.join(figures)}.")
        chosen |= {own: figures[own] for own in named}
    return list((chosen or figures).values())


def _wanted(
    figures: Sequence[Figure], plan: Plan, folder: RunFolder
) -> tuple[list[RunSettings], dict[str, Run]]:
    """The runs to make, those of the figures named first in front, and those that are finished, by
    key."""
    wanted = {settings.key: settings for figure in figures for settings in figure.runs(plan)}
    finished, missing = {}, []
    for key, settings in wanted.items():
        run = folder.find(settings)
        if run is None:
            missing.append(settings)
        else:
            finished[key] = run
    # The first run from each warm start goes first: it is trained once then, and not by every
    # worker at the same time.
    first = {settings.starting_point: settings for settings in reversed(missing)}
    missing.sort(key=lambda settings: first[settings.starting_point] is not settings)
    return missing, finished


def _make(
    missing: Sequence[RunSettings],
    folder: RunFolder,
    runs: dict[str, Run],
    workers: int | None,
    ray: str | None,
) -> dict[str, str]:
    """Make the runs, and add them to `runs`. Returns the failures: key -> name of the run, and
    reason."""
    from tqdm import tqdm

    from isentrope_papers.executors import LocalProcesses, RayCluster

    executor = LocalProcesses(workers) if ray is None else RayCluster(ray, workers)
    where = f"{executor.workers} at a time" + ("" if ray is None else f" on Ray ({ray})")
    kept = ""
    if runs:
        kept = f", {len(runs)} more are kept from before"
    click.echo(f"{len(missing)} runs to make{kept}; {where}.", err=True)
    failures: dict[str, str] = {}
    with (
        closing(executor.make(missing)) as outcomes,
        tqdm(outcomes, total=len(missing), unit="run", smoothing=0, disable=False) as progress,
    ):
        for outcome in progress:
            settings = outcome.settings
            if outcome.files is not None:
                runs[settings.key] = folder.keep(settings, outcome.files)
            else:
                failures[settings.key] = f"{settings} ({settings.key}): {outcome.failure}"
                tqdm.write(f"FAILED: {failures[settings.key]}", file=sys.stderr)
    return failures


def _write(
    figures: Sequence[Figure], results: Results, out: Path, *, as_json: bool, seconds: float
) -> None:
    from isentrope_papers.report import judge, reproduction

    judged = []
    for figure in figures:
        judged.append(judge(figure, results, out))
        click.echo(f"{figure.name}: {judged[-1].outcome}; {judged[-1].number}", err=True)
    path = out / "REPRODUCTION.md"
    path.write_text(reproduction(judged, results), encoding="utf-8")
    if as_json:
        document = {
            "plan": asdict(results.plan),
            "figures": [one.document() for one in judged],
            "runs": len(results.made),
            "failures": results.failures,
            "seconds": seconds,
        }
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(path)


def _show_plan(
    figures: Sequence[Figure], plan: Plan, folder: RunFolder | None, workers: int | None
) -> None:
    """A line a figure: its runs, those that no figure before it has, and their time."""
    from tqdm import tqdm

    from isentrope_papers.executors import LocalProcesses

    workers = LocalProcesses(workers).workers
    seen: set[str] = set()
    total = 0.0
    for figure in figures:
        runs = {settings.key: settings for settings in figure.runs(plan)}
        new = [settings for key, settings in runs.items() if key not in seen]
        if folder is not None:
            new = [settings for settings in new if folder.find(settings) is None]
        seen |= set(runs)
        seconds = sum(settings.planned_seconds for settings in new)
        total += seconds
        click.echo(
            f"{figure.name:14} {len(runs):4} runs, {len(new):4} to make,"
            f" {tqdm.format_interval(seconds):>8} of a core  {figure.number}: {figure.title}"
        )
    click.echo(
        f"{len(seen)} runs with {len(plan.seeds)} seeds; about"
        f" {tqdm.format_interval(total / workers)} with {workers} at a time."
    )
