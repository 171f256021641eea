"""The control card of a run's overview: the form with its what-if, pushing, conflicts, and the newest control.

The form is no value of the part: what is typed stays when a step arrives. It is filled by one callback (`fill`), from the
document in the store FILL or from the defaults of a chosen method, and judged by another one (`judge`) when nothing was changed
for a moment, or a step arrived. Both, and `push`, set FILL with `set_props`: as an output it would make them wait for each
other. What follows a handle without the server is in `assets/control.js`.

A push is a callback and no request of the browser's own: the document is made from the fields in one place, in Python. Dash
reports no failed request, so the browser waits a few seconds for the answer and then says that none came.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update, set_props
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.calls import Call
from isentrope.client.connection import ApiError, AsyncClient, ControlConflict
from isentrope_dashboard import view as views
from isentrope_dashboard.components import control_card as card
from isentrope_dashboard.components.basics import card as plain_card
from isentrope_dashboard.components.basics import chip
from isentrope_dashboard.components.control_card import Fields
from isentrope_dashboard.components.control_effects import (
    LATEST,
    cap_of,
    dead_before_push,
    expected_action,
    hold_in_words,
    latest_control,
    measured_step,
    name_of,
)
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.figures.panel import NEXT_STEPS
from isentrope_dashboard.formatting import describe
from isentrope_dashboard.live import NEWS, Api, Part, Values
from isentrope_dashboard.pages.charts import read_metric, read_scale
from isentrope_dashboard.view import View
from isentrope_wire.answers import RunDetail
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import ControlVersion, RunControl, WhatIfAnswer
from isentrope_wire.control_answers import State as ControlState
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.hold_decision import clipping_method
from isentrope_wire.methods import SUGGESTED, Method, method_named
from isentrope_wire.metrics import ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE, HOLD_GAIN

STEPS: Final = 10
"""Last steps whose mean the what-if shows: the tokens of one step alone scatter by half."""
HISTORY: Final = 20
CLOSED, NEWEST = "control-closed", "control-newest"
PARAMETERS = {"parameter": ALL}
_FIELDS = {
    "method": (card.METHOD, "value"),
    "mu_low": (card.MU_LOW, "value"),
    "mu_high": (card.MU_HIGH, "value"),
    "scope": (card.SCOPE, "value"),
    "hold": (card.HOLD, "checked"),
    "hold_target": (card.HOLD_TARGET, "value"),
}
"""Field of `Fields` -> component and property; beside them the parameters."""
FORM = {
    "values": {name: State(component, prop) for name, (component, prop) in _FIELDS.items()},
    "parameters": State(PARAMETERS, "value"),
    "ids": State(PARAMETERS, "id"),
}


def known(version: ControlVersion) -> dict[str, Any]:
    """What the form is filled from, as a store holds it."""
    state = str(version.state)
    return {"version": version.version, "state": state, "document": version.control.to_document()}


def reference(control: RunControl) -> ControlVersion:
    """The version that a form begins with: the newest while it is open, else the active one."""
    return control.active if control.state.is_final and control.active is not None else control


async def read(client: AsyncClient, view: View) -> Values:
    """Why there is no form, if so, and the newest control."""
    run_id = view.run_id or ""
    run, me, history = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.ask(calls.me()),
        client.newest(calls.control_history(run_id), HISTORY),
    )
    closed = card.why_closed(run, me)
    return {
        CLOSED: _closed(run, closed),
        NEWEST: known(run.control),
        LATEST: latest_control(history, is_over=run.status.is_over, may_push=not closed),
    }


def _closed(run: RunDetail, closed: str) -> Any:
    """Why nothing can be pushed, and what is shown instead."""
    return (
        f"{closed} Shown is what thresholds would have done to its last steps."
        if closed and card.has_form(run, closed)
        else closed
    )


def first_control(run: RunDetail) -> Control:
    """What the form begins with. Where nothing can be pushed, thresholds that the what-if can show."""
    control = reference(run.control).control
    if card.takes_controls(run) or control.method.thresholds:
        return control
    return Control(method=SUGGESTED, mu_low=card.FIRST_MU, mu_high=card.FIRST_MU)


async def layout(client: AsyncClient, view: View) -> Component:
    """The card with the run's control in its form, and the newest control beneath it."""
    run, me = await asyncio.gather(client.ask(calls.run(view.run_id or "")), client.ask(calls.me()))
    why = html.Div(id=CLOSED, className="dim closed")
    control, closed, base = first_control(run), card.why_closed(run, me), _as_it_is(run)["base"]
    form = (
        [card.form(run, card.fields_of(control), base, only_what_if=bool(closed))] if card.has_form(run, closed) else []
    )
    audit = html.A("All in Audit", href="?tab=audit", className="small", **{"data-tab": "audit"})
    newest = plain_card(html.Div(id=LATEST), title="Latest control", beside=audit, name="latest", id="latest-control")
    body = card.control_card(*form, why)
    return html.Div([dcc.Store(id=NEWEST), body, newest], className="control-column")


