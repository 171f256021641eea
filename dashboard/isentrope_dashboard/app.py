"""The dashboard on the server's own ASGI application: `attach` is called last by the server's app factory."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from dash import Dash
from dash.backends._fastapi import reset_current_request, set_current_request
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from isentrope_dashboard.access import Api, CredentialsMiddleware
from isentrope_dashboard.live import News
from isentrope_dashboard.pages import routing

ASSETS = Path(__file__).parent / "assets"
PLOTLY = (Path(__file__).parent / "vendored" / "plotly-cartesian.min.js").read_bytes()
"""plotly.js with the charts that pages draw, a third of the whole."""
PLOTLY_ADDRESS = f"/_dash-component-suites/plotly/{hashlib.sha256(PLOTLY).hexdigest()[:16]}.js"

# `color-scheme.js` runs in the head, before anything is painted; every other script belongs at the end, but plotly is on its
# way meanwhile.
INDEX = f"""<!DOCTYPE html>
<html lang="en">
    <head>
        {{%metas%}}
        <title>{{%title%}}</title>
        <link rel="icon" type="image/svg+xml" href="/assets/icon.svg">
        {{%css%}}
        <script src="/assets/first-paint/color-scheme.js"></script>
        <script async src="{PLOTLY_ADDRESS}"></script>
    </head>
    <body>
        {{%app_entry%}}
        <footer>
            {{%config%}}
            {{%scripts%}}
            {{%renderer%}}
        </footer>
    </body>
</html>"""


def attach(app: FastAPI) -> None:
    """Serve the dashboard's pages from `app`.

    Args:
        app: The server's application with all of its own routes: any other address is answered here, with a page or 404.
            Its REST API is called in process, with the browser user's own cookie or token.
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
        on_error=routing.report_failure,
    )
    # Else every page tries to open a WebSocket, again and again; no callback uses one.
    dash_app.backend.websocket_capability = False
    dash_app.layout = routing.shell
    api = Api(app)
    routing.register(dash_app, api)
    News(api, routing.parts_of).serve(app)
    _serve_scripts_compressed(app, dash_app)
    # Dash would do it at the first request under its own prefix, and a deep link may come before.
    dash_app._setup_server()
    _answer_every_address(app, dash_app)
    _allow_inline_scripts(app, dash_app.csp_hashes())
    app.add_middleware(CredentialsMiddleware)


def _answer_every_address(app: FastAPI, dash_app: Dash) -> None:
    """Instead of Dash's own catch-all, which answers every address with a page."""

    @app.get("/{path:path}", include_in_schema=False)
    async def shell_of(path: str, request: Request) -> HTMLResponse:
        if routing.is_page(f"/{path}"):
            return HTMLResponse(_shell(dash_app, request))
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        # The page shows that there is none.
        return HTMLResponse(_shell(dash_app, request), 404)


def _serve_scripts_compressed(app: FastAPI, dash_app: Dash) -> None:
    """Before Dash's own route for its scripts: each is compressed once and not for every browser; and plotly beside them."""
    kept: dict[bytes, bytes] = {}

    # Not async: reading and compressing a file of megabytes belongs into a thread.
    @app.get("/_dash-component-suites/{package_name}/{path:path}", include_in_schema=False)
    def script(package_name: str, path: str, request: Request) -> Response:
        if request.url.path == PLOTLY_ADDRESS:
            headers = {"Cache-Control": "public, max-age=31536000, immutable"}
            answer = Response(PLOTLY, media_type="text/javascript", headers=headers)
        else:
            answer = dash_app.backend.serve_component_suites(dash_app, package_name, path, request)
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


def _allow_inline_scripts(app: FastAPI, hashes: list[str]) -> None:
    """Add our inline scripts to the server's content security policy, which covers every page."""
    app.state.script_hashes = [*getattr(app.state, "script_hashes", ()), *hashes]
