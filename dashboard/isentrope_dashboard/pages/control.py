"""The control card of a run's overview: the form with its what-if, pushing, conflicts, and the
newest control.

The form is no value of the part: what is typed stays when a step arrives. The browser keeps its
fields in one store (FIELDS). It is filled by one callback (`fill`), from the document in the store
FILL or from the defaults of a chosen method. The browser sends the form with each question about
the page, so that what would become of its control is answered with the charts, of the same step
(`form_values`). `push` sets FILL with `set_props`: as an output it would wait for `fill`. What
follows a handle without the server is in `assets/control.js`.

A push is a callback and no request of the browser's own: the document is made from the fields in
one place, in Python. Dash reports no failed request, so the browser waits a few seconds for the
answer and then says that none came."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from dash import (
    ALL,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    dcc,
    html,
    no_update,
    set_props,
)
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient, ControlConflict
from isentrope_dashboard import formatting
from isentrope_dashboard import view as views
from isentrope_dashboard.components import control_card as card
from isentrope_dashboard.components.basics import card as plain_card
from isentrope_dashboard.components.basics import chip
from isentrope_dashboard.components.control_card import Fields
from isentrope_dashboard.components.control_effects import LATEST, latest_control, name_of
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.chart import Scale
from isentrope_dashboard.figures.entropy import value_at
from isentrope_dashboard.figures.panel import Forecast
from isentrope_dashboard.formatting import (
    MISSING,
    changes,
    number,
    percent,
)
from isentrope_dashboard.live import Api, Part, Values
from isentrope_dashboard.theme import Scheme
from isentrope_dashboard.view import View
from isentrope_wire.answers import Alert, Me, RunDetail, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    HOLD_ENDED,
    ControlVersion,
    EntropyForecast,
    RunControl,
)
from isentrope_wire.control_answers import State as ControlState
from isentrope_wire.diagnosis.effect import PROMISED_STEPS
from isentrope_wire.diagnosis.health import Preview
from isentrope_wire.diagnosis.outlook import FIRST_CONTROL, Outlook, offered_control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import SUGGESTED, Method, method_named

HISTORY: Final = 20
CLOSED, NEWEST = "control-closed", "control-newest"
PARAMETERS = {"parameter": ALL}
FIELDS = {
    "method": (card.METHOD, "value"),
    "mu_low": (card.MU_LOW, "value"),
    "mu_high": (card.MU_HIGH, "value"),
    "scope": (card.SCOPE, "value"),
    "hold": (card.HOLD, "checked"),
    "hold_target": (card.HOLD_TARGET, "value"),
}
"""Field of `Fields` -> component and property; beside them the parameters."""
KEPT = {
    "view": State(views.STORE, "data"),
    "base": State(card.BASE, "data"),
    "newest": State(NEWEST, "data"),
    "form": State(card.FIELDS, "data"),
}
"""What all callbacks are given: the address; the version that the form began with, and the newest;
the fields."""


def known(version: ControlVersion) -> dict[str, Any]:
    """What the form is filled from, as a store holds it."""
    return {
        "version": version.version,
        "state": str(version.state),
        "document": version.control.to_document(),
    }


def reference(control: RunControl) -> ControlVersion:
    """The version that a form begins with: the newest while it is open, else the active one."""
    if control.state.is_final and control.active is not None:
        return control.active
    return control


def first_control(run: RunDetail, *, may_push: bool) -> Control:
    """What the form begins with. Where nothing can be pushed, thresholds that the what-if can
    show: of a hold, those beside it."""
    control = reference(run.control).control
    if may_push:
        return control
    if control.method.thresholds and (control.mu_low, control.mu_high) != (None, None):
        return Control.from_document(control.to_document() | {"hold": None})
    return FIRST_CONTROL


def _read_current(run: RunDetail, *, may_push: bool = True) -> dict[str, Any]:
    document = first_control(run, may_push=may_push).to_document()
    return {
        "document": document,
        "base": {**known(run.control), "document": document, "may_push": may_push},
    }


def card_values(
    run: RunDetail,
    me: Me,
    history: Sequence[ControlVersion],
    alerts: Sequence[Alert],
    acts: str = "",
) -> Values:
    """Why there is no form, if so, the newest control and the alerts. `acts`: by what a hold acts
    now."""
    closed = card.why_closed(run, me)
    last = reference(run.control).control
    words = closed
    if run.status.is_over:
        words += (
            f" It ended {'without a control' if last == Control() else f'with {name_of(last)}'}."
        )
    if closed and card.has_form(run, closed):
        does = "have done to its last steps"
        if card.takes_controls(run):
            does = "do"
        words += f" Shown is what thresholds would {does}."
    output = run.error.strip().splitlines()[-card.LAST_LINES :]
    return {
        CLOSED: [words, html.Pre("\n".join(output), className="last-output")] if output else words,
        NEWEST: known(run.control),
        LATEST: latest_control(history, is_over=run.status.is_over, may_push=not closed, acts=acts),
        card.ALERTS: card.alert_rows(alerts, may_acknowledge=card.may_control(me)),
    }


async def layout(client: AsyncClient, view: View) -> Component:
    """The card with the run's control in its form, and the newest control beneath it."""
    run, me = await asyncio.gather(client.ask(calls.run(view.run_id or "")), client.ask(calls.me()))
    closed = card.why_closed(run, me)
    first, base = (
        first_control(run, may_push=not closed),
        _read_current(run, may_push=not closed)["base"],
    )
    form = []
    if card.has_form(run, closed):
        form = [card.form(run, card.fields_of(first), base, only_what_if=bool(closed))]
    audit = html.A("All in Audit", href="?tab=audit", className="small", **{"data-tab": "audit"})
    return html.Div(
        [
            dcc.Store(id=NEWEST),
            card.control_card(html.Div(id=CLOSED, className="dim closed"), *form),
            plain_card(
                html.Div(id=LATEST),
                title="Latest control",
                beside=audit,
                name="latest",
                id="latest-control",
            ),
            plain_card(html.Div(id=card.ALERTS), title="Alerts", name="latest"),
        ],
        className="control-column",
    )


