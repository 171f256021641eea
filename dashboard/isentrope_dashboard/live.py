"""Parts of a page: drawn at once when they are opened, and again whenever the run or the view changed.

The browser asks for the run a few times a second (`assets/isentrope.js`). Where the answer differs from the one before, it
counts NEWS up; every part that is open then reads what it shows and sends what changed. The server keeps nothing between
two questions, so it may restart, and several servers may answer in turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update, set_props
from dash._utils import to_json
from dash.development.base_component import Component

from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import view as views
from isentrope_dashboard.access import Api
from isentrope_dashboard.components.basics import INNER
from isentrope_dashboard.view import View

NEWS = "news"
"""Id of the store that the browser counts up when the run changed."""

SLOW_NEWS = "slow-news"
"""The same when its status or control changed, and else every few seconds: of what need not follow each step."""

Values = Mapping[str, Any]
"""What a part shows, by the id of the component that shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a page that stays up to date."""

    name: str
    shows: Mapping[str, str]
    """Id of a component -> its property that changes."""
    read: Callable[[AsyncClient, View], Awaitable[Values]]
    """Reads a value for every id of `shows`. An ApiError is shown in the part's place."""
    layout: Callable[[Values], Component]
    """The components with their first values."""
    news: str = NEWS
    """When it is read again: NEWS or SLOW_NEWS."""

    async def component(self, client: AsyncClient, view: View) -> Component:
        """The part, or why it can't be shown."""
        try:
            values = await self.read(client, view)
        except ApiError as error:
            return refusal(error)
        shown = {name: _digests(values[name]) for name in self.shows}
        stores = [dcc.Store(id=self._shown, data=shown), dcc.Store(id=self._words)]
        return html.Div([self.layout(values), *stores], className="part")

    @property
    def _shown(self) -> str:
        return f"{self.name}-shown"

    @property
    def _words(self) -> str:
        return f"{self.name}-written"

    def register(self, app: Dash, api: Api) -> None:
        """Keep the part up to date for as long as it is open."""
        names = list(self.shows)

        @app.callback(
            [
                *(Output(name, self.shows[name]) for name in names),
                Output(self._shown, "data"),
                Output(self._words, "data"),
            ],
            Input(self.news, "data"),
            Input(views.STORE, "data"),
            State(self._shown, "data"),
            prevent_initial_call=True,
        )
        async def refresh(_news: int, stored: dict[str, Any], shown: dict[str, dict[str, int]]) -> list[Any]:
            try:
                async with api.open() as client:
                    values = await self.read(client, View.of(stored))
            except ApiError:
                # The browser asks itself and says what is wrong: connection lost, token revoked, run deleted.
                return [no_update] * (len(names) + 2)
            now = {name: _digests(values[name]) for name in names}
            words: dict[str, Any] = {}
            for name in names:
                for part, changes in _inner(values[name]):
                    if isinstance(part, html.Span):
                        words[part.id] = part.children
                    # What is replaced brings what is inside it along.
                    elif now[name][OWN] == shown.get(name, {}).get(OWN) and now[name][part.id] != shown[name].get(
                        part.id
                    ):
                        set_props(part.id, {changes: getattr(part, changes)})
            changed = [values[name] if now[name][OWN] != shown.get(name, {}).get(OWN) else no_update for name in names]
            return [*changed, now, words or no_update]

        # Written past React: each property that Dash sets costs the browser a round through all components of the page.
        app.clientside_callback(ClientsideFunction("isentrope", "write"), Input(self._words, "data"))


OWN = "own"
"""Key of the digest of a value without what is updated in its place."""

_CHANGES = {"Graph": "figure", "Sparkline": "data", "Progress": "value"}
"""The property of a component that changes, where it is not `children`."""


def _inner(value: Any) -> Iterator[tuple[Component, str]]:
    """The components with an `inner_id`, and their property that changes."""
    for top in value if isinstance(value, list) else [value]:
        for part in (top, *top._traverse()) if isinstance(top, Component) else ():
            if str(getattr(part, "id", "")).startswith(INNER):
                yield part, _CHANGES.get(type(part).__name__, "children")


def _digests(value: Any) -> dict[str, int]:
    """Of a value, and of what is updated in its place, by id."""
    kept = [(part, changes, getattr(part, changes)) for part, changes in _inner(value)]
    for part, changes, _ in kept:
        setattr(part, changes, None)
    digests = {OWN: _digest(value)}
    for part, changes, inside in kept:
        setattr(part, changes, inside)
        digests[part.id] = _digest(inside)
    return digests


def _digest(value: Any) -> int:
    return zlib.crc32(to_json(value).encode())


def refusal(error: ApiError) -> dmc.Alert:
    """Why something can't be shown."""
    titles = {401: "Not signed in", 403: "Not allowed", 404: "Not found"}
    title = titles.get(error.status or 0, "This could not be read")
    return dmc.Alert(str(error), title=title, color="orange", variant="light", className="refusal")
