"""The checks of why a run does not learn, on failures that are made in real trainings, and on
healthy ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from isentrope.cli.diagnose import diagnosis_of
from isentrope.cli.log_files import read_log
from isentrope_papers.drawing import Picture, panels
from isentrope_papers.faults import FAULTS, KINDS, Named
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_papers.trl_faults import TRL_FAULTS
from isentrope_trainer.settings import EvaluationConfig, TaskConfig
from isentrope_wire import metrics
from isentrope_wire.reports import AlertLevel

HEALTHY = "healthy: "
_AS_LOGGED: Mapping[str, metrics.Metric] = {
    "entropy": metrics.ENTROPY_MEAN,
    "reward": metrics.REWARD_MEAN,
    "reward_std": metrics.REWARD_STD,
    "frac_reward_zero_std": metrics.ADVANTAGE_ZERO_GROUP_FRACTION,
    "completions/mean_length": metrics.COMPLETION_LENGTH_MEAN,
    "completions/clipped_ratio": metrics.COMPLETION_TRUNCATED,
    "kl": metrics.KL_REFERENCE,
    "actor/ppo_kl": metrics.KL_OLD,
    "clip_ratio/low_mean": metrics.RATIO_CLIPPED_LOW,
    "clip_ratio/high_mean": metrics.RATIO_CLIPPED_HIGH,
    "grad_norm": metrics.TRAIN_GRAD_NORM,
    "eval/reward": metrics.EVAL_AVG_AT_K,
}
"""What TRL logs (verl: `actor/ppo_kl`), and what it is here; parts of the reward have one name."""
_HEALTHY = ("grpo", "dapo", "rloo", "ppo")
"""Algorithms whose runs are to be called healthy, beside an off-policy one. The other tasks learn
nothing in so few steps of so few completions."""
_FOUND = 0.95
FIRST_SEED = 1
"""Rules were mended on runs of these settings with seed 0."""


class Judged(NamedTuple):
    """What was said of a run."""

    found_at: int | None
    """Step of the first alert that names the failure; None: it was not found, or there is none."""
    first: str
    """Kind that was named first."""
    others: str
    """Kinds that do not name the failure."""
    acts: int
    """Kinds whose level came to act."""
    found_by_scalars: int | None
    """As the first, by `isentrope diagnose` from what TRL logs of such a run."""
    acts_by_scalars: int


def judged(run: Run) -> Judged:
    """The alerts of a run as they were raised, and what its log says."""
    fault = _fault_of(run)
    alerts = [alert for alert in run.alerts if alert["kind"] in KINDS]
    by_log = diagnosis_of(logged(run)).findings
    naming, others = [], dict[str, None]()
    for alert in alerts:
        kind = str(alert["kind"])
        if fault.is_named_by(kind, alert["words"].get("cause", "")):
            naming.append(int(alert["step"]))
        else:
            others[kind] = None
    naming_by_log = [
        finding.step for finding in by_log if fault.is_named_by(finding.kind, finding.cause or "")
    ]
    return Judged(
        found_at=min(naming, default=None),
        first=next((str(alert["kind"]) for alert in alerts), ""),
        others=" ".join(others),
        acts=len({alert["kind"] for alert in alerts if alert["level"] == AlertLevel.ACT}),
        found_by_scalars=min(naming_by_log, default=None),
        acts_by_scalars=sum(finding.level == AlertLevel.ACT for finding in by_log),
    )


def _fault_of(run: Run) -> Named:
    settings = run.settings
    if settings.under_trl:
        return TRL_FAULTS[settings.under_trl]
    return FAULTS.get(settings.fault, Named())


def logged(run: Run) -> list[tuple[int, dict[str, float]]]:
    """What TRL logged of a run, or would have logged, by step."""
    if run.settings.under_trl:
        return read_log(run.folder / "log.json")
    names = {theirs: str(ours) for theirs, ours in _AS_LOGGED.items() if ours in run.names}
    names |= {name: name for name in run.names if name.startswith("rewards/")}
    columns = {theirs: run.series(ours) for theirs, ours in names.items()}
    # Every step logs a norm: one that is not a number is no missing one.
    return [
        (
            int(step),
            {
                name: float(column[row])
                for name, column in columns.items()
                if math.isfinite(column[row]) or name == "grad_norm"
            },
        )
        for row, step in enumerate(run.steps)
    ]


class Checks(Figure):
    name = "beyond-checks"
    number = "Checks"
    title = "why a run does not learn: failures made on purpose, and healthy runs"
    claim = (
        "The checks find every failure that is made in a real training, by the probe and from what "
        "is logged alone, and say `act` of no healthy run. Beside two peers, on the peers' own "
        "synthetic runs, they are earlier."
    )
    chosen_late = (
        "Rules were mended on runs of seed 0: causes of `zero_advantage`, `kl` to what drew the "
        "tokens and to a reference of another run, `clip_saturation` where the reward stands, "
        "`reward_parts` beside saturated groups, `decline`. Judged are seeds from 1 on. When "
        "`plateau` of a reward that never rose was mended, its miss on seed 1 was known."
    )

    label = "failure"
    partial = True
    beside_peers = True
    """Whether the picture shows the peers' runs, too."""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        steps = 120
        if plan.quick:
            steps = 40
        evaluation = EvaluationConfig(every=12, problems=16, samples=4, k=4)
        usual: dict[str, Any] = {
            "steps": steps,
            "prompts": 8,
            "group_size": 8,
            "learning_rate": 1e-4,
            "evaluation": evaluation,
            "coupling": None,
            "unseen": 0,
        }
        arms: dict[str, RunSettings] = {}
        for name, fault in FAULTS.items():
            task = TaskConfig(max_tokens=fault.max_tokens)
            run = plan.run(**{**usual, "task": task, **fault.training})
            arms[name] = replace(run, fault=name)
        calm = {**usual, "learning_rate": 4e-5}
        for algorithm in _HEALTHY:
            arms[HEALTHY + algorithm] = plan.run(**calm, algorithm=algorithm)
        arms[f"{HEALTHY}off-policy"] = plan.run(**{**calm, "prompts": 32, "updates_per_batch": 4})
        if plan.quick:
            chosen = ("problems too hard", "30 times the learning rate", f"{HEALTHY}grpo")
            arms = {name: arms[name] for name in chosen}
        return {name: replace(arm, first_seed=FIRST_SEED) for name, arm in arms.items()}

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 1 + self.beside_peers, height=4.6)
        rows = {}
        for name, runs in self._judge(results).items():
            if not name.startswith(HEALTHY):
                live = _steps(run.found_at for run in runs)
                rows[name] = live, _steps(run.found_by_scalars for run in runs)
        _draw_steps(axes[0], rows, "step; squares: by the log alone")
        if self.beside_peers:
            peers = {
                f"{row['scenario'].replace('_', ' ')} ({row['peer']})": (
                    [float(row["step"])],
                    [float(row["its_step"])],
                )
                for row in rows_of_peers()
                if row["scenario"] != "healthy"
            }
            _draw_steps(axes[1], peers, "step; squares: the peer")
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return judged(run)._asdict()

    def checks(self, results: Results) -> list[Check]:
        failed: list[Judged] = []
        healthy: list[Judged] = []
        for name, runs in self._judge(results).items():
            if name.startswith(HEALTHY):
                healthy += runs
            else:
                failed += runs
        live = _steps(run.found_at for run in failed)
        by_log = _steps(run.found_by_scalars for run in failed)
        calm = sum(not run.acts for run in healthy)
        calm_by_log = sum(not run.acts_by_scalars for run in healthy)
        others = sum(bool(run.others) for run in failed)
        about_live = f", median step {median(live or [math.nan]):g}; in {others} another kind, too"
        about_log = f", median step {median(by_log or [math.nan]):g}"
        return [
            _share(
                "the probe finds 95 % of the failures", len(live), len(failed), _FOUND, about_live
            ),
            _share("the log alone does", len(by_log), len(failed), _FOUND, about_log),
            _share("no `act` of a healthy run", calm, len(healthy), 1.0),
            _share("nor from its log", calm_by_log, len(healthy), 1.0),
        ]

    def _judge(self, results: Results) -> dict[str, list[Judged]]:
        return {label: [*map(judged, runs)] for label, runs in self.finished(results).items()}


