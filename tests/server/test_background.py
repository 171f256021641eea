"""Work in the background: failures are logged, and later work is done all the same."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from isentrope_server import backend as backend_module
from isentrope_server import housekeeping
from isentrope_server.backend import RetryPauses, attempt
from isentrope_server.store.reports import packing
from tests.server.compaction import EVERYTHING, NEVER, finished_run, pack_all, reports_of_rows
from tests.server.conftest import MakeServer
from tests.system.running_server import wait_for


def fails_at_first(then: Callable[[], None]) -> Callable[..., object]:
    """An asynchronous function that fails unexpectedly, once."""
    calls = []

    async def work(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise ZeroDivisionError("by nothing")
        then()

    return work


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (housekeeping, "pack"),
        (housekeeping, "remove_deleted"),
        (housekeeping, "_sweep"),
        (backend_module.Backend, "reload_tokens"),
        (housekeeping, "note_uses"),
    ],
)
def test_unexpected_failure_is_logged_and_work_continues(
    make_server: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: object,
    name: str,
) -> None:
    went_on: list[float] = []
    monkeypatch.setattr(housekeeping, "RELOAD_SECONDS", 0.02)
    monkeypatch.setattr(housekeeping, "NOTE_USES_SECONDS", 0.02)
    monkeypatch.setattr(module, name, fails_at_first(lambda: went_on.append(time.time())))
    make_server(housekeeping_interval_seconds=0.02, sweep_interval_seconds=0.02)
    wait_for(lambda: went_on)
    (record,) = [record for record in caplog.records if record.name == "isentrope_server.backend"]
    assert record.levelno == logging.ERROR
    assert "ZeroDivisionError('by nothing')" in record.getMessage()
    assert record.exc_info


def test_a_stream_that_cannot_be_packed_keeps_no_other_waiting(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    broken, sound = finished_run(server, 40), finished_run(server, 20)
    join_next = packing.join_next

    def fail_for_one(
        connection: object, stream: packing.FullStream, *more: object, **named: object
    ) -> object:
        if stream.run_id == broken.run_id:
            raise ValueError("this blob is no multiple of 8 bytes")
        return join_next(connection, stream, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(packing, "join_next", fail_for_one)
    pack_all(server)
    assert [sum(reports_of_rows(server, rank, packed=True)) for rank in (broken, sound)] == [0, 20]
    assert f"of run {broken.run_id} failed" in caplog.text


def test_a_stream_that_could_not_be_packed_is_left_alone_for_a_while_and_packed_once_it_can(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    rank = finished_run(server, 20)

    def fail(*_more: object, **_named: object) -> object:
        raise ValueError("this blob is no multiple of 8 bytes")

    for pause, packed in ((60.0, 0), (0.0, 1)):
        monkeypatch.setattr(backend_module, "RETRY_SECONDS", pause)
        pauses = RetryPauses()
        with monkeypatch.context() as broken:
            broken.setattr(packing, "join_next", fail)
            assert asyncio.run(housekeeping.pack(server.backend, EVERYTHING, pauses)) == 0
        assert asyncio.run(housekeeping.pack(server.backend, EVERYTHING, pauses)) == packed
    assert caplog.text.count("Traceback") == 2
    assert reports_of_rows(server, rank, packed=False) == []


def test_the_housekeeper_rests_for_what_it_did_and_not_for_what_it_waited(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    finished_run(server, 40)
    join_next = packing.join_next
    efforts: list[float] = []

    def pack_late(*arguments: object, **named: object) -> object:
        time.sleep(0.5)
        return join_next(*arguments, **named)  # type: ignore[arg-type]

    async def note(_: object, effort: housekeeping.Effort) -> None:
        efforts.append(effort.seconds)

    monkeypatch.setattr(packing, "join_next", pack_late)
    monkeypatch.setattr(housekeeping, "_rest", note)
    pack_all(server)
    assert efforts
    assert all(0 < seconds < 0.4 for seconds in efforts)


def test_cancelling_ends_the_work_too() -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def cancel_it() -> None:
        task = asyncio.create_task(attempt(work(), what="Waiting"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())
    assert ended == [True]
