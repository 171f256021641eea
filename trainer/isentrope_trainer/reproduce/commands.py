"""`isentrope reproduce`: makes the runs that are missing, then draws and judges every figure."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from isentrope_trainer.reproduce.executors import Executor, Order
    from isentrope_trainer.reproduce.figure import Figure
    from isentrope_trainer.reproduce.runs import Run, RunFolder
    from isentrope_trainer.reproduce.settings import Plan, RunSettings

INTERRUPTED = 130
FULL_SEEDS, QUICK_SEEDS = 3, 1
_SERVER_SECONDS = 2.0


@click.command()
@click.argument("names", nargs=-1, metavar="[FIGURE]...")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of runs, pictures and REPRODUCTION.md."
)
@click.option(
    "--quick", is_flag=True, help="Few, small runs: shows in minutes that everything works, and proves nothing."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help=f"Seeds of each run.  [default: {FULL_SEEDS}; with --quick {QUICK_SEEDS}]",
)
@click.option("--workers", type=click.IntRange(min=1), help="Runs at a time.  [default: one for each core]")
@click.option(
    "--ray", metavar="ADDRESS", help="Spread the runs over a Ray cluster; `local` starts one on this machine."
)
@click.option("--plan", "only_plan", is_flag=True, help="Print what would be run, and how long it takes; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def reproduce(
    names: tuple[str, ...],
    out: Path | None,
    quick: bool,
    seeds: int | None,
    workers: int | None,
    ray: str | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Run the papers' claims again, and judge them.

    FIGURE is a figure's name, such as dynamics-2, or the beginning of several, such as mechanism; without one, all are made.
    Runs are kept under --out and shared between figures: the command can be interrupted, and goes on when it is called again.
    Where an Isentrope server answers at ISENTROPE_URL, the runs report to it (project `reproduce`).
    """
    # Of this process and its workers, before any of them imports what reads it.
    os.environ |= {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    from isentrope_trainer.reproduce.figure import all_figures
    from isentrope_trainer.reproduce.runs import RunFolder
    from isentrope_trainer.reproduce.settings import Plan

    if out is None and not only_plan:
        raise click.UsageError("--out is needed: the folder for runs, pictures and REPRODUCTION.md.")
    figures = _selected(all_figures(), names)
    plan = Plan(seeds=tuple(range(seeds or (QUICK_SEEDS if quick else FULL_SEEDS))), quick=quick)
    folder = RunFolder((out or Path()) / "runs")
    if only_plan or out is None:
        _show_plan(figures, plan, folder if out else None, workers)
        return
    orders, runs = _orders(figures, plan, folder)
    started = time.monotonic()
    # A scheduler's SIGTERM ends the command as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failures = _make(orders, folder, runs, workers, ray) if orders else {}
    except KeyboardInterrupt:
        click.echo("Interrupted. The finished runs are kept: the same command goes on from there.", err=True)
        sys.exit(INTERRUPTED)
    _write(figures, plan, runs, failures, out, as_json=as_json, seconds=time.monotonic() - started)
    sys.exit(1 if failures else 0)


def _selected(figures: dict[str, Figure], names: Sequence[str]) -> list[Figure]:
    chosen: dict[str, Figure] = {}
    for name in names:
        found = {own: one for own, one in figures.items() if own == name or own.startswith(f"{name}-")}
        if not found:
            raise click.UsageError(f"There is no figure {name}; there are {', '.join(figures)}.")
        chosen |= found
    return list((chosen or figures).values())


def _orders(figures: Sequence[Figure], plan: Plan, folder: RunFolder) -> tuple[list[Order], dict[str, Run]]:
    """The runs to make, beginning with the figures named first, and the finished runs by key."""
    from isentrope_trainer.reproduce.executors import Order

    settings: dict[str, RunSettings] = {}
    tags: dict[str, list[str]] = {}
    for figure in figures:
        for one in figure.runs(plan):
            settings.setdefault(one.key, one)
            tags.setdefault(one.key, []).append(figure.name)
    found = {key: run for key, one in settings.items() if (run := folder.find(one)) is not None}
    missing = [key for key in settings if key not in found]
    # The first run from each warm start goes first: it is trained once then, and not by every worker at the same time.
    first = {settings[key].starting_point: key for key in reversed(missing)}
    missing.sort(key=lambda key: first[settings[key].starting_point] != key)
    report = bool(missing) and _server_answers()
    return [
        Order(settings=settings[key], tags=tuple(dict.fromkeys(tags[key])), report=report) for key in missing
    ], found


def _make(
    orders: Sequence[Order], folder: RunFolder, runs: dict[str, Run], workers: int | None, ray: str | None
) -> dict[str, str]:
    """Make the runs, and add them to `runs`. Returns the failures: name of a run -> reason."""
    from isentrope_trainer.reproduce.executors import LocalProcesses, RayCluster

    executor: Executor = LocalProcesses(workers) if ray is None else RayCluster(ray, workers)
    planned = sum(order.settings.planned_seconds for order in orders)
    where = f"{executor.workers} at a time" + ("" if ray is None else f" on Ray ({ray})")
    kept = f", {len(runs)} more are kept from before" if runs else ""
    click.echo(f"{len(orders)} runs to make{kept}; {where}, about {_duration(planned / executor.workers)}.", err=True)
    if orders[0].report:
        from isentrope_wire import environment

        click.echo(f"They report to {environment.url()}, project reproduce.", err=True)
    failures: dict[str, str] = {}
    remaining = _Remaining(planned, executor.workers)
    with closing(executor.make(orders)) as outcomes:
        for count, outcome in enumerate(outcomes, start=1):
            settings = outcome.order.settings
            if outcome.files is None:
                failures[f"{settings} ({settings.key})"] = outcome.failure
                result = f"FAILED, {outcome.failure}"
            else:
                folder.keep(outcome.files)
                run = runs[settings.key] = _kept(folder, settings)
                result = f"{run.made['seconds']:.0f} s"
            left = remaining.after(settings.planned_seconds)
            click.echo(f"[{count}/{len(orders)}] {settings}: {result}; {left}", err=True)
    return failures


def _kept(folder: RunFolder, settings: RunSettings) -> Run:
    run = folder.find(settings)
    assert run is not None, "it was just kept"
    return run


class _Remaining:
    """The remaining time, from how long the finished part of the plan took."""

    def __init__(self, planned: float, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._planned = self._left = planned
        self._workers = workers
        self._clock = clock
        self._started = clock()

    def after(self, planned: float) -> str:
        """A run of this many planned seconds is over."""
        self._left = max(self._left - planned, 0.0)
        if not self._left:
            return "done"
        done, elapsed = self._planned - self._left, self._clock() - self._started
        return f"{_duration(elapsed * self._left / done)} left"


def _write(
    figures: Sequence[Figure],
    plan: Plan,
    runs: dict[str, Run],
    failures: dict[str, str],
    out: Path,
    *,
    as_json: bool,
    seconds: float,
) -> None:
    from isentrope_trainer.reproduce.figure import Results
    from isentrope_trainer.reproduce.report import Circumstances, judge, reproduction

    by_key = {name[name.rindex("(") + 1 : -1]: reason for name, reason in failures.items()}
    results = Results(plan, runs, by_key)
    judged = []
    for figure in figures:
        judged.append(judge(figure, results, out))
        click.echo(f"{figure.name}: {judged[-1].verdict.outcome}; {judged[-1].verdict.number}", err=True)
    processors = sorted({f"{run.made['processor']}, torch {run.made['torch']}" for run in runs.values()})
    circumstances = Circumstances(
        plan=plan,
        runs=len(runs),
        core_seconds=sum(run.made["cpu_seconds"] for run in runs.values()),
        machine=f"{os.cpu_count()} cores of {' and '.join(processors) or 'one kind'}",
        failures=failures,
    )
    path = out / "REPRODUCTION.md"
    path.write_text(reproduction(judged, circumstances), encoding="utf-8")
    if as_json:
        document = {
            "plan": asdict(plan),
            "figures": [one.document() for one in judged],
            "runs": len(runs),
            "failures": failures,
            "seconds": seconds,
        }
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(path)


def _show_plan(figures: Sequence[Figure], plan: Plan, folder: RunFolder | None, workers: int | None) -> None:
    """A line a figure: its runs, those that no figure before it has, and their time."""
    from isentrope_trainer.reproduce.executors import LocalProcesses

    workers = LocalProcesses(workers).workers
    seen: set[str] = set()
    total = 0.0
    for figure in figures:
        runs = {one.key: one for one in figure.runs(plan)}
        new = [one for key, one in runs.items() if key not in seen and (folder is None or folder.find(one) is None)]
        seen |= set(runs)
        seconds = sum(one.planned_seconds for one in new)
        total += seconds
        click.echo(
            f"{figure.name:14} {len(runs):4} runs, {len(new):4} to make, {_duration(seconds):>12} of a core  {figure.number}: {figure.title}"
        )
    click.echo(
        f"{len(seen)} runs with {len(plan.seeds)} seeds; about {_duration(total / workers)} with {workers} at a time."
    )


def _server_answers() -> bool:
    import httpx

    from isentrope_wire import environment

    try:
        return httpx.get(f"{environment.url()}/healthz", timeout=_SERVER_SECONDS).is_success
    except httpx.HTTPError:
        return False


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
