"""What the reader looks at: the page's address with its query, which the browser keeps and sends
with every question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException

from isentrope_dashboard.theme import Scheme

Axis = Literal["step", "time", "tokens"]

SMOOTHED = {"off": 0, "on": 9, "more": 31}
"""Steps that a smoothed line is the mean of, by the choices of the address."""

STORE = "view"
"""Id of the store that holds the view; every callback that reads from the server has it as an
input."""

RUN_PREFIX = "/runs/"

ROOT_PATH: ContextVar[str] = ContextVar("isentrope_dashboard_root_path", default="")
"""Of the server whose request is answered: what browsers have in front of every path."""


def refuse_page() -> HTTPException:
    return HTTPException(400, "This is no request of one of this server's pages. Reload the page.")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The address. A link that carries it shows the same to another reader."""

    path: str = "/"
    scheme: Scheme = "light"
    origin: str = ""
    """The server as the browser reaches it: `http://127.0.0.1:7070`, with its root path."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Everything behind `?`: the parameters below, and those of single tabs and pages."""
    runs: tuple[str, ...] = ()
    """Every `run=` of the query."""
    metrics: tuple[str, ...] = ()
    """Every `metric=` of the query."""
    columns: tuple[str, ...] = ()
    """Every `column=` of the query."""
    form: Mapping[str, Any] | None = None
    """What the control card's form has, no part of the address: its `fields`, and the version
    `base` that it began with. None where there is no form."""

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> View:
        """The view that the browser sent; what it does not say has its default. HTTPException 400:
        no page of this server sends this."""
        try:
            known = dict(stored or {})
            pairs = [(str(name), str(value)) for name, value in known.get("query") or []]
            if known.get("form") is None:
                form = None
            else:
                form = dict(known["form"])
        except (TypeError, ValueError):
            raise refuse_page() from None
        return cls(
            path=str(known.get("path") or "/"),
            origin=str(known.get("origin") or ""),
            scheme="dark" if known.get("theme") == "dark" else "light",
            query=dict(pairs),
            runs=tuple(value for name, value in pairs if name == "run"),
            metrics=tuple(value for name, value in pairs if name == "metric"),
            columns=tuple(value for name, value in pairs if name == "column"),
            form=form,
        )

    @property
    def run_id(self) -> str | None:
        """The run that the path names; None of any other page."""
        name = self.path.removeprefix(RUN_PREFIX).strip("/")
        if self.path.startswith(RUN_PREFIX) and "/" not in name:
            return unquote(name) or None
        return None

    @property
    def tab(self) -> str:
        return self.query.get("tab", "overview")

    @property
    def window(self) -> str:
        """`all`, a number of last steps, or `control`: since shortly before the newest applied
        control."""
        return self.query.get("window", "all")

    @property
    def axis(self) -> Axis:
        match self.query.get("x"):
            case "time":
                return "time"
            case "tokens":
                return "tokens"
            case _:
                return "step"

    @property
    def smooth(self) -> int:
        """Steps that a smoothed line is the mean of; 0: none is smoothed."""
        return SMOOTHED.get(self.query.get("smooth", "on"), SMOOTHED["on"])

    @property
    def log(self) -> bool:
        return self.query.get("log") == "on"

    @property
    def zoom(self) -> tuple[float, float] | None:
        """Both ends of a zoom, in units of the axis."""
        try:
            first, last = (float(end) for end in self.query.get("zoom", "").split("~"))
        except ValueError:
            return None
        if first < last:
            return (first, last)
        return None

    def whole_number(self, name: str) -> int | None:
        """A parameter that is a number ≥ 0; None without one."""
        text = self.query.get(name, "")
        if text.isdecimal() and len(text) < 16:
            return int(text)
        return None


def link_to(path: str) -> str:
    """What a link to a path of this server holds."""
    return ROOT_PATH.get() + path


def address_of(run_id: str) -> str:
    return link_to(RUN_PREFIX + quote(run_id, safe=""))


def listed_in(view: View, param: str) -> list[str]:
    """A list in the address; each entry is encoded, as names may have commas."""
    return [unquote(entry) for entry in view.query.get(param, "").split(",") if entry]


def listed(entries: Sequence[str]) -> str:
    """The inverse, for the address; a comma where there is none, which is not the same as no
    parameter."""
    return ",".join(quote(entry, safe="") for entry in entries) or ","
