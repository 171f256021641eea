"""Work that keeps failing is tried less and less often, and each reason is logged once."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from isentrope_server import housekeeping
from isentrope_server.background import LONGEST_SECONDS, RetryPauses
from isentrope_server.store.reports import packing
from tests.server.compaction import EVERYTHING, NEVER, finished_run, reports_of_rows
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread

KEY = 7


@pytest.fixture(autouse=True)
def whole_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope_wire.backoff.random.uniform", lambda _least, most: most)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FailingWork:
    """Work that fails for the reasons given, one after the other, the last one for ever; None: it succeeds."""

    def __init__(self, *reasons: str | None) -> None:
        self.reasons = list(reasons)
        self.tries = 0

    async def __call__(self) -> bool:
        reason = self.reasons[min(self.tries, len(self.reasons) - 1)]
        self.tries += 1
        if reason is not None:
            raise ValueError(reason)
        return True


def try_for(seconds: int, work: FailingWork, pauses: RetryPauses, clock: Clock) -> list[int]:
    """Look every two seconds whether there is something to do; returns when it was tried."""
    tried = []
    end = clock.seconds + seconds
    while clock.seconds < end:
        if not pauses.is_paused(KEY):
            tried.append(int(clock.seconds))
            asyncio.run(pauses.attempt(KEY, work(), what="Packing stream 7"))
        clock.seconds += 2
    return tried


def test_it_is_paused_twice_as_long_each_time_but_never_for_more_than_an_hour() -> None:
    clock = Clock()
    tried = try_for(86_400, FailingWork("torn"), RetryPauses(2.0, clock), clock)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:4] == [2, 4, 8, 16]
    assert set(pauses[12:]) == {int(LONGEST_SECONDS)}
    assert len(tried) < 40


def test_each_reason_is_logged_once_until_a_success(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    pauses = RetryPauses(2.0, clock)
    try_for(3_600, FailingWork("torn", "torn", "too short", "torn", "too short"), pauses, clock)
    assert ["torn" in message for message in caplog.messages] == [True, False]
    assert "Packing stream 7" in caplog.messages[0]
    assert "2.0 s" in caplog.messages[0]
    assert all(record.exc_info for record in caplog.records)
    clock.seconds += LONGEST_SECONDS
    try_for(2, FailingWork(None), pauses, clock)
    assert try_for(6, FailingWork("torn"), pauses, clock) == [int(clock.seconds) - 6, int(clock.seconds) - 4]
    assert len(caplog.messages) == 3


def test_a_stream_that_is_gone_leaves_no_trace() -> None:
    clock = Clock()
    pauses = RetryPauses(2.0, clock)
    try_for(2, FailingWork("torn"), pauses, clock)
    clock.seconds = 0.0
    assert pauses.is_paused(KEY)
    pauses.keep_only({KEY + 1})
    assert not pauses.is_paused(KEY)


def test_housekeeping_leaves_a_stream_alone_that_could_not_be_packed_and_packs_it_once_it_can(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    rank = finished_run(server, 20)
    clock = Clock()
    pauses = RetryPauses(2.0, clock)
    join_next = packing.join_next
    tried: list[int] = []

    def fail(_connection: object, stream: packing.FullStream, *_more: object, **_named: object) -> object:
        tried.append(stream.stream_key)
        raise ValueError("this blob is no multiple of 8 bytes")

    monkeypatch.setattr(packing, "join_next", fail)
    assert [keep_house(server, pauses) for _ in range(5)] == [0] * 5
    assert len(tried) == 1
    assert caplog.text.count("Traceback") == 1
    monkeypatch.setattr(packing, "join_next", join_next)
    clock.seconds = 2.0
    assert keep_house(server, pauses) == 1
    assert reports_of_rows(server, rank, packed=False) == []


def keep_house(server: ServerInThread, pauses: RetryPauses) -> int:
    return asyncio.run(housekeeping.pack(server.backend, EVERYTHING, pauses))