def rows_of_peers() -> list[dict[str, str]]:
    """What `tests/benchmarks/checks_beside_peers.py` measured on the peers' own runs."""
    with Path(__file__).with_name("peers.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _steps(of_runs: Iterable[int | None]) -> list[float]:
    """The known steps."""
    return [float(step) for step in of_runs if step is not None]


def _draw_steps(
    panel: Axes, rows: Mapping[str, tuple[Sequence[float], Sequence[float]]], label: str
) -> None:
    for place, (round_ones, squares) in enumerate(rows.values()):
        panel.plot(round_ones, [place - 0.15] * len(round_ones), "o", color="#0072B2", markersize=4)
        panel.plot(squares, [place + 0.15] * len(squares), "s", color="#D55E00", markersize=4)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.invert_yaxis()
    panel.set(xlabel=label, xlim=(0, None))


def _share(statement: str, hits: int, of: int, least: float, about: str = "") -> Check:
    return Check(
        statement=statement,
        holds=of > 0 and hits >= least * of,
        number=f"{hits} of {of}{about}",
        test=f"counted over {of} runs",
    )


class ChecksUnderTrl(Checks):
    name = "beyond-checks-trl"
    number = "Checks, TRL"
    title = "the same under TRL, with a model of eight words"
    claim = (
        "The checks find every failure that a run under TRL meets by itself, by `attach` and from "
        "TRL's own log alone, and say `act` of no healthy run."
    )
    chosen_late = (
        "After seed 1 the learning rate of the format's row was raised until the format was earned "
        "in so few steps, and an infinite reward was made to ring at once."
    )
    beside_peers = False

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        if find_spec("trl") is None:
            return {}
        run = plan.run(steps=30 if plan.quick else 80)
        if plan.quick:
            names = ["problems too hard", "healthy: grpo"]
        else:
            names = [*TRL_FAULTS]
        return {name: replace(run, under_trl=name, first_seed=FIRST_SEED) for name in names}