PART = Part(name="control", layout=layout)
"""Its values are read with the charts beside it, so that all of them are of one step."""
PROPERTIES = {NEWEST: "data", card.FILL: "data", card.PREVIEW: "call", card.PUSH: "disabled"}
"""Those of its values that are no components."""


def register(app: Dash, api: Api) -> None:
    """Fill and judge the form, push it, and settle conflicts."""
    app.clientside_callback(
        ClientsideFunction("control", "draw"),
        Output(card.FIELDS, "data"),
        Output(card.METHOD, "data"),
        *(Input(component, prop) for component, prop in FIELDS.values()),
        Input(PARAMETERS, "value"),
        Input(card.BASE, "data"),
        Input(NEWEST, "data"),
        State(card.METHOD, "data"),
    )
    _register_fill(app)
    _register_push(app, api)


_FILLED = {
    **{name: Output(component, prop) for name, (component, prop) in FIELDS.items()},
    "parameters": Output(card.MORE, "children"),
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
            "chosen": Input(card.METHOD, "value"),
            "_take": Input(card.TAKE_THEIRS, "n_clicks"),
            "kept": KEPT,
        },
        prevent_initial_call=True,
    )
    async def fill(
        filled: dict[str, Any] | None, chosen: str, _take: int | None, kept: dict[str, Any]
    ) -> dict[str, Any]:
        base, theirs, reason = kept["base"], kept["newest"], no_update
        if ctx.triggered_id == card.METHOD:
            fields = card.chosen(chosen, Fields(**kept["form"]))
        else:
            if ctx.triggered_id == card.TAKE_THEIRS:
                filled = {"document": theirs["document"], "base": theirs}
                set_props(card.CONFLICT, {"className": "conflict gone"})
            if not filled:
                return dict.fromkeys(_FILLED, no_update)
            fields = card.fields_of(Control.from_document(filled["document"]))
            base, reason = filled.get("base") or base, filled.get("reason", "")
        method = method_named(fields.method)
        return asdict(fields) | {
            "parameters": card.parameter_fields(fields),
            "more_words": card.more_words(method),
            "look": card.form_class(method),
            "base": base,
            "reason": reason,
        }


