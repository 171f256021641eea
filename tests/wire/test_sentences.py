"""What diagnosis and alerts say of a run is true of the numbers beside it, at each step."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Mapping
from statistics import fmean, median

import pytest

from isentrope.statistics.alerts import AlertWatch
from isentrope_wire.answers import HealthLevel
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, Verdict
from isentrope_wire.diagnosis.course import DIRECTIONS
from isentrope_wire.diagnosis.health import Diagnosis, Measured, diagnose
from isentrope_wire.diagnosis.verdict import add_reward, judged_after, verdict_on
from isentrope_wire.reports import Alert, AlertLevel, ControlSnapshot
from tests.countdown import countdown_run
from tests.wire.test_diagnosis import version

Rows = dict[int, dict[str, float]]
APPLIED = 41
CLIP = Control(method="clip_v", mu_low=2.0, mu_high=2.0, scope="decreasing")


def made(entropy: Callable[[int], float], reward: Callable[[int], float], seed: int = 0) -> Rows:
    draw = random.Random(seed)
    return {
        step: {
            "entropy/mean": entropy(step) * math.exp(draw.gauss(0, 0.03)),
            "reward/mean": reward(step) + draw.gauss(0, 0.02),
            "advantage/zero_group_fraction": 0.2,
        }
        for step in range(1, 131)
    }


def sigmoid(step: int) -> float:
    return 1 / (1 + math.exp((70 - step) / 10))


def walk(seed: int) -> list[float]:
    draw = random.Random(seed)
    return list(itertools.accumulate((draw.gauss(0, 0.03) for _ in range(132)), initial=0.0))


RUNS: dict[str, Callable[[], Rows]] = {
    "walk": lambda: made(lambda step: 0.6 * math.exp(walk(1)[step]), lambda step: 0.4),
    "falling walk": lambda: made(
        lambda step: 0.6 * math.exp(walk(2)[step] - 0.01 * step), lambda step: 0.4
    ),
    "learns": lambda: made(
        lambda step: 0.6 - 0.45 * sigmoid(step), lambda step: 0.2 + 0.6 * sigmoid(step)
    ),
    "level": lambda: made(lambda step: 0.5, lambda step: 0.4),
    "restarts": lambda: made(
        lambda step: 0.6 * math.exp(-0.012 * (step if step < 80 else step - 60)),
        lambda step: 0.3 + 0.002 * (step if step < 80 else step - 60),
    ),
}
CURED: dict[str, Callable[[], Rows]] = {
    "cured": lambda: made(
        lambda step: 0.6 * math.exp(-0.02 * min(step, 40)) + 0.001 * max(0, step - 40),
        lambda step: 0.3 + 0.002 * min(step, 60),
    ),
    "cured at a price": lambda: made(
        lambda step: 0.6 * math.exp(-0.02 * min(step, 40)) + 0.004 * max(0, step - 40),
        lambda step: 0.3 + 0.003 * min(step, 40) - 0.005 * max(0, min(step - 40, 40)),
    ),
}


def rises(rewards: list[float], newest: int = 10) -> bool:
    """The newest are higher than twice as many before."""
    return median(rewards[-newest:]) > median(rewards[-3 * newest : -newest])


def check_diagnosis(
    found: Diagnosis, rewards: list[float], active: ControlVersion | None, *, is_of_entropy: bool
) -> None:
    said, entropy = found.message, found.entropy
    assert entropy is not None
    if found.forecast is None or found.mean_pace is None:
        return
    ahead, pace = found.forecast.entropy[-1], found.mean_pace.value
    lost = found.share_lost or 0.0
    if found.level == HealthLevel.ACT and is_of_entropy:
        assert (ahead - entropy) * (-1 if lost > 0 else 1) >= -1e-9
        assert (" and rises" if lost > 0 else " and falls") not in said
        assert " and is level" not in said
    if "Entropy holds" in said:
        assert abs(pace) < 0.005 * entropy
        assert abs(math.log(ahead / entropy)) < 0.11
    for word, way in ((" and falls", -1), (" and rises", 1)):
        if word in said:
            assert way * (ahead - entropy) > 0
            assert way * pace > 0
    if "The reward still rises" in said:
        assert rises(rewards)
    if "while the reward rises" in said:
        assert rises(rewards) or rises(rewards, 20)
        assert active is None
        assert "The reward fell" not in said


def check_alert(alert: Alert) -> None:
    """An act forecasts no way back."""
    numbers = re.search(
        r": ([\d.e-]+) instead of .* In 50 steps it comes to ([\d.e-]+) nats", alert.message
    )
    if alert.kind in DIRECTIONS and alert.level == AlertLevel.ACT and numbers:
        now, ahead = map(float, numbers.groups())
        assert DIRECTIONS[alert.kind] * (ahead - now) >= 0, alert.message


def watched(rows: Rows, control: Control | None = None) -> AlertWatch:
    """Checks each step's alerts, and each fifth step's diagnosis."""
    watch, alerts = AlertWatch(), list[Alert]()
    for step, row in rows.items():
        active = snapshot = None
        if control is not None and step >= APPLIED:
            active = version(control, version=1, requested_step=40, applied_step=APPLIED)
            snapshot = ControlSnapshot(version=1, control=control, author="ada", requested_at=0.0)
        news = watch.step(step, row, {}, active=snapshot)
        for alert in news:
            check_alert(alert)
        alerts += news
        if "collapse" in watch.following_now.values():
            assert watch.course.share_lost is not None
            assert watch.course.share_lost >= 0.2
            assert watch.course.directions[-1] <= 0
        if step % 5 == 0:
            check_step(rows, step, watch, active, is_of_entropy=not overshoots(alerts))
    return watch


def overshoots(alerts: list[Alert]) -> bool:
    return any(alert.kind not in DIRECTIONS and alert.level == AlertLevel.ACT for alert in alerts)


def check_step(
    rows: Rows, step: int, watch: AlertWatch, active: ControlVersion | None, *, is_of_entropy: bool
) -> None:
    entropies, rewards = (
        {at: row[name] for at, row in rows.items() if at <= step and name in row}
        for name in ("entropy/mean", "reward/mean")
    )
    measured = Measured(
        step=step,
        first_step=1,
        early_entropies=list(entropies.values())[:3],
        entropies=entropies,
        rewards=rewards,
        applied_steps=[APPLIED] if active else [],
        active=active,
        newest=active,
        verdict=None if active is None else verdict_of_step(active, entropies, rewards, step),
        before=None if active is None else Control(),
        said=watch.urgency_held_back,
        holding=watch.holding,
    )
    found = diagnose(measured)
    check_diagnosis(found, [*rewards.values()], active, is_of_entropy=is_of_entropy)


def verdict_of_step(
    active: ControlVersion,
    entropies: Mapping[int, float],
    rewards: Mapping[int, float],
    step: int,
) -> Verdict:
    last = APPLIED + (judged_after(step - APPLIED + 1) or step - APPLIED + 1) - 1
    under = dict.fromkeys(range(APPLIED, last + 1), 0.006)
    judged = {at: value for at, value in entropies.items() if at <= last}
    verdict = verdict_on(active, judged, {}, under, early=0.6, end=step)
    assert verdict is not None
    verdict = add_reward(verdict, rewards, APPLIED, step)
    if verdict.reward is not None:
        before = fmean(rewards[at] for at in range(APPLIED - verdict.reward.steps_before, APPLIED))
        newest = fmean([*rewards.values()][-verdict.reward.steps :])
        assert verdict.reward.direction * (newest - before) >= 0
    return verdict


@pytest.mark.parametrize("name", RUNS)
def test_sentences_agree_with_their_numbers(name: str) -> None:
    watched(RUNS[name]())


@pytest.mark.parametrize("name", CURED)
def test_sentences_under_a_control_agree(name: str) -> None:
    watch = watched(CURED[name](), CLIP)
    assert "collapse" not in watch.following_now.values()


@pytest.mark.slow
def test_sentences_of_a_recorded_run_agree() -> None:
    reports = countdown_run().reports
    watched({report.step: dict(report.scalars) for report in reports if report.step < 81})
