"""The entropy-performance fit on series whose truth is known: the tables of docs/performance.md.

`python -m tests.benchmarks.performance_fit [SEEDS]` prints, for each case and number of steps, how
often the 90 % intervals hold the truth, how often each check fails, and how often the fit is called
conclusive."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isentrope_server.performance.fit import FitRefused, fit_performance, forecast
from isentrope_server.performance.slow_noise import Floats
from isentrope_wire.control_answers import Estimate

A, B = 0.5, 1.2
HIGHEST, LOWEST = 0.72, 0.10
NOISE = 0.03
"""Standard deviation of a step's reward."""

Case = Callable[[int, np.random.Generator], tuple[Floats, Floats]]
"""Number of steps and randomness -> entropies as reported, rewards."""


def falling(steps: int) -> Floats:
    """Entropies that fall quickly at first."""
    return LOWEST + (HIGHEST - LOWEST) * np.exp(-4 * np.linspace(0, 1, steps))


def curve(entropies: Floats) -> Floats:
    """The rewards of the fit's own formula."""
    return B - A * np.exp(entropies)


def white(steps: int, random: np.random.Generator) -> Floats:
    return random.normal(size=steps) * NOISE


def drift(steps: int, random: np.random.Generator, rho: float) -> Floats:
    """An AR(1) process as wide as the white noise, from its stationary state."""
    values = np.empty(steps)
    value = random.normal() * NOISE
    shocks = random.normal(size=steps) * NOISE * math.sqrt(1 - rho**2)
    for step in range(steps):
        value = values[step] = rho * value + shocks[step]
    return values


