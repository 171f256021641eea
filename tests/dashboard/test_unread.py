"""A part of the run page that can't be read says so in its own place, and the rest stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest

from isentrope_dashboard import ids
from isentrope_dashboard.access import Credentials
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.components.load_errors import PLACES
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.pages.rereading import Rereading
from isentrope_dashboard.pages.run import run_page
from isentrope_dashboard.pages.snapshot import Reread, RunSnapshot, View, advance, read_law, read_snapshot
from isentrope_dashboard.records import LiveEvent, StepRow
from tests.dashboard.fake_api import SESSION_COOKIE, TOKEN, FakeApi

Answer = TypeVar("Answer")

RUN_ID = "run-000001"
PLACES_OF_CALLS = {
    "/methods": {ids.METHOD_FORMS},
    "/law": {ids.LAW_GRAPH},
    "/alerts": {ids.ALERTS},
    "/tokens": {ids.TOKENS},
    "/steps/30": {ids.DEAD_KNOBS},
    "/metrics": {ids.RECORD},
    "/metrics/series": {ids.ENTROPY_GRAPH, ids.SPLIT_GRAPH, ids.KPI_CARDS},
    "/gaps": {ids.RECORD_GAPS},
    "/histograms/score/vocab_centered": {ids.SCORE_GRAPH},
    "/control": {ids.CONTROL_PROGRESS},
    "/control/history": {ids.HISTORY_GRID},
}
"""What a call of the page's ends with -> where it is told that it failed."""
UNKNOWN_TO_OLDER_SERVERS = ("/methods", "/alerts", "/tokens", "/steps/30", "/gaps", "/score/vocab_centered", "/control")


def finish(work: Coroutine[Any, Any, Answer]) -> Answer:
    """In a thread of its own: where a browser runs beside it, this one's loop is taken."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def read(served: str) -> RunSnapshot:
    async def work() -> RunSnapshot:
        async with ApiSource(served).open(Credentials(session_cookies={SESSION_COOKIE: TOKEN})) as api:
            return await read_snapshot(api, RUN_ID, View())

    return finish(work())


def notes_of(snapshot: RunSnapshot) -> dict[str, str]:
    """Place -> what the built page says could not be read there."""
    page = run_page(snapshot, [snapshot.run], View())
    notes = {place: page[ids.unread(place)].children for place in PLACES}
    return {place: said for place, said in notes.items() if said}


def test_whichever_call_fails_its_own_place_alone_says_so(fake: FakeApi, served: str) -> None:
    fake.add_run(steps=30)
    assert notes_of(read(served)) == {}
    for ending, places in PLACES_OF_CALLS.items():
        fake.failing = {ending: 500}
        notes = notes_of(read(served))
        assert notes.keys() == places, ending
        assert all(said.endswith(f"could not be read: {ending} answers 500.") for said in notes.values())


def test_an_older_server_that_knows_less_is_no_failure(fake: FakeApi, served: str) -> None:
    fake.add_run(steps=30)
    fake.failing = dict.fromkeys(UNKNOWN_TO_OLDER_SERVERS, 404)
    assert notes_of(read(served)) == {}
    fake.failing = {"/law": 404}
    assert notes_of(read(served)).keys() == {ids.LAW_GRAPH}


def test_every_place_is_that_of_a_call() -> None:
    assert set(PLACES) == set().union(*PLACES_OF_CALLS.values())


@pytest.mark.parametrize("status", [401, 404])
def test_without_the_run_itself_or_without_a_reader_there_is_no_page(fake: FakeApi, served: str, status: int) -> None:
    fake.add_run(steps=3)
    fake.failing = {f"/{RUN_ID}": 404} if status == 404 else {"/law": 401}
    with pytest.raises(ApiError) as refused:
        read(served)
    assert refused.value.status == status


def law_of(handler: httpx.MockTransport) -> Reread:
    async def work() -> Reread:
        async with httpx.AsyncClient(transport=handler, base_url="http://server") as http:
            return await read_law(ApiClient(http), RUN_ID)

    return finish(work())


def test_an_answer_that_takes_too_long_is_one_part_but_a_server_that_is_gone_is_all() -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=request)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone", request=request)

    assert list(law_of(httpx.MockTransport(late)).unread.values()) == [
        f"The law could not be read: The server did not answer GET /runs/{RUN_ID}/law within 30 s."
    ]
    with pytest.raises(ApiUnreachableError):
        law_of(httpx.MockTransport(gone))


def test_what_is_read_again_heals_its_own_part_and_keeps_the_steps_that_came_meanwhile(
    fake: FakeApi, served: str
) -> None:
    fake.add_run(steps=30)
    fake.failing = {"/law": 500, "/control/history": 500}
    snapshot = read(served)
    moved = advance(
        snapshot, [LiveEvent(cursor="1", step=StepRow(step=31, scalars={}))], first=False, drawn_points=30
    ).snapshot
    healed = Reread(fields={"gaps": []}, parts=frozenset({"law"}), unread={}).onto(moved)
    assert (healed.recent[-1].step, set(healed.unread)) == (31, {"history"})


def test_steps_that_could_not_be_read_do_not_make_every_event_read_them_again(fake: FakeApi, served: str) -> None:
    fake.add_run(steps=30)
    event = LiveEvent(cursor="1", step=StepRow(step=31, scalars={}))
    fake.failing = {"/metrics/series": 500}
    assert not advance(read(served), [event], first=False, drawn_points=0).start_over
    fake.failing = {}
    empty = RunSnapshot(run=read(served).run, control=None)
    assert advance(empty, [event], first=False, drawn_points=0).start_over


def test_a_slow_reading_is_waited_for_by_nobody_and_runs_once_at_a_time() -> None:
    async def work() -> None:
        asked, answer = [], asyncio.Event()

        async def slow() -> Reread:
            asked.append(1)
            await answer.wait()
            return Reread(fields={}, parts=frozenset(), unread={})

        rereading = Rereading(0.0, step=5)
        rereading.begin_if_due(5, slow)
        await asyncio.sleep(0)
        assert asked == []  # no step came
        for step in (6, 7):
            rereading.begin_if_due(step, slow)
            await asyncio.sleep(0)
            assert rereading.take() is None
        assert asked == [1]
        answer.set()
        await asyncio.sleep(0.01)
        assert rereading.take() is not None
        assert rereading.take() is None
        answer.clear()
        rereading.begin_if_due(8, slow)
        await asyncio.sleep(0)
        await rereading.stop()
        assert asked == [1, 1]

    finish(work())
