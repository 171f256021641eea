"""One persistent WebSocket callback per open page keeps it up to date: subscribe, read, then follow.

`set_props` has no back-pressure. After each batch the callback awaits a property from the page: the answer comes after
the page has drawn what was sent, so a slow page gets fewer and larger batches, a closed one is noticed by its silence,
and the window that the reader chose arrives with it.

The slow way to stay up to date, for a browser without SharedWorker or while the WebSocket is gone for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dash import Dash, Input, State, ctx, set_props
from dash.exceptions import PreventUpdate, WebsocketDisconnected

from isentrope_dashboard import ids
from isentrope_dashboard.access import current_credentials
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.components.diagnosis import diagnosis_props
from isentrope_dashboard.components.load_errors import ONLY_AT_THE_BEGINNING, unread_props
from isentrope_dashboard.components.shell import status_props
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.figures.entropy import LIVE_METRICS, extension, outgrows_its_drawing
from isentrope_dashboard.figures.held_entropy import banded_rows, is_held
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages import metrics
from isentrope_dashboard.pages.listening import Queue, listening, next_batch
from isentrope_dashboard.pages.page_socket import PageSocket
from isentrope_dashboard.pages.rereading import Rereading
from isentrope_dashboard.pages.routing import control_notifications, runs_props
from isentrope_dashboard.pages.run import (
    Props,
    control_and_history_props,
    entropy_props,
    labels_props,
    law_props,
    newest_props,
    record_line_props,
    score_props,
    snapshot_props,
    split_props,
    step_props,
)
from isentrope_dashboard.pages.snapshot import (
    Advance,
    RunSnapshot,
    View,
    advance,
    points_kept,
    read_beside,
    read_law,
    read_snapshot,
)
from isentrope_dashboard.records import SeriesColumns, StepRow

LIST_SECONDS = 2.0
HISTOGRAM_SECONDS = 3.0
LAW_SECONDS = 15.0
HEAL_SECONDS = 15.0
DRAWING_SECONDS = 10.0
QUIET_SECONDS = 5.0
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class _Following:
    """A run page being followed: what it shows, and what is read beside the stream."""

    snapshot: RunSnapshot
    view: View
    drawn_points: int
    beside: Rereading
    law: Rereading
    first_batch: bool = True
    began_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)

    def should_heal(self) -> bool:
        """Whether it is time to try again to read what only a new beginning reads."""
        broken = self.snapshot.unread.keys() & ONLY_AT_THE_BEGINNING
        return bool(broken) and time.monotonic() - self.began_at >= HEAL_SECONDS

    async def stop(self) -> None:
        await asyncio.gather(self.beside.stop(), self.law.stop())


def register_live(app: Dash, source: ApiSource) -> None:
    """Keep every open page up to date for as long as it is open."""

    # No Output and no Input makes it persistent: it starts with the page and again after a reconnect.
    @app.callback(State(ids.URL, "pathname"), websocket=True, persistent=True)
    async def follow(path: str | None) -> None:
        # Without SharedWorker `polling` takes over; the page that compares runs keeps itself up to date.
        if ctx.websocket is None or (path or "").startswith(metrics.PATH):
            raise PreventUpdate
        page = PageSocket(ctx.websocket)
        try:
            await _until_ready(page)
            async with source.open(current_credentials()) as api:
                run_id = run_of_path(path)
                await (_follow_runs(api, page) if run_id is None else _follow_run(api, page, run_id))
        except (TimeoutError, WebsocketDisconnected):
            return  # the page is gone


async def _until_ready(page: PageSocket) -> None:
    while not page.closed and await page.ask(ids.PAGE_READY, "data") is None:
        await asyncio.sleep(0.2)


async def _follow_runs(api: ApiClient, page: PageSocket) -> None:
    shown: Props = {}
    while not page.closed:
        try:
            content = runs_props(await api.runs())
        except ApiUnreachableError:
            content = shown
        if content != shown:
            page.show(content)
            shown = content
        page.show({ids.LIVE_BEAT: {"data": time.time()}})
        await page.ask(ids.PAGE_READY, "data")
        await asyncio.sleep(LIST_SECONDS)


async def _follow_run(api: ApiClient, page: PageSocket, run_id: str) -> None:
    """Listen and draw; when the stream breaks off, wait a little and start over."""
    failures = 0
    while not page.closed:
        try:
            async with listening(api, run_id) as queue:
                failures = 0
                await _draw(api, page, run_id, queue)
        except ApiUnreachableError:
            await page.view()
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures += 1
        except ApiError as error:
            if error.status in (401, 403, 404):
                return  # reloading the page says why
            await asyncio.sleep(BACKOFF_SECONDS[-1])


async def _draw(api: ApiClient, page: PageSocket, run_id: str, queue: Queue) -> None:
    view = await page.view()
    while not page.closed:
        following = await _start(api, page, run_id, view)
        try:
            view = await _until_over(api, page, following, queue)
        finally:
            await following.stop()


async def _until_over(api: ApiClient, page: PageSocket, following: _Following, queue: Queue) -> View:
    """Draw what comes for as long as it can be appended to what is shown; returns what is to be shown then."""
    while not page.closed:
        events = await next_batch(queue)
        moved = advance(following.snapshot, events, first=following.first_batch, drawn_points=following.drawn_points)
        if moved.start_over and (moved.new_rows or events):
            return following.view
        if events:
            await _show(page, following, moved)
        await _refresh(api, page, following)
        await _refresh_status(api, page, following)
        view = await page.view()
        if view.window != following.view.window or following.should_heal():
            return view
        if view != following.view:
            following.view = view
            page.show(split_props(following.snapshot.run.id, following.snapshot.recent, view))
    return following.view


async def _start(api: ApiClient, page: PageSocket, run_id: str, view: View) -> _Following:
    snapshot = await read_snapshot(api, run_id, view)
    content = await asyncio.to_thread(snapshot_props, snapshot, view)
    page.show({**content, ids.LIVE_BEAT: {"data": time.time()}})
    await _until_drawn(page, content)
    return _Following(
        snapshot=snapshot,
        view=view,
        drawn_points=max((len(columns.steps) for columns in snapshot.series.values()), default=0),
        beside=Rereading(HISTOGRAM_SECONDS, snapshot.run.step or -1),
        law=Rereading(LAW_SECONDS, snapshot.run.step or -1),
    )


async def _until_drawn(page: PageSocket, content: Props) -> None:
    """Points appended to a chart that is about to be replaced would be lost, so wait for the replacement."""
    number = content[ids.drawing(ids.ENTROPY_GRAPH)]["data"]["number"]
    until = time.monotonic() + DRAWING_SECONDS
    while await page.ask(ids.drawn(ids.ENTROPY_GRAPH), "data") != number and time.monotonic() < until:
        await asyncio.sleep(0.05)


async def _show(page: PageSocket, following: _Following, moved: Advance) -> None:
    following.snapshot, following.first_batch, following.heard_at = moved.snapshot, False, time.monotonic()
    if moved.new_rows:
        await _grow_entropy(page, following, moved)
    if moved.new_rows or moved.run_changed:
        reported_at = moved.new_rows[-1].recorded_at if moved.new_rows else None
        page.show(await asyncio.to_thread(step_props, moved.snapshot, following.view, reported_at))
    if moved.changed_controls:
        await _show_controls(page, following, moved)


async def _grow_entropy(page: PageSocket, following: _Following, moved: Advance) -> None:
    kept, before = points_kept(following.view), following.snapshot.series
    rows = banded_rows(moved.new_rows, moved.snapshot.history)
    _remember_in_series(following, rows)
    following.drawn_points = min(kept, following.drawn_points + len(moved.new_rows))
    if outgrows_its_drawing(before, following.snapshot.series):
        await _draw_entropy(page, following)
    else:
        held = is_held(following.snapshot.series)
        page.show({ids.ENTROPY_GRAPH: {"extendData": extension(rows, kept, held=held)}})


async def _draw_entropy(page: PageSocket, following: _Following) -> None:
    content = await asyncio.to_thread(entropy_props, following.snapshot, following.view)
    page.show(content)
    await _until_drawn(page, content)


async def _show_controls(page: PageSocket, following: _Following, moved: Advance) -> None:
    page.show(control_and_history_props(moved.snapshot.control, moved.snapshot.history))
    page.show(labels_props(moved.snapshot))
    await _draw_entropy(page, following)
    notifications = control_notifications(moved.snapshot, moved.changed_controls)
    if notifications:
        page.show({ids.NOTIFICATIONS: {"sendNotifications": notifications}})


def _remember_in_series(following: _Following, new_rows: Sequence[StepRow]) -> None:
    """Keep the chart's columns in step with what was appended in the browser, for the next full drawing."""
    series = dict(following.snapshot.series)
    for name in {*series, *LIVE_METRICS}:
        columns = series.get(name, SeriesColumns())
        rows = [row for row in new_rows if name in row.scalars]
        values = [row.scalars[name] for row in rows]
        series[name] = replace(
            columns,
            steps=[*columns.steps, *(row.step for row in rows)],
            values=[*columns.values, *values],
            minimum=None if columns.minimum is None else [*columns.minimum, *values],
            maximum=None if columns.maximum is None else [*columns.maximum, *values],
        )
    following.snapshot = replace(following.snapshot, series=series)