PART = Part(name="control", read=read, layout=layout, properties={NEWEST: "data"}, is_slow=True)


def fields_from(form: Mapping[str, Any]) -> Fields:
    """The form's fields, from what callbacks receive for `FORM`."""
    values = form["values"]
    named = {one["parameter"]: value for one, value in zip(form["ids"], form["parameters"], strict=True)}
    return Fields(
        method=values["method"] or "none",
        mu_low=values["mu_low"],
        mu_high=values["mu_high"],
        scope=values["scope"] or str(Scope.ALL),
        hold=bool(values["hold"]),
        hold_target=values["hold_target"],
        parameters=named,
    )


def changed_names(wanted: Control, before: Control) -> list[str]:
    """The parts of a control that differ, apart from its reason."""
    new, old = (_parts(card.control_of(card.fields_of(one))) for one in (wanted, before))
    return [name for name in {**old, **new} if new.get(name) != old.get(name)]


def _parts(control: Control) -> dict[str, object]:
    document = control.to_document()
    named = {name: document[name] for name in ("method", "mu_low", "mu_high", "scope", "hold")}
    return named | {f"parameters.{name}": value for name, value in control.parameters.items()}


def conflict_words(theirs: ControlVersion, mine: Control, base: Control) -> str:
    """`v4 by bob: µ₋ 1.00 → 1.50 · yours: µ₋ 1.00 → 2.00`: what either changed of the version both began with."""
    by = f" by {theirs.author}" if theirs.author else ""
    return f"v{theirs.version}{by}: {describe(theirs.control, base)} · yours: {describe(mine, base)}"


def register(app: Dash, api: Api) -> None:
    """Fill and judge the form, push it, and settle conflicts."""
    _register_browser(app)
    _register_fill(app)
    _register_judge(app, api)
    _register_push(app, api)


def _register_browser(app: Dash) -> None:
    app.clientside_callback(
        ClientsideFunction("control", "draw"),
        Output(card.CLIPPED, "children"),
        Output(card.CLIPPED_SPREAD, "children"),
        Output(card.CHANGE, "children"),
        Output(card.CHANGE_UNIT, "children"),
        Output(card.ENTROPY, "children"),
        Input(card.PREVIEW, "data"),
        *(Input(name, prop) for name, prop in _FIELDS.values()),
        Input(PARAMETERS, "value"),
        Input(card.BASE, "data"),
        Input(views.STORE, "data"),
        State(card.ASKED, "data"),
    )


_FILLED = {
    **{name: Output(component, prop) for name, (component, prop) in _FIELDS.items()},
    "more": Output(card.MORE, "children"),
    "more_words": Output(card.MORE_WORDS, "children"),
    "look": Output(card.FORM, "className"),
    "base": Output(card.BASE, "data"),
    "reason": Output(card.REASON, "value"),
}


