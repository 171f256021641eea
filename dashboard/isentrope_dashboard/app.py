"""The dashboard on the server's own ASGI application: `attach` is called last by the server's app
factory.

Every navigation is a new document; within one, the query says what is shown.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, dcc, html, set_props
from dash.backends._fastapi import reset_current_request, set_current_request
from dash.development.base_component import Component
from dash.exceptions import CallbackException, DependencyException, PreventUpdate
from dash.fingerprint import build_fingerprint
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import live, theme
from isentrope_dashboard import view as views
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import skeleton
from isentrope_dashboard.live import (
    Api,
    CredentialsMiddleware,
    News,
    Part,
    add_browser_callback,
    log_first,
    refusal,
)
from isentrope_dashboard.pages import access, compare, project, run, runs, start
from isentrope_dashboard.view import View

PAGE, PATH, NOTIFICATIONS = "page", "path", "notifications"

Page: TypeAlias = Callable[[AsyncClient, View], Awaitable[tuple[Component, str]]]
"""Reads a page; returns it and the document's title."""

PAGES: Mapping[str, Page] = {
    "": runs.runs_page,
    "/start": start.start_page,
    "/compare": compare.compare_page,
    "/access": access.access_page,
}
"""By path, without a slash at the end. The page of a run is at /runs/ID."""


def page_at(view: View) -> Page | None:
    """The page of an address, of a run too that may not exist."""
    if view.run_id is not None:
        return run.run_page
    return PAGES.get(view.path.rstrip("/"))


def parts_of(view: View) -> Sequence[Part]:
    """What stays up to date on the page of this address."""
    if view.run_id is not None:
        return run.parts_of(view)
    return {"": [project.PART], compare.PATH: [compare.PART]}.get(view.path.rstrip("/"), [])


def shell() -> dmc.MantineProvider:
    """The document that is served first; a callback fills the page in."""
    waiting = [skeleton(40), skeleton(64), skeleton(80), skeleton(600)]
    return dmc.MantineProvider(
        [
            dcc.Store(id=views.STORE),
            dcc.Store(id=live.NEWS, data=0),
            dcc.Store(id=PATH),
            dcc.Store(id=header.TITLE),
            dmc.NotificationContainer(
                id=NOTIFICATIONS, position="bottom-right", sendNotifications=[]
            ),
            html.Div(html.Div(waiting, className="page waiting", **{"aria-busy": "true"}), id=PAGE),
        ],
        theme=theme.MANTINE,
        defaultColorScheme="auto",
    )


def register(app: Dash, api: Api) -> None:
    """Show the page of an address, and write choices into the address."""
    add_browser_callback(
        app, "isentrope.view", Output(views.STORE, "data"), Input(PAGE, "id"), first=True
    )
    chosen = Output(views.STORE, "data", allow_duplicate=True)
    add_browser_callback(app, "isentrope.choose", chosen, Input({"param": ALL}, "value"))
    path = (Output(PATH, "data"), Input(views.STORE, "data"), State(PATH, "data"))
    add_browser_callback(app, "isentrope.path", *path, first=True)
    add_browser_callback(
        app, "isentrope.title", Output(header.TITLE, "id"), Input(header.TITLE, "data"), first=True
    )

    @api.callback(app, Output(PAGE, "children"), Output(header.TITLE, "data"), Input(PATH, "data"))
    async def show_page(client: AsyncClient, view: View, _path: str) -> tuple[Component, str]:
        page = page_at(view)
        if page is None:
            error = ApiError(f"There is no page {view.path}. The list of runs is at /.", status=404)
            return header.page("No such page", refusal(error)), "No such page · Isentrope"
        try:
            return await page(client, view)
        except ApiError as error:
            return header.page("This page can't be shown", refusal(error)), "Isentrope"

    @api.callback(app, Output("who", "children"), Input("who", "id"), first=True)
    async def show_who(client: AsyncClient, view: View, _id: str) -> Any:
        try:
            me = await client.ask(calls.me())
        except ApiError:
            return []
        return header.who_am_i(me.name, me.scope, shares=view.run_id is not None)

    for page in (run, runs, start, access, compare):
        page.register(app, api)


