"""The frame around every page: header, colour-scheme switch, notifications and the stores a page needs."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from isentrope_dashboard import ids, theme
from isentrope_dashboard.components.panel import icon

TICK_MILLISECONDS = 1000
POLL_MILLISECONDS = 5000


def shell() -> dmc.MantineProvider:
    """The document that is served first; a callback fills the page in."""
    return dmc.MantineProvider(
        [
            dcc.Location(id=ids.URL),
            dcc.Location(id=ids.NAVIGATED, refresh=True),
            dcc.Store(id=ids.TEMPLATES, data=dict(theme.TEMPLATES)),
            dcc.Store(id=ids.LIVE_BEAT),
            dcc.Store(id=ids.POLL_BEAT),
            dcc.Store(id=ids.PAGE_READY),
            dcc.Store(id=ids.TITLE),
            dcc.Interval(id=ids.TICK, interval=TICK_MILLISECONDS),
            dmc.NotificationContainer(id=ids.NOTIFICATIONS, position="bottom-right", sendNotifications=[]),
            html.Div(id=ids.PAGE),
        ],
        theme=theme.MANTINE_THEME,
        defaultColorScheme="auto",
    )


def slow_interval(component_id: str) -> dcc.Interval:
    """Ticks only while the browser says that nothing else keeps the page up to date."""
    return dcc.Interval(id=component_id, interval=POLL_MILLISECONDS, disabled=True)


def page(title: str, body: list[Any], *, left: list[Any] | None = None, right: Component | None = None) -> dmc.AppShell:
    """Header and main part of one page. `title` is read to those who can't see the page."""
    return dmc.AppShell(
        [
            dmc.AppShellHeader(_header(left or [], right)),
            dmc.AppShellMain(
                dmc.Container(
                    [html.H1(title, className="sr-only"), *body], size=1560, px={"base": "sm", "md": "lg"}, py="md"
                )
            ),
        ],
        header={"height": 52},
        padding=0,
    )


def _header(left: list[Any], right: Component | None) -> dmc.Group:
    brand = html.A(
        [html.Span(className="logo", **{"aria-hidden": "true"}), html.Span("Isentrope", className="brand")],
        href="/",
        className="home",
        **{"aria-label": "Isentrope: all runs"},
    )
    toggle = dmc.ColorSchemeToggle(
        id=ids.SCHEME,
        lightIcon=icon("sun"),
        darkIcon=icon("moon"),
        variant="subtle",
        color="gray",
        size="md",
        **{"aria-label": "Toggle colour scheme"},
    )
    beside = [] if right is None else [right]
    # What tells of a lost connection is out of sight as long as there is one: alone it needs no rule beside it.
    rule = [dmc.Divider(orientation="vertical", h=22)] if len(left) > 1 else []
    return dmc.Group(
        [
            dmc.Group([brand, *rule, *left], gap="md", wrap="nowrap"),
            dmc.Group([*beside, toggle], gap="xs", wrap="nowrap"),
        ],
        justify="space-between",
        h="100%",
        px={"base": "sm", "md": "lg"},
        wrap="nowrap",
    )