async def _refresh(api: ApiClient, page: PageSocket, following: _Following) -> None:
    """The heat map, the words of the reports and the law are read anew as steps come; events carry none of them."""
    run, view = following.snapshot.run, following.view
    step = run.step or -1
    following.beside.begin_if_due(step, lambda: read_beside(api, run, view))
    following.law.begin_if_due(step, lambda: read_law(api, run.id))
    beside, law = following.beside.take(), following.law.take()
    if beside is not None:
        snapshot = following.snapshot = beside.onto(following.snapshot)
        page.show(await asyncio.to_thread(score_props, run.id, snapshot.histograms, view))
        page.show({**labels_props(snapshot), **record_line_props(snapshot)})
        page.show(diagnosis_props(snapshot.alerts, snapshot.tokens))
        page.show(newest_props(snapshot))  # the page asks anew for its form
    if law is not None:
        snapshot = following.snapshot = law.onto(following.snapshot)
        page.show(await asyncio.to_thread(law_props, run.id, snapshot.law))
    if beside is not None or law is not None:
        page.show(unread_props(following.snapshot.unread))


async def _refresh_status(api: ApiClient, page: PageSocket, following: _Following) -> None:
    """No event tells that a run fell silent, so a quiet stream is asked."""
    if time.monotonic() - following.heard_at < QUIET_SECONDS:
        return
    following.heard_at = time.monotonic()
    run = await api.run(following.snapshot.run.id)
    following.snapshot = replace(following.snapshot, run=run)
    page.show(status_props(run, following.snapshot.recent))


