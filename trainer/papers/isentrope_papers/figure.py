"""What a figure of the reproduction is: the runs it needs, its picture, its numbers, its verdict.

A subclass of `Figure` in a file of `dynamics/`, `mechanism/` or `beyond/`:

    class MaskedSigns(Figure):
        name = "dynamics-1"
        number = "Fig. 1 a-d"
        claim = "..."                               # one sentence, as read in the paper
        def arms(self, plan): ...                   # label -> settings; each is run with every seed
        def draw(self, results): ...                # a matplotlib figure
        def columns(self, run): ...                 # a run's numbers in its CSV
        def checks(self, results): ...              # what the claim comes down to, each tested

`self.finished(results)` are the finished runs of each arm, a run a seed.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import isentrope_papers
from isentrope_papers.drawing import Picture
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire.errors import IsentropeError
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

PAPERS = {
    "dynamics": (
        "2602.03392, On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language Models"
    ),
    "mechanism": (
        "2505.22617, The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"
    ),
    "beyond": "",
}
"""Folder -> number on arXiv and title; of what neither paper shows, nothing. The names of a
folder's figures begin with it."""

Row = Mapping[str, object]
"""A line of a table: column -> value."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement that a claim comes down to, and whether it is so here."""

    statement: str
    """In words, such as "masking S* > 0 keeps more entropy"."""
    holds: bool
    number: str
    """What was measured, with spread and unit, such as "0.41 ± 0.03 against 0.27 ± 0.02 nats"."""
    test: str
    """The test behind `holds`: its name, statistic, p, how many."""
    reason: str = ""
    """Where it does not hold: the likely reason."""
    p: float | None = None
    """Of a test over seeds, one-sided; None: there was none."""
    opposite: bool = False
    """Whether the same test, the other way, is significant."""

    @property
    def word(self) -> str:
        """Whether it holds, in a word or two."""
        if self.holds:
            return "yes"
        if self.opposite:
            return "the opposite"
        if self.p is None:
            return "no"
        return "not shown"


class RunsMissing(IsentropeError):
    """No seed of an arm was run to its end."""


@dataclass(frozen=True, slots=True)
class Results:
    """The finished runs of a plan."""

    plan: Plan
    made: Mapping[str, Run]
    """By key."""
    failures: Mapping[str, str]
    """Key -> name of the run, and why there is none."""

    def has(self, arm: RunSettings) -> bool:
        """Whether any seed of an arm was finished."""
        return any(settings.key in self.made for settings in self.plan.repeat_over_seeds(arm))

    def runs(self, arm: RunSettings) -> list[Run]:
        """The arm's finished runs, by seed; RunsMissing: there is none."""
        wanted = [settings.key for settings in self.plan.repeat_over_seeds(arm)]
        found = [self.made[key] for key in wanted if key in self.made]
        if not found:
            raise RunsMissing(
                "; ".join(
                    self.failures.get(key, f"{arm.name_without_seed}: not run") for key in wanted
                )
            )
        return found


def paired(
    left: Sequence[Run], right: Sequence[Run], value: Callable[[Run], float]
) -> tuple[list[float], list[float]]:
    """A number of each run of two arms, by the seeds that both have, so that their difference is
    the arms'.
    RunsMissing: no seed was finished in both."""
    of_left, of_right = zip(*group_by_seed((left, right), value), strict=True)
    return [*of_left], [*of_right]


def group_by_seed(
    arms: Iterable[Sequence[Run]], value: Callable[[Run], Value]
) -> list[list[Value]]:
    """[seeds][arms]: a value of each run, of the seeds that all arms have; RunsMissing: no seed was
    finished in all."""
    of_arms = [{run.seed: run for run in runs} for runs in arms]
    seeds = sorted(set.intersection(*map(set, of_arms)))
    if not seeds:
        raise RunsMissing("its arms have no finished seed in common")
    return [[value(of_arm[seed]) for of_arm in of_arms] for seed in seeds]


class Figure(ABC):
    """One figure or table; related panels are one figure."""

    name: str
    """Name of its files and on the command line."""
    number: str
    """In the paper, such as `Fig. 2 a-d`."""
    title: str
    claim: str
    """In one sentence, as read in the paper."""
    chosen_late: str = ""
    """What of its setting or its checks was chosen after first results had been seen, so that its
    verdict counts for less."""

    label = "arm"
    """Name of the table's column that has the arms' labels; empty: there is only one arm."""
    partial = False
    """Whether it can do without some of its arms."""

    @property
    def folder(self) -> str:
        return self.name.partition("-")[0]

    @property
    def paper(self) -> str:
        """Number on arXiv; empty where neither paper shows it."""
        return PAPERS[self.folder].partition(",")[0]

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        """Label -> settings, each to be run with every seed of the plan. Default: it needs no
        runs."""
        return {}

    def runs(self, plan: Plan) -> list[RunSettings]:
        return plan.repeat_over_seeds(*self.arms(plan).values())

    def finished(self, results: Results) -> dict[str, list[Run]]:
        """Label -> the arm's finished runs; RunsMissing: an arm has none, or, where `partial`, all
        have none."""
        arms = self.arms(results.plan)
        if self.partial:
            arms = {label: arm for label, arm in arms.items() if results.has(arm)}
            if not arms:
                raise RunsMissing("none of its runs was finished")
        return {label: results.runs(arm) for label, arm in arms.items()}

    @abstractmethod
    def draw(self, results: Results) -> Picture:
        """The picture."""

    def table(self, results: Results) -> list[Row]:
        """The numbers in the picture. Default: those of `columns`, a row for each run."""
        rows: list[Row] = []
        for label, runs in self.finished(results).items():
            named = {self.label: label} if self.label else {}
            rows += [{**named, "seed": run.seed, **self.columns(run)} for run in runs]
        return rows

    def columns(self, run: Run) -> dict[str, object]:
        """A run's numbers in the table. Default: start and end of entropy and reward."""
        return {
            f"{metric} {when}": value(metric)
            for metric in (ENTROPY_MEAN, REWARD_MEAN)
            for when, value in (("start", run.start), ("end", run.end))
        }

    @abstractmethod
    def checks(self, results: Results) -> list[Check]:
        """What the claim comes down to."""


def all_figures() -> dict[str, Figure]:
    """Every figure by its name: by paper, then as their names count."""
    figures: dict[str, Figure] = {}
    for folder in PAPERS:
        package = importlib.import_module(f"{isentrope_papers.__name__}.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            defined = vars(importlib.import_module(f"{package.__name__}.{module.name}")).values()
            for kind in defined:
                if isinstance(kind, type) and issubclass(kind, Figure) and hasattr(kind, "name"):
                    figures[kind.name] = kind()

    def order(name: str) -> tuple[tuple[int, int | str], ...]:
        folder, *parts = name.split("-")
        return (0, [*PAPERS].index(folder)), *(
            (0, int(part)) if part.isdigit() else (1, part) for part in parts
        )

    return {name: figures[name] for name in sorted(figures, key=order)}