def _register_fill(app: Dash) -> None:
    @app.callback(
        output=_FILLED,
        inputs={
            "filled": Input(card.FILL, "data"),
            "_method": Input(card.METHOD, "value"),
            "_take": Input(card.TAKE_THEIRS, "n_clicks"),
            "theirs": State(NEWEST, "data"),
            "base": State(card.BASE, "data"),
            "form": FORM,
        },
        prevent_initial_call=True,
    )
    async def fill(
        filled: dict[str, Any] | None,
        _method: str,
        _take: int | None,
        theirs: dict[str, Any],
        base: dict[str, Any] | None,
        form: dict[str, Any],
    ) -> dict[str, Any]:
        reason: Any = no_update
        if ctx.triggered_id == card.METHOD:
            before = fields_from(form)
            fields = card.chosen(before.method, before)
        else:
            if ctx.triggered_id == card.TAKE_THEIRS:
                filled = {"document": theirs["document"], "base": theirs}
                set_props(card.CONFLICT, {"className": "conflict gone"})
            if not filled:
                return dict.fromkeys(_FILLED, no_update)
            fields = card.fields_of(Control.from_document(filled["document"]))
            base, reason = filled.get("base") or base, filled.get("reason", "")
        method = method_named(fields.method)
        return {
            **{name: getattr(fields, name) for name in _FIELDS if name not in ("mu_low", "mu_high")},
            "mu_low": "" if fields.mu_low is None else fields.mu_low,
            "mu_high": "" if fields.mu_high is None else fields.mu_high,
            "more": card.parameter_fields(fields),
            "more_words": card.more_words(method),
            "look": card.form_class(method),
            "base": base,
            "reason": reason,
        }


_JUDGED = {
    "preview": Output(card.PREVIEW, "data"),
    "status": Output(card.STATUS, "children"),
    "note": Output(card.NOTE, "children"),
    "blocked": Output(card.PUSH, "disabled"),
}


def _register_judge(app: Dash, api: Api) -> None:
    @app.callback(
        output=_JUDGED,
        inputs={
            "asked": Input(card.ASKED, "data"),
            "_news": Input(NEWS, "data"),
            "_newest": Input(NEWEST, "data"),
            "stored": State(views.STORE, "data"),
            "base": State(card.BASE, "data"),
            "form": FORM,
        },
        prevent_initial_call=True,
    )
    async def judge(
        asked: str | None,
        _news: Any,
        _newest: Any,
        stored: dict[str, Any],
        base: dict[str, Any] | None,
        form: dict[str, Any],
    ) -> dict[str, Any]:
        nothing = dict.fromkeys(_JUDGED, no_update)
        if not asked:  # the form was mounted a moment ago, and the browser will ask
            return nothing
        view = View.of(stored)
        fields = fields_from(form)
        try:
            async with api.open() as client:
                run = await client.ask(calls.run(view.run_id or ""))
                diagnosis = await client.ask(calls.diagnosis(run.id))
                if base is None or (base["version"] < run.control.version and not _touched(fields, base)):
                    set_props(card.FILL, {"data": _as_it_is(run)})
                    return nothing
                return nothing | await _judged(client, view, run, diagnosis, fields, base)
        except ApiError as error:
            return nothing | {"note": str(error)}


def _as_it_is(run: RunDetail) -> dict[str, Any]:
    document = first_control(run).to_document()
    return {"document": document, "base": {**known(run.control), "document": document}}


def _touched(fields: Fields, base: Mapping[str, Any]) -> bool:
    try:
        return bool(changed_names(card.control_of(fields), Control.from_document(base["document"])))
    except ConfigurationError:
        return True


async def _judged(
    client: AsyncClient,
    view: View,
    run: RunDetail,
    diagnosis: Diagnosis,
    fields: Fields,
    base: Mapping[str, Any],
) -> dict[str, Any]:
    newer = _newer(run.control, base)
    # Without curves: all that the browser needs for methods without thresholds.
    preview: dict[str, Any] = {"entropy": diagnosis.entropy, "sides": None}
    try:
        wanted = card.control_of(fields)
    except ConfigurationError as error:
        status = newer or chip("Not complete", "watch")
        return {"status": status, "note": str(error), "blocked": True, "preview": preview}
    # The pushed version may have been refused since: then what counts is the active one.
    before = Control.from_document(base["document"]) if newer else reference(run.control).control
    changes = changed_names(wanted, before)
    status = newer or status_chip(run.control, len(changes))
    newest = {} if run.step is None else (await client.ask(calls.step(run.id, run.step))).scalars
    answer: dict[str, Any] = {"status": status, "blocked": not changes, "preview": preview, "note": ""}
    if not card.takes_controls(run):
        answer |= {"status": "", "blocked": True}
    try:
        if wanted.method.thresholds:
            found, answer["preview"] = await _thresholds(client, view, run, diagnosis, wanted)
        else:
            found = None
            if wanted.hold is None and wanted.method != Method.NONE:
                answer["note"] = (
                    f"{wanted.method.label} {wanted.method.does}: no preview, its effect shows after a push."
                )
        if wanted.held is not None:
            answer["note"] = await _hold(client, run, wanted, newest, diagnosis.early_level)
    except ApiError as error:
        # No step so far, or one without what-if sums.
        return answer | {"note": str(error)}
    dead = dead_before_push(wanted, newest, found if wanted.held is None else None)
    if dead and wanted.method != Method.NONE and card.takes_controls(run):
        answer["note"] = html.Span(["Can't act if pushed: ", " ".join(dead)], className="warning")
    return answer


