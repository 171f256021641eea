"""A run whose reports hold now these metrics, now those: as many layouts as reports, and every
answer as with one."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from sqlalchemy import func, select

from isentrope_server.store.reports import series
from isentrope_server.store.rows import RowSizes
from isentrope_server.store.tables import report_layouts
from isentrope_wire.reports import ScoreHistogram, StepReport
from tests.server.compaction import pack_all, reports_of_rows
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

DATABASES = ("sqlite", "postgresql")

STEPS = 60
TASKS = [f"reward/task_{task}" for task in range(30)]


def many_tasks(server: ServerInThread, at_once: int) -> tuple[Rank, list[StepReport]]:
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
        histograms = (
            [ScoreHistogram(name="score", low=0.0, high=1.0, counts=counts)] if step % 3 else []
        )
        reports.append(step_report(step, scalars, histograms=histograms))
    for start in range(0, STEPS, at_once):
        rank.send(*reports[start : start + at_once])
    return rank, reports


def get(server: ServerInThread, path: str, **params: object) -> dict[str, Any]:
    answer = server.http.get(path, params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def as_answered(value: float) -> float | str:
    return "NaN" if math.isnan(value) else value


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("at_once", [1, 60])
def test_every_answer_is_what_the_reports_said(
    still: ServerInThread, at_once: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "_PLACES_AT_ONCE", 320)
    rank, reports = many_tasks(still, at_once)
    if packed:
        pack_all(still, RowSizes(reports=10, fewest=1))
    assert sum(reports_of_rows(still, rank, packed=packed)) == STEPS
    names = ["reward/mean", "once", *TASKS]
    whole = get(still, f"{rank.path}/metrics/series", name=names)["series"]
    some = get(still, f"{rank.path}/metrics/series", name=names, from_step=31, to_step=47)["series"]
    for name in names:
        reported = {
            report.step: as_answered(report.scalars[name])
            for report in reports
            if name in report.scalars
        }
        assert dict(zip(whole[name]["step"], whole[name]["value"], strict=True)) == reported
        within = {step: value for step, value in reported.items() if 31 <= step <= 47}
        assert dict(zip(some[name]["step"], some[name]["value"], strict=True)) == within
    newest = {
        name: (report.step, as_answered(value))
        for report in reports
        for name, value in report.scalars.items()
    }
    items = get(still, f"{rank.path}/metrics")["items"]
    assert {item["name"]: (item["step"], item["value"]) for item in items} == newest
    assert newest["once"] == (2, 3.0)
    histograms = get(still, f"{rank.path}/histograms/score")
    counted = {
        report.step: list(report.histograms[0].counts) for report in reports if report.histograms
    }
    assert dict(zip(histograms["step"], histograms["counts"], strict=True)) == counted


def test_what_is_packed_leaves_no_layout_that_no_row_has(still: ServerInThread) -> None:
    rank, _ = many_tasks(still, 1)
    other = Rank(still)
    other.report(0, x=1.0)
    assert layouts_in(still) > STEPS / 2
    pack_all(still, RowSizes(reports=STEPS, fewest=1))
    assert layouts_in(still) == 2
    assert [item["name"] for item in get(still, f"{other.path}/metrics")["items"]] == ["x"]
    assert len(get(still, f"{rank.path}/metrics")["items"]) == 32


def layouts_in(server: ServerInThread) -> int:
    with server.backend.database.reading() as connection:
        return connection.execute(select(func.count()).select_from(report_layouts)).scalar_one()
