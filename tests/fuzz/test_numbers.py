"""No number that a loop can log, however odd, keeps a run from being judged: the probe's alerts and
the server's diagnosis, preview, outlook and digest answer."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from isentrope.statistics.alerts import AlertWatch
from isentrope_server.digests import digest_of
from isentrope_server.store import runs
from isentrope_wire.control import Control
from isentrope_wire.metrics import METRICS
from isentrope_wire.reports import ControlSnapshot, StepReport
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report
from tests.wire.test_diagnosis import sums

ODD = (
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 1e154, 5e-324, 1e-200),
    *(-1.0, 0.0, 1e18, -1e18, 20.1, 300.0),
)
JUDGED = (
    *("entropy/mean", "entropy/observed_change", "entropy/predicted_change", "entropy/gain"),
    *("change/by_intervention", "hold/target", "hold/mu", "reward/mean"),
)
CLIP, HOLD = Control(method="clip_v", mu_low=1.0, mu_high=1.0), {"target_entropy": 1.0}
ASKED = (
    ("GET", "/diagnosis", None),
    ("GET", "/checks", None),
    ("GET", "/law", None),
    ("GET", "/control/history", None),
    ("POST", "/control/preview?curves=true", {"method": "clip_v", "mu_low": 1.0, "mu_high": 0.5}),
    ("POST", "/control/preview", {"method": "clip_v", "hold": HOLD}),
    ("POST", "/outlook", {"curves": True}),
)


def odd_reports(chance: random.Random, steps: int) -> list[StepReport]:
    """A run of which some metrics are odd: always, at times, at first or at last."""
    names = [*dict.fromkeys([*JUDGED, *chance.sample([*METRICS], 30)])]
    odd = chance.sample(names, chance.choice([1, 8, len(names)]))
    places = {name: chance.choice(["always", "at times", "first", "last"]) for name in odd}
    kinds = {name: chance.choice(ODD) for name in odd}
    slope = chance.choice([-0.2, -0.01, 0.0, 0.02])
    reports = []
    for step in range(steps):
        scalars = {name: chance.gauss(0.2, 0.3) for name in names}
        scalars["entropy/mean"] = max(0.02, 1 + slope * step) + chance.gauss(0, 0.01)
        where = {"always"} | ({"first"} if step < 3 else set())
        where |= {"last"} if step >= steps - 2 else set()
        where |= {"at times"} if chance.random() < 0.2 else set()
        scalars |= {name: kinds[name] for name in odd if places[name] in where}
        left_out = {name for name in names if chance.random() < chance.choice([0.0, 0.3])}
        report = step_report(step, {n: v for n, v in scalars.items() if n not in left_out})
        if chance.random() < 0.5:
            report = replace(report, what_if=sums(chance.choice([-4.0, 4.0, *ODD])))
        reports.append(report)
    return reports


@pytest.mark.parametrize("seed", [*range(4), 237])
def test_alerts_of_any_numbers_are_found(seed: int) -> None:
    chance = random.Random(seed)
    watch = AlertWatch()
    control = chance.choice([CLIP, Control(method="clip_v", hold=HOLD)])
    active = ControlSnapshot(version=1, control=control, author="a", requested_at=1.0)
    for report in odd_reports(chance, 40):
        watch.step(report.step, report.scalars, report.labels, report.what_if, active)


@pytest.fixture(scope="module")
def odd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with ServerInThread(tmp_path_factory.mktemp("odd") / "home") as running:
        yield running


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_runs_of_any_numbers_are_judged(odd_server: ServerInThread, seed: int) -> None:
    chance = random.Random(seed)
    reports = odd_reports(chance, chance.choice([1, 12, 40]))
    rank = Rank(odd_server)
    half = len(reports) // 2
    for report in reports[:half]:
        rank.send(report)
    wanted = chance.choice([CLIP.to_document(), {"method": "clip_v", "hold": HOLD}])
    odd_server.http.put(f"{rank.path}/control", json=wanted, headers={"If-Match": '"0"'})
    rank.answer(reports[half].step, 1, "APPLIED", active=1)
    rank.send(*(replace(report, control_version=1) for report in reports[half:]))
    for verb, path, asked in ASKED:
        answer = odd_server.http.request(verb, rank.path + path, json=asked)
        assert answer.status_code < 500, (path, answer.text)
        answer.json()
    with odd_server.backend.database.reading() as connection:
        run = runs.find(connection, rank.run_id, silent_after_seconds=60.0)
        assert run is not None
        digest_of(connection, run)