def wanted_of(view: View, run: RunDetail) -> Control | ConfigurationError | None:
    """The control that the form means at the run's next step, or why it means none; None where
    there is no form."""
    if view.form is None:
        return None
    try:
        return card.control_of(Fields(**view.form["fields"]), next_step=(run.step or 0) + 1)
    except ConfigurationError as error:
        return error
    except (TypeError, KeyError):
        raise views.refuse_page() from None


def is_offer(run: RunDetail, wanted: Control | ConfigurationError | None) -> bool:
    """Whether nothing acts and nothing is chosen: then the form shows what thresholds would do."""
    if not isinstance(wanted, Control) or run.step is None or SUGGESTED not in run.methods:
        return False
    does_nothing = wanted.method == Method.NONE and wanted.hold is None
    return does_nothing and not changes(wanted, reference(run.control).control)


def form_values(
    view: View,
    run: RunDetail,
    wanted: Control | ConfigurationError | None,
    outlook: Outlook,
    scale: Scale,
) -> Values:
    """What the form shows: the answer about its control, whether that can be pushed, and after
    another push, where nothing was typed, the new version."""
    if view.form is None or wanted is None:
        return {}
    base = view.form.get("base")
    if base is None or _is_overtaken(base, run, wanted):
        return {card.FILL: _read_current(run)}
    newer = None
    if _may_push(base):
        newer = _newer(run.control, base)
    entropy = _short(outlook.diagnosis.entropy)
    if isinstance(wanted, ConfigurationError) or outlook.preview is None:
        return {
            **dict.fromkeys((card.CLIPPED, card.CHANGE, card.ENTROPY), MISSING),
            card.CLIPPED_SPREAD: "",
            card.CHIP: newer or chip("Not complete", "watch"),
            card.NOTE: str(wanted),
            card.PUSH: True,
            card.PREVIEW: {"entropy": entropy},
        }
    # The pushed version may have been refused since: then what counts is the active one.
    before = reference(run.control).control
    if newer or not _may_push(base):
        before = Control.from_document(base["document"])
    changed, takes = bool(changes(wanted, before)), card.takes_controls(run) and _may_push(base)
    active = (run.control.active or run.control).control
    is_asked = takes or (changed and card.takes_controls(run))
    is_new = is_asked and run.status == Status.RUNNING and bool(changes(wanted, active))
    status: Any = ""
    if takes:
        status = newer or status_chip(run.control, changed)
    score = outlook.diagnosis.forecast_score
    drawn = wanted
    if is_offer(run, wanted):
        drawn = offered_control(outlook.diagnosis)
    shown = shown_preview(outlook.preview, drawn, view.scheme, scale, run.step if is_new else None)
    offer = ""
    if drawn is not wanted:
        shown[card.PREVIEW]["offered"] = fill_of(drawn)
        name, state = formatting.method(drawn.method), "Not active"
        if drawn.reason:
            state = "Suggested, not active"
        offer = f"{state}: what {name} would do. Drag µ to try it."
    if score is not None and not score.is_better:
        shown[card.ENTROPY] = band_in_words(outlook.preview.forecast)
    return {
        **shown,
        card.OFFER: offer,
        card.CHIP: status,
        card.NOTE: _note(outlook.preview, wanted, changed=changed, takes=takes),
        card.PUSH: not changed or not takes,
    }


