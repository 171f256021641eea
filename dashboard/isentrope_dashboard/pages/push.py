"""Pushing a control to the trainer, and what is said when that can't be done."""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, no_update

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.control_changes import describe
from isentrope_dashboard.controls import ControlState, ControlValues
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.entered_control import Form, form_values
from isentrope_dashboard.errors import ApiError, ApiUnreachableError, FormError
from isentrope_dashboard.pages.form import FIELDS
from isentrope_dashboard.pages.notice import notification
from isentrope_dashboard.pages.polling import show
from isentrope_dashboard.pages.routing import run_of_path
from isentrope_dashboard.pages.run_content import control_and_history_props


def register(app: Dash, source: ApiSource) -> None:
    """Push what the form says when the button is pressed."""

    @app.callback(
        output=(
            Output(ids.NOTIFICATIONS, "sendNotifications", allow_duplicate=True),
            Output(ids.REASON, "value"),
        ),
        inputs={
            "clicks": Input(ids.PUSH, "n_clicks"),
            "path": State(ids.URL, "pathname"),
            # What the fields started from, not the newest: a control the form has not followed yet must be refused.
            "base": State(ids.CONTROL_BASE, "data"),
            "entered": [State(component, name) for component, name in FIELDS],
            "parameters": State(ids.parameter(ALL, ALL), "value"),
            "parameter_ids": State(ids.parameter(ALL, ALL), "id"),
            "forms": State(ids.METHOD_FORMS, "data"),
            "reason": State(ids.REASON, "value"),
        },
        prevent_initial_call=True,
        running=[(Output(ids.PUSH, "loading"), True, False)],
    )
    async def push(
        clicks: int | None,
        path: str | None,
        base: dict[str, Any] | None,
        entered: list[Any],
        parameters: list[object],
        parameter_ids: list[dict[str, str]],
        forms: dict[str, dict[str, dict[str, Any]]] | None,
        reason: str | None,
    ) -> tuple[Any, Any]:
        run_id = run_of_path(path)
        if not clicks or run_id is None or base is None:
            return no_update, no_update
        try:
            form = Form(*entered)
            texts = {f["name"]: v for f, v in zip(parameter_ids, parameters, strict=True) if f["method"] == form.method}
            values = form_values(form, base["reference"], texts, (forms or {}).get(form.method))
            async with source.open(current_credentials()) as api:
                return await _push(api, run_id, values, reason or "", base)
        except (ApiError, ApiUnreachableError, FormError) as error:
            return [notification("Not pushed", str(error), "red", key="push-failed", seconds=15)], no_update


async def _push(
    api: ApiClient, run_id: str, values: ControlValues, reason: str, base: dict[str, Any]
) -> tuple[Any, Any]:
    try:
        await api.push_control(run_id, values, reason, base["etag"])
    except ApiError as error:
        if error.status != 412:
            raise
        state = await _show_control(api, run_id)
        return [_conflict(state, ControlValues.from_json(base["reference"]))], no_update
    await _show_control(api, run_id)
    return no_update, ""


async def _show_control(api: ApiClient, run_id: str) -> ControlState:
    state = await api.control(run_id)
    content = control_and_history_props(state, await api.history(run_id))
    show(content)
    return state


def _conflict(state: ControlState, before: ControlValues) -> dict[str, Any]:
    newest = state.desired
    who = f" by {newest.author}" if newest.author else ""
    message = (
        f"The control was changed{who} while you edited: version {newest.version} has "
        f"{describe(newest.values, before)}. The form now follows it and keeps what you edited; check it and push again."
    )
    return notification("Not pushed: someone was faster", message, "orange", key="push-conflict", seconds=20)
