"""The control card of a run's overview: the form with its what-if, pushing, conflicts, and the newest control.

The form is no value of the part: what is typed stays when a step arrives. It is filled by one callback (`fill`), from a
document in a store or from the defaults of a chosen method, and judged by another one (`judge`) when nothing was changed for a
moment, or a step arrived. What follows a handle without the server is in `assets/control.js`.

A push is a callback and no request of the browser's own: the document is made from the fields in one place, in Python. That
its request fails, Dash reports to nobody; so the browser waits a few seconds for the answer and then says so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.calls import Call
from isentrope.client.connection import ApiError, AsyncClient, ControlConflict
from isentrope_dashboard import view as views
from isentrope_dashboard.access import Api
from isentrope_dashboard.components import control_card as card
from isentrope_dashboard.components.basics import card as plain_card
from isentrope_dashboard.components.basics import chip
from isentrope_dashboard.components.control_card import Fields
from isentrope_dashboard.components.control_preview import (
    cap_of,
    dead_before_push,
    expected_action,
    hold_in_words,
    measured_step,
)
from isentrope_dashboard.components.latest_control import LATEST, latest_control, name_of
from isentrope_dashboard.components.run_rows import imported_from
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.figures.overview import NEXT_STEPS
from isentrope_dashboard.formatting import describe
from isentrope_dashboard.live import NEWS, Part, Values
from isentrope_dashboard.pages.overview import read_scale
from isentrope_dashboard.view import View
from isentrope_wire.answers import RunDetail, Status
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import ControlVersion, RunControl, WhatIfAnswer
from isentrope_wire.control_answers import State as ControlState
from isentrope_wire.diagnosis.course import WINDOW, slope_of
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.hold_decision import clipping_method
from isentrope_wire.methods import Method, method_named
from isentrope_wire.metrics import ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE, HOLD_GAIN, EarlyLevel

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


def known(version: ControlVersion) -> dict[str, Any]:
    """What the form is filled from, as a store holds it."""
    return {"version": version.version, "author": version.author, "document": version.control.to_document()}


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
        NEWEST: {**known(run.control), "state": str(run.control.state), "reference": known(reference(run.control))},
        LATEST: latest_control(history, is_over=run.status.is_over, may_push=not closed),
    }


def _closed(run: RunDetail, closed: str) -> Any:
    """Why nothing can be pushed, and what is shown instead."""
    if run.status == Status.IMPORTED:
        source = imported_from(run)
        return [
            f"Read from {source}: " if source else "",
            "shown is what the history has. No trainer is there to apply a control. ",
            html.A("Attach the probe to the next run", href="/start"),
        ]
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
    return Control(method=Method.CLIP_V, mu_low=card.FIRST_MU, mu_high=card.FIRST_MU)


async def layout(client: AsyncClient, view: View) -> Component:
    """The card with the run's control in its form, and the newest control beneath it; of an imported run, only where it
    came from."""
    run, me = await asyncio.gather(client.ask(calls.run(view.run_id or "")), client.ask(calls.me()))
    why = html.Div(id=CLOSED, className="dim closed")
    if run.status == Status.IMPORTED:
        return html.Div(plain_card(why, title="Imported", name="control"), className="control-column")
    control, closed = first_control(run), card.why_closed(run, me)
    base = {**known(run.control), "document": control.to_document()}
    form = (
        [card.form(run, card.fields_of(control), base, only_what_if=bool(closed))] if card.has_form(run, closed) else []
    )
    audit = html.A("All in Audit", href="?tab=audit", className="small", **{"data-tab": "audit"})
    newest = plain_card(html.Div(id=LATEST), title="Latest control", beside=audit, name="latest", id="latest-control")
    body = card.control_card(*form, why)
    return html.Div([dcc.Store(id=NEWEST), body, newest], className="control-column")


PART = Part(name="control", read=read, layout=layout, properties={NEWEST: "data"}, is_slow=True)


def fields_from(values: Mapping[str, Any], parameters: Sequence[Any], ids: Sequence[Mapping[str, str]]) -> Fields:
    """The form's fields as callbacks receive them."""
    named = {one["parameter"]: value for one, value in zip(ids, parameters, strict=True)}
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
    _register_fill(app, api)
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
    # By hand, for `fill` sets what `judge` is asked about: Dash blocks callbacks that wait for each other.
    app.clientside_callback(
        ClientsideFunction("control", "follow"), Output(card.FOLLOW, "id"), Input(card.FOLLOW, "data")
    )
    app.clientside_callback(
        ClientsideFunction("control", "pushing"),
        Output(card.PUSH, "loading"),
        Input(card.PUSH, "n_clicks"),
        Input(card.PUSH_MINE, "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("control", "answered"),
        Output(card.PUSH, "loading", allow_duplicate=True),
        Input(card.ANSWERED, "data"),
        prevent_initial_call=True,
    )


_FILLED = {
    **{name: Output(component, prop) for name, (component, prop) in _FIELDS.items()},
    "more": Output(card.MORE, "children"),
    "more_words": Output(card.MORE_WORDS, "children"),
    "look": Output(card.FORM, "className"),
    "base": Output(card.BASE, "data"),
    "reason": Output(card.REASON, "value", allow_duplicate=True),
}


def _register_fill(app: Dash, api: Api) -> None:
    @app.callback(
        output=_FILLED,
        inputs={
            "filled": Input(card.FILL, "data"),
            "_method": Input(card.METHOD, "value"),
            "base": State(card.BASE, "data"),
            "values": {name: State(component, prop) for name, (component, prop) in _FIELDS.items()},
            "parameters": State(PARAMETERS, "value"),
            "parameter_ids": State(PARAMETERS, "id"),
        },
        prevent_initial_call=True,
    )
    async def fill(
        filled: dict[str, Any] | None,
        _method: str,
        base: dict[str, Any] | None,
        values: dict[str, Any],
        parameters: list[Any],
        parameter_ids: list[dict[str, str]],
    ) -> dict[str, Any]:
        before = fields_from(values, parameters, parameter_ids)
        if ctx.triggered_id == card.FILL:
            if not filled:
                return dict.fromkeys(_FILLED, no_update)
            control = Control.from_document(filled["document"])
            fields = card.fields_of(control)
            base = filled.get("base") or base
            reason: Any = filled.get("reason", "")
        else:
            fields, reason = card.chosen(before.method, before), no_update
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

    @app.callback(
        Output(card.FILL, "data", allow_duplicate=True),
        Output(card.CONFLICT, "className", allow_duplicate=True),
        Input(card.TAKE_THEIRS, "n_clicks"),
        State(NEWEST, "data"),
        prevent_initial_call=True,
    )
    async def take_theirs(clicks: int | None, newest: dict[str, Any] | None) -> tuple[Any, Any]:
        if not clicks or not newest:
            return no_update, no_update
        return {"document": newest["document"], "base": newest}, "conflict gone"


_JUDGED = {
    "preview": Output(card.PREVIEW, "data"),
    "status": Output(card.STATUS, "children"),
    "note": Output(card.NOTE, "children"),
    "blocked": Output(card.PUSH, "disabled"),
    "follow": Output(card.FOLLOW, "data"),
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
            "values": {name: State(component, prop) for name, (component, prop) in _FIELDS.items()},
            "parameters": State(PARAMETERS, "value"),
            "parameter_ids": State(PARAMETERS, "id"),
        },
        prevent_initial_call=True,
    )
    async def judge(
        asked: str | None,
        _news: Any,
        _newest: Any,
        stored: dict[str, Any],
        base: dict[str, Any] | None,
        values: dict[str, Any],
        parameters: list[Any],
        parameter_ids: list[dict[str, str]],
    ) -> dict[str, Any]:
        nothing = dict.fromkeys(_JUDGED, no_update)
        if not asked:  # the form was mounted a moment ago, and the browser will ask
            return nothing
        view = View.of(stored)
        fields = fields_from(values, parameters, parameter_ids)
        try:
            async with api.open() as client:
                run = await client.ask(calls.run(view.run_id or ""))
                course = await _course(client, run)
                if base is None or (base["version"] < run.control.version and not _touched(fields, base)):
                    return nothing | {"follow": _as_it_is(run)}
                return nothing | await _judged(client, view, run, course, fields, base)
        except ApiError as error:
            return nothing | {"note": str(error)}


