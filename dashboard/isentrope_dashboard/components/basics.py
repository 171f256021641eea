"""Rows, cards, chips, icons, tables: the pieces of every page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

Content: TypeAlias = Component | str | list[Any] | None

SPARK_WIDTH, SPARK_HEIGHT = 72, 22

_SHAPES = {
    "search": "<circle cx='11' cy='11' r='7'/><path d='m20 20-4-4'/>",
    "link": (
        "<path d='M10 14a4 4 0 0 0 5.7 0l3-3a4 4 0 1 0-5.7-5.7l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3A4 4"
        " 0 1 0 11 18.7l1-1'/>"
    ),
    "moon": "<path d='M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z'/>",
    "sun": (
        "<circle cx='12' cy='12' r='4'/><path d='M12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4"
        " 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4'/>"
    ),
    "send": "<path d='M21 3 10 14M21 3l-7 18-4-7-7-4 18-7z'/>",
    "run": "<path d='M3 12h4l3-8 4 16 3-8h4'/>",
    "check": "<path d='m5 13 4 4L19 7'/>",
    "undo": "<path d='M4 9h10a6 6 0 0 1 0 12h-3M4 9l5-5M4 9l5 5'/>",
    "alert": "<path d='M12 3 2 20h20L12 3zM12 10v4M12 17.3v.2'/>",
    "eye": (
        "<path d='M2 12s3.6-7 10-7 10 7 10 7-3.6 7-10 7-10-7-10-7z'/><circle cx='12' cy='12'"
        " r='3'/>"
    ),
    "arrow": "<path d='M5 12h14M13 6l6 6-6 6'/>",
    "compare": "<path d='M4 19V9M10 19V5M16 19v-7M22 19V3'/>",
    "previous": "<path d='m14 6-6 6 6 6'/>",
    "next": "<path d='m10 6 6 6-6 6'/>",
    "clock": "<circle cx='12' cy='12' r='9'/><path d='M12 7v5l3 2'/>",
    "plus": "<path d='M12 5v14M5 12h14'/>",
    "download": "<path d='M12 4v12M7 11l5 5 5-5M5 20h14'/>",
    "more": (
        "<circle cx='12' cy='5' r='1'/><circle cx='12' cy='12' r='1'/><circle cx='12' cy='19'"
        " r='1'/>"
    ),
    "pin": "<path d='M9 3h6l-1 7 4 3v2H6v-2l4-3-1-7zM12 15v6'/>",
}


def icon(name: str, size: int = 16) -> html.Span:
    """A decorative icon; the text beside it, or a label, carries the meaning."""
    drawing = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='black'"
        f" stroke-width='2' stroke-linecap='round' stroke-linejoin='round'>{_SHAPES[name]}</svg>"
    )
    style = {
        "width": size,
        "height": size,
        "--drawing": f'url("data:image/svg+xml,{quote(drawing)}")',
    }
    return html.Span(className="icon", style=style, **{"aria-hidden": "true"})


def row(*children: Any, name: str = "", **more: Any) -> html.Div:
    return html.Div(list(children), className=f"row {name}".strip(), **more)


def text(content: Content, kind: str = "") -> html.Span:
    """Words in one of the style sheet's kinds: `dim`, `strong`, `num`, `small` ..."""
    return html.Span(content, className=kind)


def age(at: float) -> html.Span:
    """How long ago a time is: the browser fills it in, and counts on."""
    return html.Span("", **{"data-since": at, "data-before": ""})


def spacer() -> html.Div:
    """Takes the room that is left in a row."""
    return html.Div(className="spacer")


def chip(content: Content, tone: str = "", *, symbol: str = "") -> html.Span:
    """A state in a word; `tone` is ok, act, watch or iris, and never the only sign."""
    return html.Span(
        [icon(symbol, 12), content] if symbol else content, className=f"chip {tone}".strip()
    )


def card(
    *children: Any, title: Content = None, beside: Any = None, name: str = "", **more: Any
) -> html.Section:
    if title is None:
        head = []
    else:
        head = [row(html.H2(title, className="title"), spacer(), beside, name="card-head")]
    return html.Section([*head, *children], className=f"card {name}".strip(), **more)


S_C = [html.I("S"), html.Sub("c")]
ADVANTAGE = (
    "A, the advantage: above 0 for tokens of completions that are better than their group's mean"
)
SCORE = (
    "S_c, the score of a token: above 0 where the policy finds it likelier than it expects, below 0"
    " where less likely. The entropy falls where likely tokens are rewarded and unlikely ones"
    " punished (A and S_c have one sign)."
)
SIGMA = "σ: the threshold counts standard deviations of the score over the tokens of a step"


def unbroken(words: str) -> str:
    """A sentence of the server's whose lines do not end between a number and its per cent."""
    return words.replace(" %", "\N{NO-BREAK SPACE}%")


def write_symbols(words: str) -> list[Any]:
    """A sentence of the server's, in which A and S_c are written as in the papers."""
    known = {"A": html.Span(html.I("A"), title=ADVANTAGE), "S_c": html.Span(S_C, title=SCORE)}
    return [known.get(piece, piece) for piece in re.split(r"\b(A|S_c)\b(?= [<>≤≥])", words)]


def table(
    heads: Sequence[Any], rows: Sequence[Sequence[Any]], name: str, *, headed: bool = True
) -> html.Table:
    """A table of cells; without `heads` it has no head. `headed`: the first cell of each row is the
    row's heading."""
    cells = [html.Th(cell, scope="col") if cell else html.Td() for cell in heads]
    head = []
    if cells:
        head = [html.Thead(html.Tr(cells))]
    lines = [
        html.Tr([html.Th(first, scope="row") if headed else html.Td(first), *map(html.Td, rest)])
        for first, *rest in rows
    ]
    return html.Table([*head, html.Tbody(lines)], className=name)


