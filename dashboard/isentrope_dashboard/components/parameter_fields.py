"""The fields for a method's own parameters; the browser shows those of the method that is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.edit_mark import marked
from isentrope_dashboard.formatting import parameter
from isentrope_dashboard.method_forms import MethodForm, ParameterForm

HIDDEN = {"display": "none"}


def parameter_fields(forms: Sequence[MethodForm]) -> html.Div:
    """One group of fields a method, all out of sight, and what the browser must know about them."""
    known = {form.method: {field.name: field.to_json() for field in form.parameters} for form in forms}
    presets = {form.method: {name: p.to_json() for name, p in form.presets.items()} for form in forms}
    groups = [_group(form) for form in forms if form.parameters or form.presets]
    stores = [dcc.Store(id=ids.METHOD_FORMS, data=known), dcc.Store(id=ids.METHOD_PRESETS, data=presets)]
    return html.Div([*stores, *groups])


def _group(form: MethodForm) -> html.Div:
    return html.Div(
        [*_presets(form), *(_field(form.method, field) for field in form.parameters)],
        id=ids.parameters_of(form.method),
        className="parameters",
        style=HIDDEN,
    )


def _presets(form: MethodForm) -> list[Any]:
    if not form.presets:
        return []
    buttons = [
        dmc.Button(
            name.capitalize(),
            id=ids.preset(form.method, name),
            variant="default",
            size="compact-xs",
            **{"aria-label": f"Fill in the preset {name}"},
        )
        for name in form.presets
    ]
    return [dmc.Group([dmc.Text("Fill in a preset", size="xs", c="dimmed"), *buttons], gap="xs")]


def _field(method: str, field: ParameterForm) -> Any:
    label = field.name.replace("_", " ")
    known: dict[str, Any] = {
        "id": ids.parameter(method, field.name),
        "label": label,
        "description": _description(field),
        "size": "xs",
        "value": parameter(field.default),
    }
    if field.choices:
        choice = dmc.Select(**known, data=list(field.choices), allowDeselect=False)
        return marked(choice, field.name, label, method=method)
    # Not a NumberInput: it can't show 1e-4 as it was typed.
    entry = dmc.TextInput(**known, placeholder="off" if field.default is None else parameter(field.default))
    return marked(entry, field.name, label, method=method)


def _description(field: ParameterForm) -> str:
    sense = field.sense[:1].upper() + field.sense[1:]
    bounds = "" if field.choices or not field.range else f" Takes {field.range}."
    default = "Off when empty." if field.default is None else f"Default {parameter(field.default)}."
    return f"{sense}. {default}{bounds}"