def _as_it_is(run: RunDetail) -> dict[str, Any]:
    """Fill the form with the run's control."""
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
    course: _Course,
    fields: Fields,
    base: Mapping[str, Any],
) -> dict[str, Any]:
    newer = _newer(run.control, base)
    # Without curves: all that the browser needs for methods without thresholds.
    preview: dict[str, Any] = {"entropy": course.entropy, "sides": None}
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
            found, answer["preview"] = await _thresholds(client, view, run, course, wanted)
        else:
            found = None
            if wanted.hold is None and wanted.method != Method.NONE:
                answer["note"] = (
                    f"{wanted.method.label} {wanted.method.does}: no preview, its effect shows after a push."
                )
        if wanted.held is not None:
            answer["note"] = await _hold(client, run, wanted, newest)
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


@dataclass(frozen=True, slots=True)
class _Course:
    """The last steps of a run; None: not measured."""

    entropy: float | None = None
    """Mean of the last STEPS, in nats."""
    slope: float | None = None
    """That of the diagnosis, in nats a step."""
    predicted: float | None = None
    """Mean of the predicted changes, in nats a step."""


async def _course(client: AsyncClient, run: RunDetail) -> _Course:
    if run.step is None:
        return _Course()
    names = (ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE)
    answer = await client.ask(calls.series(run.id, names, from_step=max(0, run.step - WINDOW + 1)))
    entropies, predicted = (
        {step: value for step, value in zip(columns.step, columns.value, strict=True) if math.isfinite(value)}
        for columns in (answer.series.get(name, EMPTY) for name in names)
    )
    slope = slope_of(list(entropies), list(entropies.values()))
    means = [fmean(list(values.values())[-STEPS:]) if values else None for values in (entropies, predicted)]
    return _Course(entropy=means[0], slope=None if slope is None else slope.value, predicted=means[1])