def _newer(control: RunControl, base: Mapping[str, Any]) -> Component | None:
    """Shown while the form holds changes of an older version."""
    if control.version <= base["version"]:
        return None
    by = f" by {control.author}" if control.author else ""
    return chip(f"v{control.version}{by} is newer", "watch", symbol="alert")


def status_chip(control: RunControl, changes: int) -> Component:
    """What the head of the card shows of a form that no newer version overtook."""
    if changes:
        return chip(f"{changes} change{'' if changes == 1 else 's'}, not pushed", "iris")
    if not control.state.is_final:
        word = "pending" if control.state == ControlState.PENDING else "delivered"
        return chip(f"v{control.version} {word}", "watch", symbol="clock")
    active = control.active
    if active is None or active.version == 0:
        return chip("As started")
    since = "" if active.applied_step is None else f" since step {active.applied_step:,}"
    return chip(f"v{active.version} active{since}", "ok", symbol="check")


async def _thresholds(
    client: AsyncClient, view: View, run: RunDetail, diagnosis: Diagnosis, wanted: Control
) -> tuple[WhatIfAnswer, dict[str, Any]]:
    """The last steps under the form's thresholds, and what the plot and the browser need."""
    active = (run.control.active or run.control).control
    curves, found, scale = await asyncio.gather(
        client.ask(_what_if(run.id, wanted, curve=True)),
        client.ask(_what_if(run.id, wanted, curve=False)),
        read_scale(client, run.id, view),
    )
    now = what_if.unclipped(curves)
    if active.method.thresholds and active.hold is None:
        running = await client.ask(_what_if(run.id, active, curve=False))
        now = running.unit_predicted_change if curves.gain is None else running.predicted_change or 0.0
    elif (active.hold is not None or active.method != Method.NONE) and curves.gain is not None:
        # No thresholds tell what such a control does: the mean of what was predicted under it.
        first = max(0, (run.step or 0) - STEPS + 1)
        predicted = await read_metric(client, run.id, ENTROPY_PREDICTED_CHANGE, from_step=first)
        now = fmean([value for value in predicted.value if math.isfinite(value)] or [now])
    width = what_if.reach(wanted.mu_low, wanted.mu_high)
    preview = what_if.preview(curves, now, diagnosis.entropy, width) | {
        "figure": what_if.what_if_figure(curves, now, view.scheme, width),
        "slope": diagnosis.slope,
        "label": wanted.method.label,
        "changed": wanted.hold is None and bool(changed_names(wanted, active)),
        "exact": {
            "low": wanted.mu_low,
            "high": wanted.mu_high,
            "clipped": found.clip_fraction,
            "clippedStd": found.clip_fraction_std,
            "change": found.unit_predicted_change if found.gain is None else found.predicted_change,
        },
        "ahead": None
        if run.step is None or not card.takes_controls(run)
        else [scale.at(run.step), scale.at(run.step + NEXT_STEPS)],
    }
    return found, preview