def lagging(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    entropies = falling(steps)
    late = np.concatenate([np.full(steps // 10, entropies[0]), entropies])[:steps]
    return entropies, curve(late) + white(steps, random)


def exploding(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """From half-way on entropy rises by 1.6 nats and the reward dies."""
    entropies, after = falling(steps), np.maximum(0, np.linspace(-0.5, 0.5, steps))
    turn = steps // 2
    before = np.arange(steps) < turn
    rewards = np.where(
        before, curve(entropies), curve(entropies)[turn] * np.maximum(0, 1 - 4 * after)
    )
    return np.where(before, entropies, entropies[turn] + 3.2 * after), rewards + white(
        steps, random
    )


def linear(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """The reward is linear in H; both ends lie on the curve."""
    entropies = falling(steps)
    share = (HIGHEST - entropies) / (HIGHEST - LOWEST)
    ends = curve(np.array([HIGHEST, LOWEST]))
    return entropies, ends[0] + share * (ends[1] - ends[0]) + white(steps, random)


def jumping(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Half-way the reward falls by 0.1, as after a change of the data."""
    entropies, rewards = on_curve(steps, random)
    return entropies, rewards - 0.1 * (np.arange(steps) >= steps // 2)


def on_curve(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    entropies = falling(steps)
    return entropies, curve(entropies) + white(steps, random)


def binomial(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    entropies = falling(steps)
    return entropies, random.binomial(64, curve(entropies), size=steps) / 64


def to_and_fro(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    entropies = LOWEST + (HIGHEST - LOWEST) * (
        0.5 + 0.5 * np.cos(3 * np.pi * np.linspace(0, 1, steps))
    )
    return entropies, curve(entropies) + white(steps, random)


def unrelated(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    return falling(steps), 0.5 + white(steps, random)


def drifting(rho: float) -> Case:
    def case(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
        entropies = falling(steps)
        return entropies, curve(entropies) + drift(steps, random, rho)

    return case


def drifting_and_white(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    entropies, rewards = drifting(0.99)(steps, random)
    return entropies, rewards + white(steps, random)


def misread(deviation: float) -> Case:
    """Entropy is reported with noise that the reward knows nothing of."""

    def case(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
        entropies, rewards = on_curve(steps, random)
        return entropies + random.normal(size=steps) * deviation, rewards

    return case


def jittering(steps: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Entropy jumps from batch to batch, and the reward with it."""
    entropies = falling(steps) + random.normal(size=steps) * 0.1
    return entropies, curve(entropies) + white(steps, random)


TRUE: dict[str, Case] = {
    "noise 0.03": on_curve,
    "64 rewards of 0 or 1 a step": binomial,
    "entropy to and fro": to_and_fro,
    "AR(1) 0.9": drifting(0.9),
    "AR(1) 0.99": drifting(0.99),
    "AR(1) 0.99 and noise 0.03": drifting_and_white,
    "entropy misread by 0.03": misread(0.03),
    "entropy misread by 0.1": misread(0.1),
    "entropy jumps by 0.1 from batch to batch": jittering,
}
"""The reward follows the curve with A and B."""
FALSE: dict[str, Case] = {
    "reward lags a tenth of the run": lagging,
    "entropy explodes, reward dies": exploding,
    "reward linear in H": linear,
    "reward falls by 0.1 half-way": jumping,
    "no relation (a = 0)": unrelated,
}
"""It does not."""


@dataclass
class Found:
    """Counts over the seeds of one case."""

    fits: int = 0
    a: int = 0
    ceiling: int = 0
    slope: int = 0
    shape: int = 0
    halves: int = 0
    conclusive: int = 0
    forecasts: int = 0
    forecast_holds: int = 0

    def add(self, entropies: Floats, rewards: Floats) -> None:
        """Fit one series and count what came out; a refused fit or forecast counts as none."""
        try:
            fit = fit_performance(entropies, rewards)
        except FitRefused:
            return
        self._add_forecast(entropies, rewards)
        passed = {check.code: check.passed for check in fit.checks}
        self.fits += 1
        self.a += _holds(fit.a, A)
        self.ceiling += _holds(fit.rewards_at(np.zeros(1))[0], B - A)
        self.slope += not passed["slope"]
        self.shape += not passed["shape"]
        self.halves += not passed["halves"]
        self.conclusive += fit.conclusive

    def _add_forecast(self, entropies: Floats, rewards: Floats) -> None:
        steps = len(entropies)
        try:
            made = forecast(np.arange(steps), entropies, rewards, horizon=steps)
        except FitRefused:
            return
        self.forecasts += 1
        self.forecast_holds += _holds(made.reward, float(curve(np.array([made.at_entropy]))[0]))


def _holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def repeat(case: Case, steps: int, seeds: int) -> Found:
    """Fit a case with so many seeds."""
    found = Found()
    for seed in range(seeds):
        found.add(*case(steps, np.random.default_rng(seed)))
    return found


def main(seeds: int) -> None:
    print(f"{seeds} seeds each; shares of the fits.\n")
    print(
        "| series | steps | a in its interval | b - a | forecast | shape fails | halves fail |"
        " conclusive |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, case in TRUE.items():
        for steps in (20, 60, 200, 600, 2000):
            of = repeat(case, steps, seeds)
            a, ceiling, *failed = (
                f"{count / max(1, of.fits):.2f}"
                for count in (of.a, of.ceiling, of.shape, of.halves, of.conclusive)
            )
            made = f"{of.forecast_holds / of.forecasts:.2f}" if of.forecasts else "refused"
            print(f"| {name} | {steps} | {' | '.join((a, ceiling, made, *failed))} |", flush=True)
    print("\n| series | steps | slope fails | shape fails | halves fail | conclusive |")
    print("|---|---|---|---|---|---|")
    for name, case in FALSE.items():
        for steps in (20, 60, 200, 600, 2000):
            of = repeat(case, steps, seeds)
            shares = [
                count / max(1, of.fits) for count in (of.slope, of.shape, of.halves, of.conclusive)
            ]
            print(
                f"| {name} | {steps} | {' | '.join(f'{share:.2f}' for share in shares)} |",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
