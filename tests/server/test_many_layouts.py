"""A run whose reports hold now these metrics, now those: as many layouts as reports, and every answer as with one."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest
from sqlalchemy import func, select

from isentrope_server.housekeeping import remove_unused_layouts
from isentrope_server.store.reports import series
from isentrope_server.store.reports.compacting import BlockSizes
from isentrope_server.store.tables import report_layouts, stream_layouts
from isentrope_wire.reports import ScoreHistogram, StepReport
from tests.server.compaction import NEVER, pack_all, unpacked_reports
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

DATABASES = ("sqlite", "postgresql")

STEPS = 60
TASKS = [f"reward/task_{task}" for task in range(30)]


@pytest.fixture
def still(make_server: MakeServer) -> ServerInThread:
    """A server that packs only on request."""
    return make_server(housekeeping_interval_seconds=NEVER)


def many_tasks(server: ServerInThread) -> tuple[Rank, list[StepReport]]:
    """Each step reports some tasks; one metric comes once and never again."""
    rng = random.Random(0)
    rank, reports = Rank(server), []
    for step in range(STEPS):
        scalars = {
            "reward/mean": step / 7,
            **{task: rng.choice([rng.random(), math.nan]) for task in rng.sample(TASKS, 6)},
        }
        scalars |= {"once": 3.0} if step == 2 else {}
        counts = tuple(rng.randrange(100) for _ in range(8))
        histograms = [ScoreHistogram(name="score", low=0.0, high=1.0, counts=counts)] if step % 3 else []
        reports.append(step_report(step, scalars, histograms=histograms))
    rank.send(*reports)
    return rank, reports


def layouts_of(server: ServerInThread) -> tuple[int, int]:
    """How many the streams use, and how many there are."""
    with server.backend.database.reading() as connection:
        used, there = (
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (stream_layouts, report_layouts)
        )
        return used, there


def get(server: ServerInThread, path: str, **params: object) -> dict[str, Any]:
    answer = server.http.get(path, params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def as_answered(value: float) -> float | str:
    return "NaN" if math.isnan(value) else value


@pytest.mark.parametrize("left_unpacked", [STEPS, 20, 0])
def test_every_answer_is_what_the_reports_said(
    still: ServerInThread, left_unpacked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "_ROWS_AT_ONCE", 7)
    rank, reports = many_tasks(still)
    pack_all(still, BlockSizes(reports=10, left_unpacked=left_unpacked, fewest=1))
    assert unpacked_reports(still, rank) == left_unpacked
    names = ["reward/mean", "once", *TASKS]
    whole = get(still, f"{rank.path}/metrics/series", name=names)["series"]
    some = get(still, f"{rank.path}/metrics/series", name=names, from_step=31, to_step=47)["series"]
    for name in names:
        reported = {report.step: as_answered(report.scalars[name]) for report in reports if name in report.scalars}
        assert dict(zip(whole[name]["step"], whole[name]["value"], strict=True)) == reported
        within = {step: value for step, value in reported.items() if 31 <= step <= 47}
        assert dict(zip(some[name]["step"], some[name]["value"], strict=True)) == within
    newest = {name: (report.step, as_answered(value)) for report in reports for name, value in report.scalars.items()}
    items = get(still, f"{rank.path}/metrics")["items"]
    assert {item["name"]: (item["step"], item["value"]) for item in items} == newest
    assert newest["once"] == (2, 3.0)
    histograms = get(still, f"{rank.path}/histograms/score")
    counted = {report.step: list(report.histograms[0].counts) for report in reports if report.histograms}
    assert dict(zip(histograms["step"], histograms["counts"], strict=True)) == counted


def test_what_is_packed_leaves_one_layout(still: ServerInThread) -> None:
    many_tasks(still)
    used, there = layouts_of(still)
    assert used == there > STEPS / 2
    pack_all(still, BlockSizes(reports=10, left_unpacked=20, fewest=1))
    used, _ = layouts_of(still)
    assert used == 21
    pack_all(still, BlockSizes(reports=10, left_unpacked=0, fewest=1))
    asyncio.run(remove_unused_layouts(still.backend))
    assert layouts_of(still) == (1, 1)


@pytest.mark.parametrize("left_unpacked", [1, 2])
def test_a_layout_that_unites_others_may_be_that_of_newer_reports(still: ServerInThread, left_unpacked: int) -> None:
    rank = Rank(still)
    both = [step_report(step, {"x": step + 0.5, "y": step + 0.25}) for step in (2, 3)]
    rank.send(step_report(0, {"x": 0.5}), step_report(1, {"y": 1.25}), *both)
    pack_all(still, BlockSizes(reports=1, left_unpacked=left_unpacked, fewest=1))
    assert layouts_of(still)[0] == 1
    assert [(item["name"], item["step"]) for item in get(still, f"{rank.path}/metrics")["items"]] == [
        ("x", 3),
        ("y", 3),
    ]
    rank.send(step_report(4, {"x": 4.5, "y": 4.25}), step_report(5, {"z": 5.5}))
    pack_all(still, BlockSizes(reports=1, left_unpacked=2, fewest=1))
    whole = get(still, f"{rank.path}/metrics/series", name=["x", "y", "z"])["series"]
    assert {name: columns["value"] for name, columns in whole.items()} == {
        "x": [0.5, 2.5, 3.5, 4.5],
        "y": [1.25, 2.25, 3.25, 4.25],
        "z": [5.5],
    }
    newest = [(item["name"], item["step"]) for item in get(still, f"{rank.path}/metrics")["items"]]
    assert newest == [("x", 4), ("y", 4), ("z", 5)]


def test_another_run_keeps_the_layouts_it_uses(still: ServerInThread) -> None:
    rank, _ = many_tasks(still)
    other = Rank(still)
    other.report(0, x=1.0)
    pack_all(still)
    asyncio.run(remove_unused_layouts(still.backend))
    assert [item["name"] for item in get(still, f"{other.path}/metrics")["items"]] == ["x"]
    assert len(get(still, f"{rank.path}/metrics")["items"]) == 32


def test_the_same_run_reported_by_two_ranks_is_read_from_the_first(still: ServerInThread) -> None:
    rank, reports = many_tasks(still)
    second = Rank(still, run_id=rank.run_id, rank=1, started_at=rank.started.started_at)
    second.send(*(step_report(step, {"reward/mean": -1.0, f"own/{step % 9}": 1.0}) for step in range(STEPS + 5)))
    values = get(still, f"{rank.path}/metrics/series", name=["reward/mean"])["series"]["reward/mean"]["value"]
    assert values == [report.scalars["reward/mean"] for report in reports] + [-1.0] * 5
