"""The mark of a field of the control's form: whether it was edited here or set by somebody else, and the way back."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids


def marked(field: Any, name: str, label: str, *, method: str = "", wide: bool = False) -> html.Div:
    """A field with its mark below it, out of sight until the browser has something to say.

    Args:
        name: as the browser's script says it: `mu_low`, `hold.mu_min`, or the name of one of `method`'s parameters.
        label: the field's name for a person.
        wide: whether it takes the whole row.
    """
    back = dmc.Button(
        "Revert",
        id=ids.revert(method, name),
        variant="subtle",
        size="compact-xs",
        className="revert",
        **{"aria-label": f"Revert {label}"},
    )
    line = html.Div([html.Span("", id=ids.edit_note(method, name)), back], className="mark-line num")
    place = html.Div([field, line], id=ids.edit_mark(method, name), className="marked-field")
    return html.Div(place, className="wide") if wide else place
