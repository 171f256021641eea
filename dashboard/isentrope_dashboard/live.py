"""How a page reads from the server, and what of it stays up to date.

Pages call the REST API in process, with the credentials of the request they answer. Dash's
callbacks don't see the request's
headers: an ASGI layer notes them in a context variable, which the task of a callback inherits.

Parts stay up to date: their values are read for all that are open at once. The browser asks a few
times a second (`assets/40-news.js`) and sends the digests of what it shows; the answer has the
values that differ, and the browser draws them itself. Dash mounts what surrounds them, and never
touches them again: each property that Dash sets costs the browser a round through all components of
the page. The server keeps nothing between two questions, so it may restart, and several servers may
answer in turns."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

import httpx
from dash import ClientsideFunction, Dash, State, html
from dash.development.base_component import Component
from fastapi import FastAPI, Request, Response
from plotly.io.json import to_json_plotly
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.view import ROOT_PATH, STORE, View
from isentrope_wire.answers import Status

_Answer = TypeVar("_Answer", bound=Callable[..., Awaitable[Any]])

_SESSION_COOKIE = re.compile(r"(?:__(?:Host|Secure)-)?isentrope_session_\w+", re.ASCII)
_SESSION_ID = re.compile(r"[\w.-]+", re.ASCII)


_log = logging.getLogger(__name__)

_credentials: ContextVar[Mapping[str, str]] = ContextVar("isentrope_dashboard_credentials")
"""Headers of a request to the REST API with the session cookies and the token that the browser
sent."""


class Api:
    """Opens clients of the REST API that `app` serves."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    @property
    def grpc_port(self) -> int:
        """Where this server takes reports."""
        return int(self._app.state.grpc_port)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncClient]:
        """A client that acts for the user whose request is being answered."""
        # Compressing would cost twice and save nothing: it is this very process that answers.
        headers = {**_credentials.get({}), "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(
            transport=self._transport,
            base_url="http://localhost/api/v1/",
            headers=headers,
            trust_env=False,
        ) as http:
            yield AsyncClient(http)

    def callback(
        self, app: Dash, *places: Any, first: bool = False, **more: Any
    ) -> Callable[[_Answer], _Answer]:
        """A callback of Dash: its function is given a client for the user who asks, the view, and
        the values of the `places`. With `first` it is called when these are mounted, too."""

        def declare(answer: _Answer) -> _Answer:
            @app.callback(*places, State(STORE, "data"), prevent_initial_call=not first, **more)
            async def called(*values: Any) -> Any:
                async with self.open() as client:
                    return await answer(client, View.read(values[-1]), *values[:-1])

            return answer

        return declare


def add_browser_callback(app: Dash, function: str, *places: Any, first: bool = False) -> None:
    """A callback that the browser answers, with `NAMESPACE.NAME` of its scripts; `first` as in
    `Api.callback`."""
    app.clientside_callback(
        ClientsideFunction(*function.split(".")), *places, prevent_initial_call=not first
    )


class CredentialsMiddleware:
    """Notes the credentials of each request, and the server's root path, for the callbacks that
    answer it."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        noted = _credentials.set(credentials_of(HTTPConnection(scope)))
        root_path = ROOT_PATH.set(self.root_path)
        try:
            await self.app(scope, receive, send)
        finally:
            ROOT_PATH.reset(root_path)
            _credentials.reset(noted)


def credentials_of(connection: HTTPConnection) -> Mapping[str, str]:
    """Headers with its token and its session cookies. Their names differ from database to database:
    other servers on the same host may have set some, too."""
    cookies = "; ".join(
        f"{name}={value}"
        for name, value in connection.cookies.items()
        if _SESSION_COOKIE.fullmatch(name) and _SESSION_ID.fullmatch(value)
    )
    sent = {"Cookie": cookies, "Authorization": connection.headers.get("authorization", "")}
    return {name: value for name, value in sent.items() if value}


PATH = "/news"
"""Where the browser asks."""

NEWS = "news"
"""Id of the store that the browser counts up when a run's status or control changed, and else every
few seconds while steps
arrive: for callbacks that need not follow each step."""

Values = Mapping[str, Any]
"""What a part shows, by the id of its element: components of `dash.html` and texts, a chart as
plotly's JSON, or whether the element is hidden."""


