"""How to start a run: where this server is, a token for the training machine, the lines that attach
a loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import card, icon, row, spacer, text
from isentrope_dashboard.live import Api, add_browser_callback, refusal
from isentrope_dashboard.view import View, address_of
from isentrope_wire.answers import TokenScope

OWN_LOOP = """import isentrope

probe = isentrope.Probe(name="my-run", project="my-project")

# in each step, where the logits are
scores = probe.score(logits[:, :-1], token_ids[:, 1:], temperature=1.0)
# the same values; use them in the loss
logprobs = probe.gate(scores, advantages, mask)

# behind optimizer.step(); rescore measures what the update did to the entropy
probe.log({"reward/mean": rewards.mean()})
probe.step(
    step,
    optimizer,
    rescore=lambda: probe.score(model(token_ids).logits[:, :-1], token_ids[:, 1:], temperature=1.0),
)

# at the end
probe.finish()"""
TRL = """import isentrope

probe = isentrope.attach(trainer, name="my-run", project="my-project")
trainer.train()"""
DEMO = "isentrope demo"


FOLLOW = "follow"
"""Parameter of the address: the new run's page is opened, as where there was no run before."""
_EARLIER = 60.0
"""Seconds: a run that began so shortly before the page was opened is one to follow."""


async def start_page(client: AsyncClient, view: View) -> tuple[Component, str]:
    """The page at /start, and at / where there is no run yet."""
    me, counts = await asyncio.gather(client.ask(calls.me()), client.ask(calls.run_counts()))
    follows = FOLLOW in view.query or not counts.total
    appears = "appears"
    if follows:
        appears = "opens"
    make: Any = dmc.Button("Make a token", id="start-make-token", size="xs")
    if me.scope != TokenScope.ADMIN:
        make = text("The owner of this server makes a token of scope ingest for you.", "dim")
    where = card(
        text(
            "In the shell of the machine that trains. It needs a token of scope ingest: that one"
            " reports runs, and reads nothing.",
            "dim",
        ),
        html.Div(id="start-environment"),
        row(make, html.Span(className="dim", id="start-token-words"), name="wrap"),
        html.Div(id="start-refused"),
        title="1. Where this server is",
        name="guide",
    )
    lines = card(
        dmc.Tabs(
            [
                dmc.TabsList(
                    [dmc.TabsTab("Own loop", value="loop"), dmc.TabsTab("TRL", value="trl")]
                ),
                dmc.TabsPanel(code(OWN_LOOP), value="loop"),
                dmc.TabsPanel(code(TRL), value="trl"),
            ],
            value="loop",
        ),
        text(
            "With no method active the loop stays bit-identical. A server that is away does not"
            " stop it: reports wait on disk.",
            "dim",
        ),
        title="2. The lines in the loop",
        name="guide",
    )
    demo = card(
        text(
            "Trains a small model on puzzles, on the machine where you type it; --replay needs no"
            " torch.",
            "dim",
        ),
        code(DEMO),
        title="Or watch a demonstration",
        name="guide",
    )
    waiting = card(
        row(
            dmc.Loader(size="xs"),
            html.Div(
                f"Waiting for a new run. It {appears} here with its first report.", id="start-news"
            ),
            spacer(),
        ),
        dcc.Interval(id="start-clock", interval=1000 if follows else 3000),
        dcc.Store(id="start-opened", data=time.time() - _EARLIER * follows),
        dcc.Store(id="start-follows", data=follows),
        dcc.Store(id="start-run"),
        name="guide",
        role="status",
    )
    heading = row(html.H1("Start a run", className="page-title"))
    columns = html.Div([html.Div([where, demo, waiting]), lines], className="guides")
    return header.page("", heading, columns), "Start a run · Isentrope"


def code(lines: str) -> html.Div:
    """Lines to copy."""
    copy = dmc.CopyButton(
        "Copy",
        value=lines,
        copiedChildren="Copied",
        copiedColor="teal",
        size="compact-xs",
        variant="default",
        className="copy",
    )
    return html.Div([html.Pre(lines, tabIndex=0), copy], className="code")


def environment(origin: str, grpc_port: int, token: str | None) -> str:
    """The variables that a training process needs."""
    host = urlsplit(origin).hostname or "localhost"
    named = host
    if ":" in host:
        named = f"[{host}]"
    lines = {
        "ISENTROPE_URL": origin,
        "ISENTROPE_GRPC": f"{named}:{grpc_port}",
        "ISENTROPE_TOKEN": token or "a token of scope ingest",
    }
    return "\n".join(f'export {name}="{value}"' for name, value in lines.items())


def register(app: Dash, api: Api) -> None:
    """Fill in the server's address, make a token, and show the first report of a new run."""

    @api.callback(
        app,
        Output("start-environment", "children"),
        Output("start-token-words", "children"),
        Output("start-refused", "children"),
        Input("start-make-token", "n_clicks"),
        Input("start-environment", "id"),
        first=True,
    )
    async def fill_in(client: AsyncClient, view: View, clicks: int | None, _id: str) -> Any:
        if not clicks:
            return code(environment(view.origin, api.grpc_port, None)), no_update, None
        try:
            made = await client.ask(calls.create_access_token("ingest", "training"))
        except ApiError as error:
            return no_update, no_update, refusal(error)
        words = "Shown only now: copy it. It is listed under Access, where it can be revoked."
        return code(environment(view.origin, api.grpc_port, made.token)), words, None

    clock = (
        Input("start-clock", "n_intervals"),
        State("start-opened", "data"),
        State("start-follows", "data"),
    )
    add_browser_callback(
        app, "isentrope.openRun", Output("start-run", "id"), Input("start-run", "data")
    )

    @api.callback(app, Output("start-news", "children"), Output("start-run", "data"), *clock)
    async def look(
        client: AsyncClient, _view: View, _ticks: int, opened: float, follows: bool
    ) -> Any:
        newest = await client.newest(calls.runs(), 1)
        if not newest or newest[0].created_at < opened:
            return no_update, no_update
        run = newest[0]
        words = [html.B(run.name), " reports: open it ", icon("arrow", 13)]
        return html.A(words, href=address_of(run.id)), run.id if follows else no_update