def _what_if(run_id: str, control: Control, *, curve: bool) -> Call[WhatIfAnswer]:
    """The last steps under a control, or both curves of its method and scope, each with the other side off."""
    return calls.what_if(
        run_id,
        method=str(control.method),
        scope=str(control.scope),
        steps=STEPS,
        curve=curve,
        mu_low=None if curve else control.mu_low,
        mu_high=None if curve else control.mu_high,
        max_fraction=None if curve else cap_of(control),
        denominator="keep" if curve else str(control.value("denominator")),
    )


async def _hold(
    client: AsyncClient, run: RunDetail, wanted: Control, newest: Mapping[str, float], early_level: float | None
) -> str:
    """What the probe would decide next, in one sentence."""
    entropy = newest.get(ENTROPY_MEAN)
    if entropy is None:
        return "The entropy of the newest step is not known yet."
    found, whole = await asyncio.gather(
        client.ask(calls.what_if(run.id, method=str(clipping_method(wanted)), curve=False, sums=True)),
        client.ask(calls.series(run.id, ENTROPY_MEAN, points=200)),
    )
    columns = whole.series.get(ENTROPY_MEAN, EMPTY)
    highest = max((value for value in columns.max or columns.value if math.isfinite(value)), default=math.inf)
    measured = measured_step(newest, entropy, found, early_level, highest)
    return hold_in_words(wanted, measured, expected_action(wanted, measured, held=HOLD_GAIN in newest))


def _register_push(app: Dash, api: Api) -> None:
    @app.callback(
        inputs={
            "_asked": [
                Input(card.PUSH, "n_clicks"),
                Input(card.PUSH_MINE, "n_clicks"),
                Input(card.REVERT, "data"),
            ],
            "base": State(card.BASE, "data"),
            "newest": State(NEWEST, "data"),
            "reason": State(card.REASON, "value"),
            "stored": State(views.STORE, "data"),
            "form": FORM,
        },
        running=[(Output(card.PUSH, "loading"), True, False)],
        prevent_initial_call=True,
    )
    async def push(
        _asked: list[Any],
        base: dict[str, Any] | None,
        newest: dict[str, Any],
        reason: str | None,
        stored: dict[str, Any],
        form: dict[str, Any],
    ) -> None:
        run_id, asked = View.of(stored).run_id or "", ctx.triggered[0]["value"]
        if base is None or not asked:
            return
        try:
            async with api.open() as client:
                if ctx.triggered_id == card.REVERT:
                    wanted, base = await _earlier(client, run_id, int(asked["version"])), newest
                else:
                    wanted = card.control_of(fields_from(form), reason or "")
                over = base if ctx.triggered_id == card.PUSH else newest
                await _push(client, run_id, wanted, base, over)
        except (ApiError, ConfigurationError) as error:
            _say(str(error), "outcome failed")


async def _earlier(client: AsyncClient, run_id: str, version: int) -> Control:
    """The control of an earlier version, with this as its reason."""
    history = await client.newest(calls.control_history(run_id), HISTORY)
    old = next((item for item in history if item.version == version), None)
    if old is None:
        raise ConfigurationError(f"Version {version} is not among the last {HISTORY}.")
    return Control.from_document(old.control.to_document() | {"reason": f"revert to v{version}"})


async def _push(
    client: AsyncClient, run_id: str, wanted: Control, base: Mapping[str, Any], over: Mapping[str, Any]
) -> None:
    """Push a control made from `base`, over the version that its author has seen."""
    try:
        pushed = await client.ask(calls.set_control(run_id, wanted, if_version=over["version"]))
    except ControlConflict:
        theirs = await client.ask(calls.control(run_id))
        words = conflict_words(theirs, wanted, Control.from_document(base["document"]))
        _say("Not pushed: the control changed meanwhile.", "outcome failed", conflict=words)
        return
    _say(f"Pushed as v{pushed.version}: {name_of(pushed.control)}.", "outcome done")
    set_props(card.FILL, {"data": {"document": known(pushed)["document"], "base": known(pushed)}})


def _say(words: str, look: str, *, conflict: str = "") -> None:
    """What became of a push, and both documents of a conflict."""
    set_props(card.OUTCOME, {"children": words, "className": look})
    set_props(card.CONFLICT_WORDS, {"children": conflict})
    set_props(card.CONFLICT, {"className": "conflict" if conflict else "conflict gone"})