class Guard:
    """Keeps a failure with its part of a page: what runs inside ends, and `error` says why."""

    error: Exception

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a page that stays up to date."""

    name: str
    read: Callable[[AsyncClient, View], Awaitable[Values]] | None = None
    """None: another part reads its values."""
    layout: Callable[[AsyncClient, View], Awaitable[Component]] | Component | None = None
    """The elements whose ids `read` has values for, and what surrounds them; None: the page has
    them already."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Id of a Dash component -> its property that gets the value: `rowData` of a grid, `data` of a
    store; `call`: a function of the browser's scripts gets it."""
    watches: Callable[[View], Iterable[calls.Call[Any]]] = lambda _view: ()
    """On a page without a run: the answers of which a change is news for the part."""
    is_slow: bool = False
    """Whether it need not follow each step: it is read when the status or the control changed, and
    else every few seconds."""

    async def component(self, client: AsyncClient, view: View) -> Component:
        """The part without values, or why it can't be shown."""
        assert self.layout is not None
        inside = self.layout
        if not isinstance(inside, Component):
            inside = await self._read_layout(client, view)
        return html.Div(
            [inside, html.Div(id=f"{self.name}-refused", className="refused")], className="part"
        )

    async def _read_layout(self, client: AsyncClient, view: View) -> Component:
        assert callable(self.layout)
        with Guard() as guard:
            return await self.layout(client, view)
        return refusal(guard.error)

    async def values(self, client: AsyncClient, view: View) -> Values:
        """What `read` returns; where it failed, why."""
        refused = f"{self.name}-refused"
        if self.read is None:
            return {}
        with Guard() as guard:
            values = await self.read(client, view)
            if self.layout is None:
                return values
            return {**values, refused: None}
        return {refused: refusal(guard.error)}

    async def written(self, client: AsyncClient, view: View) -> Mapping[str, tuple[int, str]]:
        """The values with their properties as the browser gets them, each with its digest."""
        values = await self.values(client, view)
        with Guard() as guard:
            return dict(self._write(name, value) for name, value in values.items())
        return dict([self._write(f"{self.name}-refused", refusal(guard.error))])

    def _write(self, name: str, value: Any) -> tuple[str, tuple[int, str]]:
        text = f"{json.dumps(self.properties.get(name))},{to_json_plotly(value)}"
        return name, (_digest(text), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the browser sends: what the reader looks at, as the store `view` has it, and what it
    shows."""

    path: str
    query: list[tuple[str, str]]
    theme: str = ""
    origin: str = ""
    state: int | None = None
    """From the last answer; null: all parts are read in any case."""
    form: dict[str, Any] | None = None
    """As `View.form`."""
    parts: Literal["all", "fast", "slow"] = "all"
    """Which parts to read: the ones that follow each step, the others, or both."""
    shown: dict[str, int] = field(default_factory=dict)
    """Digest of every value."""


Question = tuple[str, ...]
"""Who asks, for what, and in which state the runs are."""

ANSWERED_FOR = 1.0
"""Seconds for which an answer is kept for other tabs."""


class News:
    """Answers the open pages. Equal questions of several tabs are answered once."""

    def __init__(self, api: Api, parts_of: Callable[[View], Sequence[Part]]) -> None:
        self._api = api
        self._parts_of = parts_of
        self._answers: dict[
            Question, tuple[float, asyncio.Task[Mapping[str, tuple[int, str]]]]
        ] = {}

    def serve(self, app: FastAPI) -> None:
        @app.post(PATH, include_in_schema=False)
        async def news(asked: Asked, request: Request) -> Response:
            stored = {
                "path": asked.path,
                "query": asked.query,
                "theme": asked.theme,
                "origin": asked.origin,
                "form": asked.form,
            }
            view = View.read(stored)
            try:
                run, state = await self._state(view)
            except ApiError as error:
                if error.status == 404:
                    return Response(
                        '{"state":null,"run":null,"values":{}}', media_type="application/json"
                    )
                return Response(status_code=error.status or 503)
            if asked.state == state:
                return Response(status_code=204)
            asked_for = {"all": (True, False), "fast": (False,), "slow": (True,)}[asked.parts]
            parts = [part for part in self._parts_of(view) if part.is_slow in asked_for]
            who = request.headers.get("cookie", ""), request.headers.get("authorization", "")
            question = (*who, json.dumps(stored), str(state), *(part.name for part in parts))
            found = await self._answer(question, parts, view)
            changed = ",".join(
                f"{json.dumps(name)}:[{digest},{value}]"
                for name, (digest, value) in found.items()
                if asked.shown.get(name) != digest
            )
            return Response(
                f'{{"state":{state},"run":{run},"values":{{{changed}}}}}',
                media_type="application/json",
            )

    async def _state(self, view: View) -> tuple[str, int]:
        """The run of the page as JSON, and a digest that changes with it; on a page without a run,
        with what its parts watch."""
        async with self._api.open() as client:
            if view.run_id is None:
                watched = [call for part in self._parts_of(view) for call in part.watches(view)]
                found = await asyncio.gather(
                    client.ask(calls.me()),
                    *map(client.ask, watched),
                    return_exceptions=True,
                )
                if isinstance(found[0], ApiError):
                    raise found[0]
                return "null", _digest(str(found))
            run = await client.ask(calls.run(view.run_id))
            control = [
                run.control.version,
                run.control.state,
                run.control.active and run.control.active.version,
            ]
            known = {
                "status": run.status,
                "step": run.step,
                "planned": run.planned_steps,
                "at": run.last_report_at,
                "control": control,
                "level": run.digest.level if run.digest and run.status == Status.RUNNING else None,
            }
            # The list's digest of a run follows its step half a second later; of it the page shows
            # the level, in its title.
            level = run.digest and run.digest.level
            return json.dumps(known), _digest(repr((replace(run, digest=None), level)))

    async def _answer(
        self, question: Question, parts: Sequence[Part], view: View
    ) -> Mapping[str, tuple[int, str]]:
        now = time.monotonic()
        self._answers = {
            known: (at, task)
            for known, (at, task) in self._answers.items()
            if now - at < ANSWERED_FOR
        }
        if question not in self._answers:
            self._answers[question] = now, asyncio.create_task(self._read(parts, view))
        return await asyncio.shield(self._answers[question][1])

    async def _read(self, parts: Sequence[Part], view: View) -> Mapping[str, tuple[int, str]]:
        async with self._api.open() as client:
            written = await asyncio.gather(*(part.written(client, view) for part in parts))
        return {name: value for values in written for name, value in values.items()}


def _digest(text: str) -> int:
    return zlib.crc32(text.encode())


_logged: set[str] = set()


def log_first(error: Exception) -> None:
    """Log the first failure at each place in the code: a reader who repeats one must not fill the
    disk."""
    place = "".join(traceback.format_tb(error.__traceback__)[-1:])
    if place not in _logged:
        _logged.add(place)
        _log.error(
            "A part of the dashboard failed; later failures here are not logged.", exc_info=error
        )


def refusal(error: Exception) -> Component:
    """Why something can't be shown; what was not expected is logged."""
    titles = {401: "Not signed in", 403: "Not allowed", 404: "Not found"}
    title, words = "This could not be read", str(error)
    if isinstance(error, ApiError):
        title = titles.get(error.status or 0, title)
    else:
        log_first(error)
        title, words = "This part of the page failed", failure_in_words(error)
    return html.Div([html.B(title), html.Div(words)], className="refusal", role="alert")


def failure_in_words(error: Exception) -> str:
    """What failed, and where the details are."""
    return f"{type(error).__name__}: {str(error)[:200]}. The server's log has the details."