def report_failure(error: Exception) -> None:
    """Report in one sentence why a callback failed; what was not expected is in the log with its
    traceback, too. An HTTPException, a refused request, is raised again."""
    if isinstance(error, HTTPException):
        raise error
    title, message = "Not done", str(error)
    if not isinstance(error, ApiError):
        log_first(error)
        title, what = "The dashboard failed", type(error).__name__
        message = (
            f"{what}: this page may be out of date. Details are in the server's log; reload to"
            " continue."
        )
    elif error.status == 401:
        return  # the page says so by itself
    shown = {
        "action": "show",
        "id": "failure",
        "title": title,
        "message": message,
        "color": "red",
        "autoClose": 30_000,
        "closeButtonProps": {"aria-label": "Close this notification"},
    }
    set_props(NOTIFICATIONS, {"sendNotifications": [shown]})


ASSETS = Path(__file__).parent / "assets"
PLOTLY = (Path(__file__).parent / "vendored" / "plotly-cartesian.min.js").read_bytes()
"""plotly.js with the charts that pages draw, a third of the whole."""
PLOTLY_PATH = f"/_dash-component-suites/plotly/{hashlib.sha256(PLOTLY).hexdigest()[:16]}.js"

GRID_SCRIPT = "dash_ag_grid.min.js"
GRID_PATH = (
    f"/_dash-component-suites/dash_ag_grid/{build_fingerprint(GRID_SCRIPT, dag.__version__, 0)}"
)
"""AG Grid, which the browser loads where a page first shows a grid (`assets/ag-grid.js`)."""


def write_document(root_path: str) -> str:
    """The document of every page, with Dash's places in it. `color-scheme.js` runs in the head,
    before anything is painted; every other script belongs at the end, but plotly is on its way
    meanwhile."""
    return f"""<!DOCTYPE html>
<html lang="en">
    <head>
        {{%metas%}}
        <title>{{%title%}}</title>
        <link rel="icon" type="image/svg+xml" href="{root_path}/assets/icon.svg">
        {{%css%}}
        <meta name="root-path" content="{root_path}">
        <meta name="grid-script" content="{root_path}{GRID_PATH}">
        <script src="{root_path}/assets/first-paint/color-scheme.js"></script>
        <script async src="{root_path}{PLOTLY_PATH}"></script>
    </head>
    <body>
        <p class="without-files">The files of this page were not found below {root_path}/assets.
            Where a proxy shows it below a path, start the server with --root-path PATH.</p>
        {{%app_entry%}}
        <footer>
            {{%config%}}
            {{%scripts%}}
            {{%renderer%}}
        </footer>
    </body>
</html>"""


class _Pages(Dash):  # type: ignore[misc]  # Dash has no types
    """Dash, but that a request which none of its pages makes is refused; Dash would fail."""

    def _initialize_context(self, *given: Any) -> Any:
        return _or_refused(super()._initialize_context, given)

    def _prepare_callback(self, *given: Any) -> Any:
        callback = _or_refused(super()._prepare_callback, given)

        async def answer(*values: Any, **named: Any) -> Any:
            # What fails within the page's own function is `report_failure`'s.
            try:
                return await callback(*values, **named)
            except PreventUpdate:
                raise  # of the same family, but an answer: nothing changes
            except _MISFITS:
                raise views.refuse_page() from None

        return answer

    def _inputs_to_vals(self, *given: Any) -> Any:
        return _or_refused(super()._inputs_to_vals, given)


_MISFITS = (LookupError, TypeError, AttributeError, ValueError, CallbackException)


def _or_refused(read: Callable[..., Any], given: Sequence[Any]) -> Any:
    try:
        return read(*given)
    except _MISFITS:
        raise views.refuse_page() from None


