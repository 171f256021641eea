"""Who is signed in, and the access tokens: the owner makes, lists and revokes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import age, card, chip, dialog, row, text
from isentrope_dashboard.formatting import MISSING
from isentrope_dashboard.live import Api, refusal
from isentrope_dashboard.pages.config import moment
from isentrope_dashboard.pages.start import code
from isentrope_dashboard.view import View
from isentrope_wire.answers import AccessToken, CreatedToken, Destination, Me, TokenScope

SCOPES = {
    TokenScope.READ: "reads everything",
    TokenScope.CONTROL: "reads, pushes controls, edits names, tags and notes",
    TokenScope.INGEST: "reports runs and nothing else: for machines that train",
    TokenScope.ADMIN: "everything, deleting runs and managing tokens included",
}


async def access_page(client: AsyncClient, _view: View) -> tuple[Component, str]:
    """Who I am; for an owner, the tokens."""
    me = await client.ask(calls.me())
    body: list[Component] = [row(html.H1("Access", className="page-title")), _who(me)]
    if me.scope == TokenScope.ADMIN:
        tokens = (await client.ask(calls.access_tokens())).items
        body += [
            _form(),
            html.Section(
                html.Div(token_table(tokens, me), id="tokens"), className="card token-list"
            ),
            _notify((await client.ask(calls.destinations())).items),
            dialog(
                "revoke",
                "Revoke this token?",
                dmc.Button("Revoke", id="revoke-confirmed", size="xs", color="red"),
                dcc.Store(id="revoke-token"),
                html.Div(id="revoke-words"),
            ),
        ]
    return header.page("", *body, here="/access"), "Access · Isentrope"


def _who(me: Me) -> Component:
    more = "The owner of this server makes and revokes tokens."
    if me.scope == TokenScope.ADMIN:
        more = (
            "Give each person a token of their own, so that the history of controls shows who"
            " changed what."
        )
    words = [
        "You are signed in as ",
        html.B(me.name),
        f" with the scope {me.scope}: {SCOPES[me.scope]}. {more}",
    ]
    restored = None
    if me.restored is not None and me.scope == TokenScope.ADMIN:
        restored = (
            f"The database was restored on {moment(me.restored.at)}: tokens that were revoked"
            f" after {moment(me.restored.newest_report_at)} are active again."
            " Revoke them once more."
        )
    return card(html.P(words), restored and html.P(html.B(restored)), name="guide")


def _form() -> Component:
    scopes = [
        {"value": str(scope), "label": f"{scope}: {words}"} for scope, words in SCOPES.items()
    ]
    fields = row(
        dmc.TextInput(id="token-name", label="Name", placeholder="anna", size="xs", w=180),
        dmc.Select(id="token-scope", label="Scope", data=scopes, value="control", size="xs", w=400),
        dmc.Button("Make a token", id="token-make", size="xs"),
        name="wrap token-form",
    )
    return card(fields, html.Div(id="token-made", role="status"), title="A new token", name="guide")


def _notify(found: Sequence[Destination]) -> Component:
    words: list[Any] = [
        "Alerts are not sent anywhere. Start the server by ",
        code("isentrope up --notify ADDRESS"),
        "with an address of Apprise, such as ntfy://TOPIC.",
    ]
    if found:
        words = [
            "Alerts are sent by ",
            *[part for one in found for part in (", ", html.B(one.service))][1:],
            ".",
        ]
    button = dmc.Button(
        "Send a test", id="notify-test", size="xs", variant="default", disabled=not found
    )
    return card(
        html.P(words),
        row(button),
        html.Div(id="notify-answer", role="status"),
        title="Alerts",
        name="guide",
    )


def tested(found: Sequence[Destination]) -> Component:
    """What became of a test, by destination."""
    not_taken = "not taken, the log of the server says more"
    return html.Ul(
        [html.Li(f"{one.service}: {'delivered' if one.delivered else not_taken}") for one in found]
    )


def token_table(tokens: Sequence[AccessToken], me: Me) -> Component:
    order = sorted(tokens, key=lambda token: (token.revoked_at is not None, -token.created_at))
    heads = ("Name", "Scope", "Id", "Made", "Last used", html.Span("Actions", className="sr-only"))
    return html.Table(
        [
            html.Caption("Access tokens", className="sr-only"),
            html.Thead(html.Tr([html.Th(name, scope="col") for name in heads])),
            html.Tbody([_token_row(token, me) for token in order]),
        ],
        className="plain-table",
    )


def _token_row(token: AccessToken, me: Me) -> html.Tr:
    if token.revoked_at is not None:
        action: Any = text("revoked", "dim")
    elif token.id == me.token_id:
        action = chip("you", "iris")
    else:
        action = dmc.Button(
            "Revoke",
            id={"revoke": token.id},
            size="compact-xs",
            variant="default",
            **{"aria-label": f"Revoke the token {token.name}"},
        )
    cells = [
        html.B(token.name),
        chip(token.scope),
        html.Span(token.id, className="mono"),
        age(token.created_at),
        MISSING if token.last_used_at is None else age(token.last_used_at),
        action,
    ]
    return html.Tr(
        [html.Td(cell) for cell in cells],
        className="revoked-token" if token.revoked_at is not None else "",
    )


def made_token(made: CreatedToken, origin: str) -> Component:
    """The secret, shown once: for a person as the address that signs a browser in, too."""
    parts: list[Any] = [text("Shown only now. The token:"), code(made.token)]
    if made.scope != TokenScope.INGEST:
        link = f"{origin}/?token={quote(made.token, safe='')}"
        parts += [
            text(["The address that signs ", html.B(made.name), "'s browser in:"]),
            code(link),
        ]
    return html.Div(parts, className="made")


def register(app: Dash, api: Api) -> None:
    @api.callback(app, Output("notify-answer", "children"), Input("notify-test", "n_clicks"))
    async def test(client: AsyncClient, _view: View, _clicks: int) -> Any:
        try:
            return tested((await client.ask(calls.test_destinations())).items)
        except ApiError as error:
            return refusal(error)

    @api.callback(
        app,
        Output("token-made", "children"),
        Output("tokens", "children"),
        Output("token-name", "value"),
        Input("token-make", "n_clicks"),
        State("token-name", "value"),
        State("token-scope", "value"),
    )
    async def make(
        client: AsyncClient, view: View, _clicks: int, name: str | None, scope: str
    ) -> Any:
        if not (name or "").strip():
            words = "Give it a name: the history names it as the author of changes."
            return html.Div(words, className="refusal", role="alert"), no_update, no_update
        try:
            made = await client.ask(calls.create_access_token(scope, name))
            return made_token(made, view.origin), await _table(client), ""
        except ApiError as error:
            return refusal(error), no_update, no_update

    @api.callback(
        app,
        Output("revoke-form", "opened"),
        Output("revoke-words", "children"),
        Output("revoke-refused", "children"),
        Output("revoke-token", "data"),
        Input({"revoke": ALL}, "n_clicks"),
    )
    async def ask(client: AsyncClient, _view: View, clicks: list[int | None]) -> Any:
        if not any(clicks):
            return [no_update] * 4
        token_id = ctx.triggered_id["revoke"]
        token = next(
            each for each in (await client.ask(calls.access_tokens())).items if each.id == token_id
        )
        words = [
            html.B(token.name),
            f", scope {token.scope}, {token.id}. Whoever uses it is refused at once.",
        ]
        return True, words, None, token_id

    @api.callback(
        app,
        Output("revoke-form", "opened", allow_duplicate=True),
        Output("revoke-refused", "children", allow_duplicate=True),
        Output("tokens", "children", allow_duplicate=True),
        Input("revoke-confirmed", "n_clicks"),
        State("revoke-token", "data"),
    )
    async def revoke(client: AsyncClient, _view: View, _clicks: int, token_id: str) -> Any:
        try:
            await client.ask(calls.revoke_access_token(token_id))
            return False, None, await _table(client)
        except ApiError as error:
            return True, refusal(error), no_update


async def _table(client: AsyncClient) -> Component:
    me = await client.ask(calls.me())
    return token_table((await client.ask(calls.access_tokens())).items, me)