def _is_overtaken(
    base: Mapping[str, Any], run: RunDetail, wanted: Control | ConfigurationError
) -> bool:
    """Whether another version was pushed over the one that the form shows as it is."""
    if not _may_push(base) or base["version"] >= run.control.version:
        return False
    document = base["document"]
    return isinstance(wanted, Control) and not changes(wanted, Control.from_document(document))


def _note(preview: Preview, wanted: Control, *, changed: bool, takes: bool) -> Any:
    if wanted.hold is None and wanted.method == Method.NONE:
        return ""
    if preview.warnings and takes:
        words = ["If pushed: " if changed else "", " ".join(preview.warnings)]
        return html.Span(words, className="warning")
    # Beside thresholds the card has the numbers.
    is_in_numbers = preview.pace is not None and wanted.method.thresholds and wanted.hold is None
    if is_in_numbers:
        return ""
    return preview.message


def fill_of(control: Control) -> dict[str, Any]:
    """What fills the form with a control that the page offers."""
    return {"document": control.to_document(), "reason": control.reason}


def _may_push(base: Mapping[str, Any]) -> bool:
    """Whether the form is there to push, and not only to see what thresholds would do."""
    return bool(base.get("may_push", True))


def shown_preview(
    preview: Preview, wanted: Control, scheme: Scheme, scale: Scale, step: int | None
) -> dict[str, Any]:
    """What the browser shows of the server's answer: numbers in words, the plot, and, from the
    newest step on, the lines of the next ones; `step` is None where they are not shown."""
    line = Forecast.read(preview, wanted)
    course, pace, label = line.course, line.pace, line.label
    ahead = None if course is None else course.entropy[-1]
    spread = ""
    if preview.clip_fraction_std is not None:
        spread = f" ± {percent(preview.clip_fraction_std)}"
    drawn: dict[str, Any] = {"entropy": _short(preview.entropy)}
    if preview.curves is not None and preview.unchanged is not None:
        width = what_if.reach(wanted.mu_low, wanted.mu_high)
        drawn["figure"] = what_if.what_if_figure(
            preview.curves, preview.unchanged.value, scheme, width, preview.entropy
        )
    if step is not None and course is not None:
        ends = [scale.position(step), scale.position(step + PROMISED_STEPS)]
        drawn["lines"] = {
            "chart-entropy": _line(
                [scale.position(at) for at in course.step],
                course.entropy,
                label,
                value_at(ahead, course.step[-1]),
            ),
            "chart-change": _line(
                ends, [pace, pace], label, formatting.pace(pace, preview.entropy)
            ),
            "chart-clip": _line(
                ends, [preview.clip_fraction] * 2, label, percent(preview.clip_fraction)
            ),
        }
    return {
        card.CLIPPED: percent(preview.clip_fraction),
        card.CLIPPED_SPREAD: spread,
        card.CHANGE: formatting.pace(pace, preview.entropy),
        card.ENTROPY: number(ahead),
        card.PREVIEW: drawn,
    }


def band_in_words(course: EntropyForecast | None) -> str:
    """Where the entropy is expected at the end of a forecast whose middle is no better than that
    nothing changes: of this the charts show the band alone."""
    if course is None or not course.low or not course.high:
        return MISSING
    return f"{number(course.low[-1], 2)} to {number(course.high[-1], 2)}"


def _short(entropy: float | None) -> str:
    """As it is typed into the field of a hold's target."""
    if entropy is None or not math.isfinite(entropy):
        return ""
    return f"{entropy:.3g}"


def _line(
    x: Sequence[float], y: Sequence[float | None], label: str, words: str
) -> dict[str, Any] | None:
    if None in y:
        return None
    return {"x": list(x), "y": list(y), "label": label, "words": words}


def _newer(control: RunControl, base: Mapping[str, Any]) -> Component | None:
    """Shown while the form holds changes of an older version."""
    if control.version <= base["version"]:
        return None
    by = f" by {control.author}" if control.author else ""
    return chip(f"v{control.version}{by} is newer", "watch", symbol="alert")


