"""Pushing a control to the trainer, and what is said when that can't be done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dash import ALL, Dash, Input, Output, State, no_update

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.control_changes import describe
from isentrope_dashboard.controls import ControlState, ControlValues
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError, FormError
from isentrope_dashboard.pages.notice import notification
from isentrope_dashboard.pages.polling import show
from isentrope_dashboard.pages.routing import run_of_path
from isentrope_dashboard.pages.run_content import control_and_history_props

THRESHOLD_METHODS = frozenset({"clip_b", "clip_v"})


def register(app: Dash, source: ApiSource) -> None:
    """Push what the form says when the button is pressed."""

    @app.callback(
        Output(ids.NOTIFICATIONS, "sendNotifications", allow_duplicate=True),
        Output(ids.REASON, "value"),
        Input(ids.PUSH, "n_clicks"),
        State(ids.URL, "pathname"),
        State(ids.CONTROL, "data"),
        State(ids.METHOD, "value"),
        State(ids.SCOPE, "value"),
        State(ids.threshold(ids.MU_LOW, "switch"), "checked"),
        State(ids.threshold(ids.MU_LOW, "number"), "value"),
        State(ids.threshold(ids.MU_HIGH, "switch"), "checked"),
        State(ids.threshold(ids.MU_HIGH, "number"), "value"),
        State(ids.parameter(ALL, ALL), "value"),
        State(ids.parameter(ALL, ALL), "id"),
        State(ids.METHOD_FORMS, "data"),
        State(ids.REASON, "value"),
        prevent_initial_call=True,
        running=[(Output(ids.PUSH, "loading"), True, False)],
    )
    async def push(
        clicks: int | None,
        path: str | None,
        control: dict[str, Any] | None,
        method: str,
        scope: str,
        low_on: bool,
        low: object,
        high_on: bool,
        high: object,
        entered: list[object],
        fields: list[dict[str, str]],
        forms: dict[str, dict[str, dict[str, Any]]] | None,
        reason: str | None,
    ) -> tuple[Any, Any]:
        run_id = run_of_path(path)
        if not clicks or run_id is None or control is None:
            return no_update, no_update
        try:
            texts = {f["name"]: text for f, text in zip(fields, entered, strict=True) if f["method"] == method}
            if forms and method in forms:
                parameters = form_parameters(forms[method], texts)
            else:
                parameters = unseen_parameters(method, control["reference"])
            values = form_values(
                method, scope, low_on=low_on, low=low, high_on=high_on, high=high, parameters=parameters
            )
            async with source.open(current_credentials()) as api:
                return await _push(api, run_id, values, reason or "", control)
        except (ApiError, ApiUnreachableError, FormError) as error:
            return [notification("Not pushed", str(error), "red", key="push-failed", seconds=15)], no_update


def form_values(
    method: str,
    scope: str,
    *,
    low_on: bool,
    low: object,
    high_on: bool,
    high: object,
    parameters: Mapping[str, Any] | None = None,
) -> ControlValues:
    """The control the form describes; thresholds only with a method that has them.

    Raises:
        FormError: a threshold that is switched on has no number.
    """
    if method not in THRESHOLD_METHODS:
        return ControlValues(method=method, scope=scope, parameters=parameters or {})
    return ControlValues(
        parameters=parameters or {},
        method=method,
        mu_low=_entered("lower", low) if low_on else None,
        mu_high=_entered("upper", high) if high_on else None,
        scope=scope,
    )


def form_parameters(forms: Mapping[str, Mapping[str, Any]], entered: Mapping[str, object]) -> dict[str, Any]:
    """What the fields of one method say, by name; a field that shows the default says nothing.

    Args:
        forms: what each parameter takes, by its name.
        entered: what stands in each field.

    Raises:
        FormError: a field that needs a number has none. Whether it is within its bounds is the server's to say.
    """
    values = {name: _parameter(name, forms[name], value) for name, value in entered.items() if name in forms}
    return {name: value for name, value in values.items() if value != forms[name]["default"]}


def unseen_parameters(method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method the form has no fields for, those it started from: a push must not drop them."""
    return dict(reference.get("parameters") or {}) if reference.get("method") == method else {}


def _parameter(name: str, form: Mapping[str, Any], value: object) -> float | int | str | None:
    text = "" if value is None else str(value).strip()
    if form["kind"] == "choice":
        return text
    if not text and form["default"] is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FormError(f"{name} must be {form['range']}, got {text!r:.40}.")
    return int(number) if form["kind"] == "whole" and number == int(number) else number


def _entered(side: str, value: object) -> float:
    """What stands in a threshold's field: a number, or the text of one that is half typed."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise FormError(
            f"The {side} threshold counts standard deviations and must be a number of at least 0, got {value!r:.40}. "
            f"Enter a number, or switch the threshold off."
        )
    return number


async def _push(
    api: ApiClient, run_id: str, values: ControlValues, reason: str, control: dict[str, Any]
) -> tuple[Any, Any]:
    try:
        await api.push_control(run_id, values, reason, control["etag"])
    except ApiError as error:
        if error.status != 412:
            raise
        state = await _show_control(api, run_id)
        return [_conflict(state)], no_update
    await _show_control(api, run_id)
    return no_update, ""


async def _show_control(api: ApiClient, run_id: str) -> ControlState:
    state = await api.control(run_id)
    content = control_and_history_props(state, await api.history(run_id))
    show(content)
    return state


def _conflict(state: ControlState) -> dict[str, Any]:
    newest = state.desired
    who = f" by {newest.author}" if newest.author else ""
    message = (
        f"The control was changed{who} while you edited: version {newest.version} asks for "
        f"{describe(newest.values, None)}. The panel now shows it and keeps your edits; check them and push again."
    )
    return notification("Not pushed: someone was faster", message, "orange", key="push-conflict", seconds=20)
