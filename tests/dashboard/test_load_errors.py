"""A part of the run page that fails to load is reported in its own place, and the rest stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import ids
from isentrope_dashboard.components.load_errors import PLACES
from isentrope_dashboard.pages.run import run_page
from isentrope_dashboard.pages.snapshot import View, read_slow_parts, read_snapshot
from tests.dashboard.fake_api import TOKEN, FakeApi

Answer = TypeVar("Answer")

RUN_ID = "run-000001"
PLACES_OF_CALLS = {
    "/law": {ids.LAW_GRAPH},
    "/alerts": {ids.ALERTS},
    "/tokens": {ids.TOKENS},
    "/steps/30": {ids.DEAD_KNOBS},
    "/metrics": {ids.RECORD},
    "/metrics/series": {ids.ENTROPY_GRAPH, ids.SPLIT_GRAPH, ids.KPI_CARDS},
    "/gaps": {ids.RECORD_GAPS},
    "/histograms/score/vocab_centered": {ids.SCORE_GRAPH},
    "/control/history": {ids.HISTORY_GRID},
}
"""End of the address of a call -> the places where its failure is shown."""


def finish(work: Coroutine[Any, Any, Answer]) -> Answer:
    """In a thread of its own: where a browser runs beside it, this one's loop is taken."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def page(served: str) -> Any:
    """The built page of the run."""

    async def work() -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"{served}/api/v1/", headers=headers, trust_env=False) as http:
            client = AsyncClient(http)
            run, view = await client.ask(calls.run(RUN_ID)), View()
            snapshot = await read_snapshot(client, run, view)
            return run_page(snapshot, await read_slow_parts(client, run, view, with_law=True), [], view)

    return finish(work())


def notes_on(built: Any) -> dict[str, str]:
    """Place -> the note shown there."""
    notes = {place: built[ids.load_error(place)].children for place in PLACES}
    return {place: note for place, note in notes.items() if note}


def test_each_failure_is_shown_in_its_own_place_alone(fake: FakeApi, served: str) -> None:
    fake.add_run(steps=30)
    assert notes_on(page(served)) == {}
    for ending, places in PLACES_OF_CALLS.items():
        fake.failing = {ending: 500}
        notes = notes_on(page(served))
        assert notes.keys() == places, ending
        assert all(note.endswith(f"{ending} answers 500.") for note in notes.values())


def test_every_place_is_that_of_a_call() -> None:
    assert set(PLACES) == set().union(*PLACES_OF_CALLS.values())


@pytest.mark.parametrize("status", [401, 404])
def test_without_the_run_or_without_a_reader_there_is_no_page(fake: FakeApi, served: str, status: int) -> None:
    fake.add_run(steps=3)
    fake.failing = {f"/{RUN_ID}": 404} if status == 404 else {"/law": 401}
    with pytest.raises(ApiError) as refused:
        page(served)
    assert refused.value.status == status