def register_polling(app: Dash, source: ApiSource) -> None:
    """Reload a page's content at each tick of an interval that the browser enables only when nothing is live."""

    @app.callback(
        Input(ids.RUN_POLL, "n_intervals"),
        State(ids.PAGE_READY, "data"),
        State(ids.VIEW, "data"),
        prevent_initial_call=True,
    )
    async def poll_run(_ticks: int, run_id: str | None, view: dict[str, Any] | None) -> None:
        if run_id:
            await _refresh_run(source, run_id, View.from_json(view))

    @app.callback(Input(ids.RUNS_POLL, "n_intervals"), prevent_initial_call=True)
    async def poll_runs(_ticks: int) -> None:
        try:
            async with source.open(current_credentials()) as api:
                content = runs_props(await api.runs())
        except (ApiError, ApiUnreachableError):
            return
        show({**content, **_beat()})


async def _refresh_run(source: ApiSource, run_id: str, view: View) -> None:
    try:
        async with source.open(current_credentials()) as api:
            snapshot = await read_snapshot(api, run_id, view)
    except (ApiError, ApiUnreachableError):
        return  # the next tick tries again; the page misses the beat and says so
    content = await asyncio.to_thread(snapshot_props, snapshot, view)
    show({**content, **_beat()})


def _beat() -> Props:
    """Tells the browser that an update arrived."""
    return {ids.POLL_BEAT: {"data": time.time()}}


def show(content: Props) -> None:
    """Send properties to the page, as a side effect of the callback that runs."""
    for component_id, properties in content.items():
        set_props(component_id, dict(properties))
