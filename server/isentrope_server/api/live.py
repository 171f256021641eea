"""A run's committed events as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from sqlalchemy.exc import SQLAlchemyError
from sse_starlette import EventSourceResponse, ServerSentEvent

from isentrope_server.api.dependencies import BackendDep, ReportCursor, RunDep, decode, read_of
from isentrope_server.api.metrics import current_cursor
from isentrope_server.api.responses import json_text
from isentrope_server.api.runs import describe
from isentrope_server.backend import Backend
from isentrope_server.control.versions import control_version
from isentrope_server.errors import NotFound
from isentrope_server.store import controls, runs
from isentrope_server.store.database import in_a_line
from isentrope_server.store.reports import steps
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import ControlChanged, RunChanged, StepStored
from isentrope_wire.numbers import Answer

router = APIRouter(tags=["live"])
_log = logging.getLogger(__name__)

_Event = ServerSentEvent | bytes
_CATCH_UP_STEPS = 500
"""Reports read at once while a resumed stream catches up."""


@router.get("/runs/{run_id}/live", response_class=EventSourceResponse)
async def follow_run(
    run: RunDep,
    backend: BackendDep,
    since: Annotated[
        str | None, Query(description="`cursor` of a series answer: begin right after it.")
    ] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Events `step`, `control` and `run`. Each has an id; `Last-Event-ID` (or `since`) resumes
    after it.

    An id past the newest report is of a database before it was restored: all reports are sent from
    the first one on."""
    given = last_event_id or since
    start = None if given is None else ReportCursor(*decode(given, 2))
    events = _while_the_store_answers(_LiveStream(backend, run, start).events())
    return EventSourceResponse(events, ping=15, headers={"Cache-Control": "no-store"})


async def _while_the_store_answers(events: AsyncIterator[_Event]) -> AsyncIterator[_Event]:
    """End a stream when the run was deleted or the database fails; the client reconnects with the
    id of its last event."""
    try:
        async for event in events:
            yield event
    except NotFound:
        return
    except SQLAlchemyError as error:
        _log.warning("A live stream ends, the store can't be read: %s", in_a_line(error))


class _LiveStream:
    """One client's stream: its position, and the events after it."""

    def __init__(self, backend: Backend, run: Run, start: ReportCursor | None) -> None:
        self._backend = backend
        self._run = run
        self._start = start
        self._place = ReportCursor(position=0, timeline=0)

    async def events(self) -> AsyncIterator[_Event]:
        """Events since `start`, then committed ones, until the run is deleted or the server
        stopped."""
        # Subscribe before reading: an event committed in between arrives twice and is sent once.
        with self._backend.hub.listening(self._run.id) as listener:
            now = await read_of(self._backend, self._run, lambda c: current_cursor(c, self._run))
            self._place = now if self._start is None else self._start
            if self._place.position > now.position:
                # Positions were used again since: the client knows other reports under them.
                self._place = ReportCursor(position=0, timeline=now.timeline)
            dropped = 0
            async for event in self._missed():
                yield event
            while not self._backend.hub.closing.is_set():
                committed = await listener.get(self._backend.settings.heartbeat_seconds)
                if listener.dropped > dropped:
                    # The client was too slow for its queue; the store has all reports.
                    dropped = listener.dropped
                    async for event in self._missed():
                        yield event
                    # A dropped event may have been a change of the run or its control.
                    committed = RunChanged(run_id=self._run.id)
                if isinstance(committed, StepStored):
                    if committed.position > self._place.position:
                        yield self._step(committed)
                elif committed is not None:
                    current = await self._current(committed)
                    if current is None:
                        return
                    yield current

    async def _missed(self) -> AsyncIterator[_Event]:
        found_all = False
        while not found_all:
            found = await read_of(
                self._backend,
                self._run,
                lambda c: steps.after(c, self._run.key, self._place.position, _CATCH_UP_STEPS),
            )
            for stored in found:
                yield self._step(stored)
            found_all = len(found) < _CATCH_UP_STEPS

    def _step(self, stored: StepStored) -> bytes:
        # The timeline stays that of the stream's beginning: a client that reads series with a later
        # cursor reads all of them again if an incarnation began meanwhile.
        self._place = ReportCursor(position=stored.position, timeline=self._place.timeline)
        # As `ServerSentEvent` encodes it, which would do so for each listener; JSON has no line
        # breaks.
        return b"id: %s\r\nevent: step\r\ndata: %s\r\n\r\n" % (
            str(self._place).encode(),
            stored.text,
        )

    async def _current(self, committed: ControlChanged | RunChanged) -> ServerSentEvent | None:
        """The changed control or run as it is now; None when the run was deleted."""
        backend, run = self._backend, self._run
        if isinstance(committed, ControlChanged):
            item = await backend.read(lambda c: controls.find(c, run.key, committed.version))
            return None if item is None else self._event("control", control_version(item))
        silent_after = backend.settings.silent_after_seconds
        current = await backend.read(
            lambda c: runs.find(c, run.id, silent_after_seconds=silent_after)
        )
        return None if current is None else self._event("run", await describe(backend, current))

    def _event(self, name: str, data: Answer) -> ServerSentEvent:
        return ServerSentEvent(event=name, id=str(self._place), data=json_text(data))
