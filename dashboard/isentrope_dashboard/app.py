"""The dashboard on the server's own ASGI application: `attach` is called last by the server's app factory."""

from __future__ import annotations

from pathlib import Path

from dash import Dash
from fastapi import FastAPI

from isentrope_dashboard.api_client import ApiSource
from isentrope_dashboard.components.shell import shell
from isentrope_dashboard.credentials import CredentialsMiddleware
from isentrope_dashboard.pages import all_metrics, browser, compare, form, live, polling, push, routing, what_if
from isentrope_dashboard.pages.notice import report_failure

ASSETS = Path(__file__).parent / "assets"

# `color-scheme.js` runs in the head, before anything is painted; every other script belongs at the end.
INDEX = """<!DOCTYPE html>
<html lang="en">
    <head>
        {%metas%}
        <title>{%title%}</title>
        <link rel="icon" type="image/svg+xml" href="/assets/icon.svg">
        {%css%}
        <script src="/assets/first-paint/color-scheme.js"></script>
    </head>
    <body>
        {%app_entry%}
        <footer>
            {%config%}
            {%scripts%}
            {%renderer%}
        </footer>
    </body>
</html>"""


def attach(app: FastAPI, *, api_url: str) -> None:
    """Serve the dashboard's pages from `app`.

    Args:
        app: the server's application with all of its own routes, because Dash answers every other GET with a page.
        api_url: where the REST API is reached over HTTP, e.g. `http://127.0.0.1:7070`. Calls are made with the
            browser user's own cookie or token.
    """
    dash_app = Dash(
        __name__,
        server=app,
        assets_folder=str(ASSETS),
        assets_path_ignore=["first-paint"],
        serve_locally=True,
        title="Isentrope",
        update_title=None,
        index_string=INDEX,
        suppress_callback_exceptions=True,  # a page's components come after the callbacks that serve them
        websocket_inactivity_timeout=0,
        on_error=report_failure,
    )
    dash_app.layout = shell
    source = ApiSource(api_url)
    routing.register(dash_app, source)
    live.register(dash_app, source)
    polling.register(dash_app, source)
    push.register(dash_app, source)
    what_if.register(dash_app, source)
    all_metrics.register(dash_app, source)
    compare.register(dash_app, source)
    browser.register(dash_app)
    form.register(dash_app)
    # Dash does the first at the first request under its own prefix and the second when a lifespan event passes its
    # middleware. A deep link may come before the one, and a server that runs its lifespan itself never does the other.
    dash_app._setup_server()
    dash_app.backend._setup_catchall()
    _allow_inline_scripts(app, dash_app.csp_hashes())
    app.add_middleware(CredentialsMiddleware)


def _allow_inline_scripts(app: FastAPI, hashes: list[str]) -> None:
    """Tell the server, whose content security policy covers every page, which inline scripts are ours."""
    app.state.script_hashes = [*getattr(app.state, "script_hashes", ()), *hashes]