async def _thresholds(
    client: AsyncClient, view: View, run: RunDetail, course: _Course, wanted: Control
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
    elif (
        (active.hold is not None or active.method != "none")
        and curves.gain is not None
        and course.predicted is not None
    ):
        now = course.predicted  # no thresholds tell what such a control does
    width = what_if.reach(wanted.mu_low, wanted.mu_high)
    preview = what_if.preview(curves, now, course.entropy, width) | {
        "figure": what_if.what_if_figure(curves, now, view.scheme, width),
        "slope": course.slope,
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


async def _hold(client: AsyncClient, run: RunDetail, wanted: Control, newest: Mapping[str, float]) -> str:
    """What the probe would decide next, in one sentence."""
    entropy = newest.get(ENTROPY_MEAN)
    if entropy is None:
        return "The entropy of the newest step is not known yet."
    found, whole = await asyncio.gather(
        client.ask(calls.what_if(run.id, method=str(clipping_method(wanted)), curve=False, sums=True)),
        client.ask(calls.series(run.id, ENTROPY_MEAN, points=200)),
    )
    columns = whole.series.get(ENTROPY_MEAN, EMPTY)
    first = await client.ask(calls.series(run.id, ENTROPY_MEAN, to_step=(columns.step or [0])[0] + 20))
    early = EarlyLevel()
    for value in first.series.get(ENTROPY_MEAN, EMPTY).value:
        if math.isfinite(value):
            early.add(value)
    highest = max((value for value in columns.max or columns.value if math.isfinite(value)), default=math.inf)
    measured = measured_step(newest, entropy, found, early.level, highest)
    return hold_in_words(wanted, measured, expected_action(wanted, measured, held=HOLD_GAIN in newest))


def _pushed(*, also: bool = False) -> dict[str, Output]:
    """What a push changes; `also`: for a second callback that does."""
    shared = {
        "base": Output(card.BASE, "data", allow_duplicate=True),
        "fill": Output(card.FILL, "data", allow_duplicate=True),
    }
    own = {
        "answered": (card.ANSWERED, "data"),
        "outcome": (card.OUTCOME, "children"),
        "look": (card.OUTCOME, "className"),
        "conflict": (card.CONFLICT_WORDS, "children"),
        "conflict_look": (card.CONFLICT, "className"),
        "reason": (card.REASON, "value"),
    }
    return shared | {name: Output(*place, allow_duplicate=also) for name, place in own.items()}


_UNCHANGED = dict.fromkeys(_pushed(), no_update)


def _register_push(app: Dash, api: Api) -> None:
    @app.callback(
        output=_pushed(),
        inputs={
            "_clicks": [Input(card.PUSH, "n_clicks"), Input(card.PUSH_MINE, "n_clicks")],
            "base": State(card.BASE, "data"),
            "conflicting": State(NEWEST, "data"),
            "reason": State(card.REASON, "value"),
            "stored": State(views.STORE, "data"),
            "values": {name: State(component, prop) for name, (component, prop) in _FIELDS.items()},
            "parameters": State(PARAMETERS, "value"),
            "parameter_ids": State(PARAMETERS, "id"),
        },
        prevent_initial_call=True,
    )
    async def push(
        _clicks: list[int | None],
        base: dict[str, Any] | None,
        conflicting: dict[str, Any],
        reason: str | None,
        stored: dict[str, Any],
        values: dict[str, Any],
        parameters: list[Any],
        parameter_ids: list[dict[str, str]],
    ) -> dict[str, Any]:
        if base is None or not ctx.triggered[0]["value"]:
            return _UNCHANGED
        over = ctx.triggered_id == card.PUSH_MINE
        try:
            wanted = card.control_of(fields_from(values, parameters, parameter_ids), reason or "")
            async with api.open() as client:
                return await _push(client, View.of(stored).run_id or "", wanted, base, conflicting if over else base)
        except (ApiError, ConfigurationError) as error:
            return _refused(str(error))

    @app.callback(
        output=_pushed(also=True),
        inputs={
            "asked": Input(card.REVERT, "data"),
            "newest": State(NEWEST, "data"),
            "stored": State(views.STORE, "data"),
        },
        prevent_initial_call=True,
    )
    async def revert(asked: dict[str, Any] | None, newest: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
        if not asked:
            return _UNCHANGED
        version = int(asked["version"])
        run_id = View.of(stored).run_id or ""
        try:
            async with api.open() as client:
                history = await client.newest(calls.control_history(run_id), HISTORY)
                old = next((item for item in history if item.version == version), None)
                if old is None:
                    return _refused(f"Version {version} is not among the last {HISTORY}.")
                document = old.control.to_document() | {"reason": f"revert to v{version}"}
                wanted = Control.from_document(document)
                pushed = await _push(client, run_id, wanted, newest, newest)
                return pushed | {"fill": {"document": document, "base": pushed["base"]}}
        except (ApiError, ConfigurationError) as error:
            return _refused(str(error))


async def _push(
    client: AsyncClient, run_id: str, wanted: Control, base: Mapping[str, Any], over: Mapping[str, Any]
) -> dict[str, Any]:
    """Push a control made from `base`, over the version that its author has seen."""
    try:
        pushed = await client.ask(calls.set_control(run_id, wanted, if_version=over["version"]))
    except ControlConflict:
        theirs = await client.ask(calls.control(run_id))
        words = conflict_words(theirs, wanted, Control.from_document(base["document"]))
        return _refused("Not pushed: the control changed meanwhile.") | {
            "conflict": words,
            "conflict_look": "conflict",
        }
    return _UNCHANGED | {
        "answered": time.time(),
        "outcome": f"Pushed as v{pushed.version}: {name_of(pushed.control)}.",
        "look": "outcome done",
        "conflict_look": "conflict gone",
        "base": known(pushed),
        "reason": "",
    }


def _refused(message: str) -> dict[str, Any]:
    return _UNCHANGED | {
        "answered": time.time(),
        "outcome": message,
        "look": "outcome failed",
        "conflict_look": "conflict gone",
    }
