"""`/docs`: the REST API as a page to read and to try. Swagger UI draws it from `/openapi.json`.

Every file comes from this server: `fastapi-swagger` packages those that Swagger UI releases, unchanged. Its own page is
not used, because that has an inline script.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_PAGE = Path(__file__).parents[1] / "reference"
_SWAGGER_UI = Path(str(files("fastapi_swagger"))) / "resources"
_FILES = {
    "start.js": _PAGE / "start.js",
    "swagger-ui-bundle.js": _SWAGGER_UI / "swagger-ui-bundle.js",
    "swagger-ui.css": _SWAGGER_UI / "swagger-ui.css",
}
# Without it a browser guesses from the files' dates, which are years old, and keeps them across an upgrade.
_KEPT_FOR_AN_HOUR = {"cache-control": "private, max-age=3600"}


@router.get("/docs")
async def read_the_reference() -> FileResponse:
    """The page."""
    return FileResponse(_PAGE / "page.html", headers={"cache-control": "no-cache"})


@router.get("/docs/{file}")
async def read_a_file_of_the_reference(file: str) -> FileResponse:
    """What the page loads."""
    if file not in _FILES:
        raise HTTPException(404)
    return FileResponse(_FILES[file], headers=_KEPT_FOR_AN_HOUR)