def attach(app: FastAPI, root_path: str = "") -> None:
    """Serve the dashboard's pages from the server's application, which has all of its own routes:
    any other address is answered here, with a page or 404. Its REST API is called in process, with
    the browser user's own cookie or token. Browsers have `root_path` in front of every path."""
    dash_app = _Pages(
        __name__,
        server=app,
        routes_pathname_prefix="/",
        requests_pathname_prefix=f"{root_path}/",
        assets_folder=str(ASSETS),
        assets_path_ignore=["first-paint"],
        serve_locally=True,
        title="Isentrope",
        update_title=None,
        index_string=write_document(root_path),
        # A page's components come after the callbacks that serve them.
        suppress_callback_exceptions=True,
        on_error=report_failure,
    )
    next(script for script in dag._js_dist if script["relative_package_path"] == GRID_SCRIPT)[
        "dynamic"
    ] = True
    # Else every page tries to open a WebSocket, again and again; no callback uses one.
    dash_app.backend.websocket_capability = False
    dash_app.layout = shell
    api = Api(app)
    register(dash_app, api)
    News(api, parts_of).serve(app)
    _serve_scripts_compressed(app, dash_app)
    # Dash would do it at the first request under its own prefix, and a deep link may come before.
    dash_app._setup_server()
    _answer_every_address(app, dash_app)
    # The server's content security policy covers every page.
    app.state.script_hashes = [*getattr(app.state, "script_hashes", ()), *dash_app.csp_hashes()]
    app.add_middleware(CredentialsMiddleware, root_path=root_path)


def _answer_every_address(app: FastAPI, dash_app: Dash) -> None:
    """Instead of Dash's own catch-all, which answers every address with a page."""

    @app.get("/{path:path}", include_in_schema=False)
    async def shell_of(path: str, request: Request) -> Response:
        path = request.scope.get(
            "raw_path", request.url.path.encode()
        ).decode()  # where %2F is none of the path's own
        run_path, _, tab = path.rpartition("/")
        if tab in run.TABS and View(path=run_path).run_id is not None:
            rest = ""
            if request.url.query:
                rest = f"&{request.url.query}"
            return RedirectResponse(views.link_to(f"{run_path}?tab={tab}{rest}"))
        if page_at(View(path=path)) is not None:
            return HTMLResponse(_shell(dash_app, request))
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        # The page shows that there is none.
        return HTMLResponse(_shell(dash_app, request), 404)


def _serve_scripts_compressed(app: FastAPI, dash_app: Dash) -> None:
    """Before Dash's own route for its scripts: each is compressed once and not for every browser;
    and plotly beside them."""
    kept: dict[bytes, bytes] = {}

    # Not async: reading and compressing a file of megabytes belongs into a thread.
    @app.get("/_dash-component-suites/{package_name}/{path:path}", include_in_schema=False)
    def script(package_name: str, path: str, request: Request) -> Response:
        if request.url.path == PLOTLY_PATH:
            headers = {"Cache-Control": "public, max-age=31536000, immutable"}
            answer = Response(PLOTLY, media_type="text/javascript", headers=headers)
        else:
            try:
                answer = dash_app.backend.serve_component_suites(
                    dash_app, package_name, path, request
                )
            except DependencyException:
                raise HTTPException(404) from None
        plain = bytes(answer.body)
        if len(plain) < 1_000 or "gzip" not in request.headers.get("accept-encoding", ""):
            return answer
        # By content: the fingerprint in the address is the caller's word, and any is served.
        digest = hashlib.sha256(plain).digest()
        if digest not in kept:
            kept[digest] = gzip.compress(plain, compresslevel=6)
        answer.body = kept[digest]
        answer.headers["content-length"] = str(len(kept[digest]))
        answer.headers["content-encoding"] = "gzip"
        answer.headers.add_vary_header("Accept-Encoding")
        return answer

    # Dash has put its own route there already, and the first that fits answers.
    app.router.routes.insert(0, app.router.routes.pop())


def _shell(dash_app: Dash, request: Request) -> str:
    token = set_current_request(request)
    try:
        return str(dash_app.index())
    finally:
        reset_current_request(token)
