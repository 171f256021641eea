"""What a figure of the reproduction is: the runs it needs, its picture, its numbers, its verdict.

A file of `dynamics/`, `mechanism/` or `beyond/` defines a subclass of `Figure` and lists what it has in `FIGURES`:

    class MaskedSigns(Figure):
        name = "dynamics-1"
        paper, number = DYNAMICS, "Fig. 1 a-d"
        claim = "..."                                  # one sentence, as read in the paper
        def arms(self, plan): ...                      # label -> settings; each is run with every seed
        def draw(self, results): ...                   # a matplotlib figure
        def table(self, results): ...                  # the rows of its CSV
        def checks(self, results): ...                 # what the claim comes down to, each tested

    FIGURES = (MaskedSigns(),)

Each of the three takes `results.runs(arm)`: the finished runs of one arm, a run a seed.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from isentrope_trainer import reproduce
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.errors import IsentropeError
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

DYNAMICS, MECHANISM, BEYOND = "2602.03392", "2505.22617", ""
"""The papers, as arXiv numbers; of what neither shows, nothing."""
FOLDERS = ("dynamics", "mechanism", "beyond")

ENDS = (ENTROPY_MEAN, REWARD_MEAN)
"""Metrics whose start and end a table has, unless its figure says otherwise."""

Row = Mapping[str, object]
"""A line of a table: column -> value."""


class Outcome(StrEnum):
    """A verdict in a word."""

    HOLDS = "holds"
    PARTLY = "holds partly"
    NOT_HERE = "does not hold here"
    NOT_MEASURED = "not measured"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a claim."""

    outcome: Outcome
    checks: tuple[Check, ...] = ()
    reason: str = ""
    """Of what does not hold, or why nothing was measured."""

    @classmethod
    def of(cls, checks: Sequence[Check]) -> Verdict:
        """A claim holds where all of its checks do, partly where some do."""
        met = sum(check.holds for check in checks)
        outcome = Outcome.HOLDS if met == len(checks) else Outcome.PARTLY if met else Outcome.NOT_HERE
        reasons = dict.fromkeys(check.reason for check in checks if not check.holds and check.reason)
        return cls(outcome=outcome, checks=tuple(checks), reason=" ".join(reasons))

    @property
    def number(self) -> str:
        """That of the first check, and how many hold."""
        if not self.checks:
            return ""
        met = sum(check.holds for check in self.checks)
        return f"{self.checks[0].number} ({met} of {len(self.checks)} checks)"


class RunsMissing(IsentropeError):
    """No seed of an arm was run to its end."""


class Results:
    """The finished runs, by their settings."""

    def __init__(self, plan: Plan, runs: Mapping[str, Run], failures: Mapping[str, str]) -> None:
        """
        Args:
            plan: that the runs were planned with.
            runs: by key.
            failures: key -> why there is no run.
        """
        self.plan = plan
        self._runs = runs
        self._failures = failures

    def runs(self, arm: RunSettings) -> list[Run]:
        """The arm's finished runs, by seed; there is at least one.

        Raises:
            RunsMissing: there is none.
        """
        wanted = self.plan.over_seeds(arm)
        found = [self._runs[settings.key] for settings in wanted if settings.key in self._runs]
        if not found:
            reasons = dict.fromkeys(self._failures.get(settings.key, "not run") for settings in wanted)
            raise RunsMissing(f"{arm.without_seed}: {'; '.join(reasons)}")
        return found

    def measured(self, arms: Mapping[str, RunSettings]) -> dict[str, list[Run]]:
        """The finished runs of every arm that has any, for figures that can do without the others.

        Raises:
            RunsMissing: no arm has any.
        """
        some = {
            label: arm for label, arm in arms.items() if any(one.key in self._runs for one in self.plan.over_seeds(arm))
        }
        if not some:
            raise RunsMissing("none of its runs was finished")
        return {label: self.runs(arm) for label, arm in some.items()}

    def pairs(self, arm: RunSettings, other: RunSettings) -> list[tuple[Run, Run]]:
        """Finished runs of two arms with the same seed, so that their difference is the arms'.

        Raises:
            RunsMissing: no seed was finished in both.
        """
        others = {run.seed: run for run in self.runs(other)}
        found = [(run, others[run.seed]) for run in self.runs(arm) if run.seed in others]
        if not found:
            raise RunsMissing(f"{arm.without_seed} and {other.without_seed} have no finished seed in common")
        return found

    def paired(
        self, arm: RunSettings, other: RunSettings, value: Callable[[Run], float]
    ) -> tuple[list[float], list[float]]:
        """A number of each run of two arms, by the seeds that both have.

        Raises:
            RunsMissing: no seed was finished in both.
        """
        pairs = self.pairs(arm, other)
        return [value(run) for run, _ in pairs], [value(run) for _, run in pairs]


class Figure(ABC):
    """One figure or table; related panels are one figure."""

    name: str
    """Of its files and on the command line."""
    paper: str
    number: str
    """In the paper, such as `Fig. 2 a-d`."""
    title: str
    claim: str
    """In one sentence, as read in the paper."""
    chosen_late: str = ""
    """What of its setting or its checks was chosen after first results had been seen, so that its verdict counts for less."""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        """Label -> settings, each to be run with every seed of the plan. Default: it needs no runs."""
        return {}

    def runs(self, plan: Plan) -> list[RunSettings]:
        """Every run it needs."""
        return plan.over_seeds(*self.arms(plan).values())

    @abstractmethod
    def draw(self, results: Results) -> Picture:
        """The picture."""

    def table(self, results: Results) -> list[Row]:
        """The numbers in the picture. Default: start and end of entropy and reward of every run."""
        return [
            {"arm": label, "seed": run.seed}
            | {
                f"{metric} {when}": value(metric)
                for metric in ENDS
                for when, value in (("start", run.start), ("end", run.end))
            }
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
        ]

    @abstractmethod
    def checks(self, results: Results) -> list[Check]:
        """What the claim comes down to."""

    def verdict(self, results: Results) -> Verdict:
        """What became of the claim."""
        return Verdict.of(self.checks(results))


def all_figures() -> dict[str, Figure]:
    """Every figure by its name: by paper, then as their names count."""
    found: dict[str, Figure] = {}
    for folder in FOLDERS:
        package = importlib.import_module(f"{reproduce.__name__}.{folder}")
        modules = [
            importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)
        ]
        figures = [figure for module in modules for figure in getattr(module, "FIGURES", ())]
        found |= {figure.name: figure for figure in sorted(figures, key=_order)}
    return found


def _order(figure: Figure) -> tuple[tuple[int, int | str], ...]:
    parts = figure.name.split("-")
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)