def wide_table(inside: html.Table, says: str) -> html.Div:
    """A table that scrolls sideways where it has no room."""
    return html.Div(
        inside, className="wide-table", tabIndex=0, role="region", **{"aria-label": says}
    )


def grid(
    name: str, columns: Sequence[dict[str, Any]], *, row_id: str, empty: str, **more: Any
) -> dag.AgGrid:
    """A grid in the pages' colours whose height the style sheet has. `row_id` is the field of a row
    that names it; `empty` is shown in the place of rows."""
    look = {
        "theme": {"function": "themeQuartz.withParams(isentropeTheme)"},
        "animateRows": False,
        "headerHeight": 32,
        "tabToNextCell": {"function": "leaveGrid()"},
        "tabToNextHeader": {"function": "leaveGrid()"},
        "localeText": {"noRowsToShow": empty},
    }
    column = {
        "sortable": True,
        "resizable": True,
        "suppressHeaderMenuButton": True,
        "suppressMovable": True,
    }
    return dag.AgGrid(
        id=name,
        columnDefs=list(columns),
        getRowId=f"params.data.{row_id}",
        style={"height": None},
        defaultColDef=column | more.pop("defaultColDef", {}),
        dashGridOptions=look | more.pop("dashGridOptions", {}),
        **more,
    )


RIGHT: Final[dict[str, Any]] = {"type": "rightAligned", "cellClass": "num ag-right-aligned-cell"}
"""Look of a grid's column of numbers."""


def search(param: str, value: str, words: str, *, width: int = 200, **more: Any) -> dmc.TextInput:
    """A field whose text the page's address carries, as that of `choice`."""
    return dmc.TextInput(
        id={"param": param},
        value=value,
        debounce=300,
        size="xs",
        w=width,
        placeholder=words,
        className="search",
        **({"leftSection": icon("search", 14), "aria-label": words} | more),
    )


def plot(chart: str, height: int | str, says: str, **more: Any) -> html.Div:
    """The place in which the browser draws a chart, so many pixels high, or a length of CSS; `says`
    is read by screen readers."""
    return html.Div(
        id=chart,
        className="plot",
        style={"height": height},
        role="img",
        **{"aria-label": says},
        **more,
    )


def plain(content: Content) -> str:
    """Its words."""
    if isinstance(content, Component):
        return plain(content.children)
    if isinstance(content, list):
        return "".join(map(plain, content))
    return str(content or "")


def choice(
    param: str, options: Sequence[tuple[str, str]], value: str, says: str
) -> dmc.SegmentedControl:
    """A choice between values, given with their words, that the page's address carries as `param`:
    the browser writes it there, and the page is read again."""
    data = [{"value": key, "label": word} for key, word in options]
    return dmc.SegmentedControl(
        id={"param": param}, data=data, value=value, size="xs", **{"aria-label": says}
    )


def dialog(name: str, title: str, confirm: dmc.Button, *body: Component) -> dmc.Modal:
    """A form over the page: `NAME-form`, with a place for what was refused, `NAME-refused`, above
    Cancel and the button that does it."""
    return dmc.Modal(
        html.Div(
            [
                *body,
                html.Div(id=f"{name}-refused"),
                row(spacer(), button("Cancel", **{"data-close": ""}), confirm),
            ],
            className="dialog",
        ),
        id=f"{name}-form",
        title=title,
        opened=False,
        closeButtonProps={"aria-label": "Close"},
    )


def nothing(title: str, says: str) -> html.Div:
    """A card in the place of what there is none of."""
    return html.Div(
        [html.P(title, className="strong"), html.P(says, className="dim")], className="card empty"
    )


def skeleton(height: int) -> dmc.Skeleton:
    """In the place of a card that is still being read."""
    return dmc.Skeleton(height=height, radius=8)


def place_id(*names: str) -> str:
    """Id of what shows something with this name, which may have any characters."""
    return quote("-".join(names), safe="")


def button(label: Content, **more: Any) -> html.Button:
    """A small button among values, where none of Mantine's can be: `assets/*.js` listens to it."""
    return html.Button(label, type="button", className="button needs-server", **more)


def native(tag: str, **props: Any) -> dict[str, Any]:
    """An element that `dash.html` does not have, in the values of a part."""
    return {"type": tag, "props": props}


def sparkline(values: Sequence[float | None], top: float | None = None) -> str:
    """A line as a CSS picture; it begins at 0 where no value is negative, ends at `top` or its own
    highest value, and breaks where one is missing."""
    known = [value for value in values if value is not None]
    low, high = min([0.0, *known]), max([*known, *([] if top is None else [top])], default=0.0)
    span = (high - low) or 1.0
    across = SPARK_WIDTH / max(1, len(values) - 1)
    path, pen = "", "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        path += f"{pen}{at * across:.1f} {1 + (SPARK_HEIGHT - 2) * (1 - (value - low) / span):.1f}"
        pen = "L"
    drawing = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{SPARK_WIDTH}'"
        f" height='{SPARK_HEIGHT}'><path d='{path}' fill='none' stroke='black' stroke-width='1.5'"
        " stroke-linejoin='round' stroke-linecap='round'/></svg>"
    )
    return f'url("data:image/svg+xml,{quote(drawing)}")'