def status_chip(control: RunControl, changed: bool) -> Component:
    """What the head of the card shows of a form that no newer version overtook."""
    if changed:
        return chip("Not pushed", "iris")
    if not control.state.is_final:
        word = "delivered"
        if control.state == ControlState.PENDING:
            word = "pending"
        return chip(f"v{control.version} {word}", "watch", symbol="clock")
    active = control.active
    if active is None or active.version == 0:
        return chip("As started")
    if active.hold and active.verdict and active.verdict.message.startswith(HOLD_ENDED):
        return chip(f"v{active.version}: hold ended", "watch", symbol="alert")
    if active.applied_step is None:
        since = ""
    else:
        since = f" since step {active.applied_step:,}"
    return chip(f"v{active.version} active{since}", "ok", symbol="check")


def _register_push(app: Dash, api: Api) -> None:
    @app.callback(
        inputs={
            "_asked": [
                Input(card.PUSH, "n_clicks"),
                Input(card.PUSH_MINE, "n_clicks"),
                Input(card.REVERT, "data"),
            ],
            "reason": State(card.REASON, "value"),
            "kept": KEPT,
        },
        running=[(Output(card.PUSH, "loading"), True, False)],
        prevent_initial_call=True,
    )
    async def push(_asked: list[Any], reason: str | None, kept: dict[str, Any]) -> None:
        run_id, asked = View.read(kept["view"]).run_id or "", ctx.triggered[0]["value"]
        base, newest = kept["base"], kept["newest"]
        if base is None or not asked:
            return
        try:
            async with api.open() as client:
                if ctx.triggered_id == card.REVERT:
                    wanted = await _earlier(client, run_id, int(asked["version"]))
                else:
                    run = await client.ask(calls.run(run_id))
                    wanted = card.control_of(
                        Fields(**kept["form"]), reason or "", next_step=(run.step or 0) + 1
                    )
                over = newest
                if ctx.triggered_id == card.PUSH:
                    over = base
                await _push(client, run_id, wanted, over)
        except (ApiError, ConfigurationError) as error:
            _say(str(error), "outcome failed")


async def _earlier(client: AsyncClient, run_id: str, version: int) -> Control:
    history = await client.newest(calls.control_history(run_id), HISTORY)
    old = next((item for item in history if item.version == version), None)
    if old is None:
        raise ConfigurationError(f"Version {version} is not among the last {HISTORY}.")
    return Control.from_document(old.control.to_document() | {"reason": f"revert to v{version}"})


async def _push(client: AsyncClient, run_id: str, wanted: Control, over: Mapping[str, Any]) -> None:
    """Push a control over the version that its author has seen."""
    try:
        pushed = await client.ask(calls.set_control(run_id, wanted, if_version=over["version"]))
    except ControlConflict:
        theirs = await client.ask(calls.control(run_id))
        rows = conflict_rows(theirs, wanted)
        _say("Not pushed: the control changed meanwhile.", "outcome failed", conflict=rows)
        return
    _say(f"Pushed as v{pushed.version}: {name_of(pushed.control)}.", "outcome done")
    set_props(card.FILL, {"data": {"document": known(pushed)["document"], "base": known(pushed)}})


def conflict_rows(theirs: ControlVersion, mine: Control) -> list[Component]:
    """`v4 by bob: Clip_B · µ 2.00` over `yours: Clip_V · µ 3.00`."""
    by = f" by {theirs.author}" if theirs.author else ""
    rows = ((f"v{theirs.version}{by}: ", theirs.control), ("yours: ", mine))
    return [html.Div([html.B(who), name_of(control)]) for who, control in rows]


def _say(words: str, look: str, *, conflict: Sequence[Component] = ()) -> None:
    set_props(card.OUTCOME, {"children": words, "className": look})
    set_props(card.CONFLICT_WORDS, {"children": list(conflict)})
    set_props(card.CONFLICT, {"className": "conflict" if conflict else "conflict gone"})
