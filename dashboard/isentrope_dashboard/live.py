"""Parts of a page: drawn at once when they are opened, and again whenever the run or the view changed.

The browser asks for the run a few times a second (`assets/isentrope.js`). Where the answer differs from the one before, it
counts NEWS up; every part that is open then reads what it shows and sends what changed. The server keeps nothing between
two questions, so it may restart, and several servers may answer in turns.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update, set_props
from dash._utils import to_json
from dash.development.base_component import Component

from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import view as views
from isentrope_dashboard.access import Api
from isentrope_dashboard.view import View

NEWS = "news"
"""Id of the store that the browser counts up when the run changed."""

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

    async def component(self, client: AsyncClient, view: View) -> Component:
        """The part, or why it can't be shown."""
        try:
            values = await self.read(client, view)
        except ApiError as error:
            return refusal(error)
        shown = {**_digests(values, self.shows), **_inner_digests(values)}
        return html.Div([self.layout(values), dcc.Store(id=self._shown, data=shown)], className="part")

    @property
    def _shown(self) -> str:
        return f"{self.name}-shown"

    def register(self, app: Dash, api: Api) -> None:
        """Keep the part up to date for as long as it is open."""
        names = list(self.shows)

        @app.callback(
            [*(Output(name, self.shows[name]) for name in names), Output(self._shown, "data")],
            Input(NEWS, "data"),
            Input(views.STORE, "data"),
            State(self._shown, "data"),
            prevent_initial_call=True,
        )
        async def refresh(_news: int, stored: dict[str, Any], shown: dict[str, int]) -> list[Any]:
            try:
                async with api.open() as client:
                    values = await self.read(client, View.of(stored))
            except ApiError:
                # The browser asks itself and says what is wrong: connection lost, token revoked, run deleted.
                return [no_update] * (len(names) + 1)
            now, inside = _digests(values, names), _inner_digests(values)
            if all(now[name] == shown.get(name) for name in names):
                for part, changes in _inner(values):
                    if inside[part.id] != shown.get(part.id):
                        set_props(part.id, {changes: getattr(part, changes)})
            changed = [values[name] if now[name] != shown.get(name) else no_update for name in names]
            return [*changed, {**now, **inside}]


_INNER = "inner-"


def inner_id(name: str) -> str:
    """Id of a chart, or of a span with a few words, that is updated in its place.

    What is around it is made again only where that changed itself: a chart that is made again flickers and forgets the mouse.
    """
    return _INNER + hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _inner(values: Values) -> Iterator[tuple[Component, str]]:
    """The components with an `inner_id`, and their property that changes."""
    for value in values.values():
        for top in value if isinstance(value, list) else [value]:
            for part in (top, *top._traverse()) if isinstance(top, Component) else ():
                if str(getattr(part, "id", "")).startswith(_INNER):
                    yield part, "figure" if isinstance(part, dcc.Graph) else "children"


def _inner_digests(values: Values) -> dict[str, int]:
    return {part.id: _digest(getattr(part, changes)) for part, changes in _inner(values)}


def _digests(values: Values, names: Iterable[str]) -> dict[str, int]:
    """Of the values, without what is updated in its place."""
    kept = [(part, changes, getattr(part, changes)) for part, changes in _inner(values)]
    for part, changes, _ in kept:
        setattr(part, changes, None)
    digests = {name: _digest(values[name]) for name in names}
    for part, changes, value in kept:
        setattr(part, changes, value)
    return digests


def _digest(value: Any) -> int:
    return zlib.crc32(to_json(value).encode())


def refusal(error: ApiError) -> dmc.Alert:
    """Why something can't be shown."""
    titles = {401: "Not signed in", 403: "Not allowed", 404: "Not found"}
    title = titles.get(error.status or 0, "This could not be read")
    return dmc.Alert(str(error), title=title, color="orange", variant="light", className="refusal")
