"""What the tests of packed reports share: runs of all kinds, everything the API answers about them,
and packing at once."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any
from urllib.parse import quote

from sqlalchemy import select

from isentrope_server.api import dependencies
from isentrope_server.housekeeping import pack
from isentrope_server.store import runs
from isentrope_server.store.rows import RowSizes
from isentrope_server.store.tables import records
from isentrope_wire.reports import RunFinished, ScoreHistogram, StepReport
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report, wire_record

NEVER = 1e9
"""Seconds: a server that does its housekeeping on request."""
EVERYTHING = RowSizes(reports=16, fewest=1)
NAMES = ("entropy/mean", "reward/mean", "eval/score", "odd")
HISTOGRAMS = ("entropy/token", "score/discriminator")


def pack_all(server: ServerInThread, sizes: RowSizes = EVERYTHING) -> int:
    """Pack as often as there is something to pack; returns how many rows that made."""
    return asyncio.run(_pack_all(server, sizes))


async def _pack_all(server: ServerInThread, sizes: RowSizes) -> int:
    made, more = 0, True
    while more:
        more = bool(found := await pack(server.backend, sizes))
        made += found
    return made


def eventful_run(server: ServerInThread, seed: int) -> Rank:
    """Two ranks and a resume, steps that repeat, jump and go back, metrics that come and go, NaN
    and infinities."""
    rng = random.Random(seed)
    first = Rank(server, started_at=1000.0)
    second = Rank(server, run_id=first.run_id, rank=1, started_at=1000.0)
    for start in range(0, 60, 5):
        first.send(*(_report(rng, step) for step in range(start, start + 5)))
        second.send(*(_report(rng, step) for step in range(start, start + 5) if rng.random() < 0.7))
    first.send(_report(rng, 57), _report(rng, 57), _report(rng, 1000))
    _send_in_disorder(first, [_report(rng, step) for step in range(1001, 1011)], rng)
    resumed = Rank(server, run_id=first.run_id, incarnation="resumed", started_at=2000.0)
    resumed.send(*(_report(rng, step) for step in range(50, 90)))
    return first


def finished_run(server: ServerInThread, reports: int, *, name: str = "a run") -> Rank:
    rank = Rank(server, name=name)
    for start in range(0, reports, 200):
        rank.send(
            *(
                step_report(
                    step,
                    {f"metric/{number}": step / 7 + number for number in range(20)},
                    histograms=[
                        ScoreHistogram(
                            name="h", low=0.0, high=1.0, counts=tuple(range(step, step + 64))
                        )
                    ],
                )
                for step in range(start, min(start + 200, reports))
            )
        )
    rank.send(RunFinished(status="finished", finished_at=2.0, step=reports - 1))
    return rank


def _send_in_disorder(rank: Rank, reports: list[StepReport], rng: random.Random) -> None:
    records = [wire_record(rank.seq + 1 + index, report) for index, report in enumerate(reports)]
    rank.seq += len(reports)
    rng.shuffle(records)
    for record in records:
        rank.push([record])


def _report(rng: random.Random, step: int) -> StepReport:
    scalars = {
        "entropy/mean": rng.gauss(1.0, 0.1),
        "reward/mean": rng.choice([0.5, math.nan, math.inf, -math.inf]),
    }
    if step % 7 == 0:
        scalars["eval/score"] = rng.random()
    if rng.random() < 0.1:
        scalars = {"odd": -0.0}
    bins = 8 if rng.random() < 0.8 else 5
    large = 2**40 if rng.random() < 0.1 else 100
    histograms = [
        ScoreHistogram(
            name=name,
            low=rng.choice([0.0, math.nan]),
            high=2.0,
            counts=tuple(rng.randrange(large) for _ in range(bins)),
            not_finite=rng.randrange(3),
        )
        for name in HISTOGRAMS
        if rng.random() < 0.9
    ]
    labels = {"control/method": rng.choice(["none", "clip_v"])} if rng.random() < 0.8 else {}
    return step_report(
        step, scalars, histograms=histograms, labels=labels, control_version=step % 3
    )


def everything_said_of(server: ServerInThread, rank: Rank) -> dict[str, Any]:
    """The answers of every route about a run's reports."""
    paths = ["", "/metrics", "/alerts", "/law"]
    names = "&".join(f"name={quote(name)}" for name in NAMES)
    positions = (1, 17, 80, 150)
    since = [
        f"&since={dependencies.encode(position, _timeline_version(server, rank))}"
        for position in positions
    ]
    for more in ("", "&points=7", "&from_step=10&to_step=55", "&from_step=57&to_step=57", *since):
        paths.append(f"/metrics/series?{names}{more}")
    for name in HISTOGRAMS:
        paths += [
            f"/histograms/{name}{more}" for more in ("", "?points=7", "?from_step=10&to_step=55")
        ]
    paths += [
        f"/{what}?step={step}"
        for step in (3, 57)
        for what in ("tokens", "tokens/recurring", "rollouts")
    ]
    paths += [f"/steps/{step}" for step in (*range(0, 60, 7), 50, 57, 59, 89, 1000, 1005)]
    return {path: server.http.get(rank.path + path).json() for path in paths}


def key_of(server: ServerInThread, rank: Rank) -> int:
    with server.backend.database.reading() as connection:
        key = runs.key_of(connection, rank.run_id)
    assert key is not None
    return key


def reports_of_rows(server: ServerInThread, rank: Rank, *, packed: bool) -> list[int]:
    """How many reports each of the run's rows has, in order of position."""
    of_run = (records.c.run_key == key_of(server, rank)) & (records.c.kind == "step_report")
    query = (
        select(records.c.reports)
        .where(of_run, records.c.packed == packed)
        .order_by(records.c.last_position)
    )
    with server.backend.database.reading() as connection:
        return list(connection.execute(query).scalars())


def _timeline_version(server: ServerInThread, rank: Rank) -> int:
    with server.backend.database.reading() as connection:
        return runs.timeline_version(connection, key_of(server, rank))
