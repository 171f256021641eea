"""The control card's form: its fields, made from METHODS, and the control that they mean; and why
there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import (
    SIGMA,
    button,
    card,
    chip,
    icon,
    plot,
    row,
    spacer,
    text,
    unbroken,
)
from isentrope_dashboard.formatting import count
from isentrope_dashboard.formatting import parameter as written
from isentrope_wire.answers import Alert, Me, RunDetail, Status, TokenScope
from isentrope_wire.control import GUARDS, Control, HoldLever, HoldSide, Scope, begun_at
from isentrope_wire.diagnosis.outlook import FIRST_CONTROL
from isentrope_wire.methods import METHODS, SUGGESTED, Method, Parameter, Value, method_named
from isentrope_wire.reports import ALERT_KINDS, AlertLevel

METHOD, MU_LOW, MU_HIGH, SCOPE = (
    "control-method",
    "control-mu-low",
    "control-mu-high",
    "control-scope",
)
HOLD, HOLD_TARGET, REASON = "control-hold", "control-hold-target", "control-reason"
BASE, FILL, FIELDS = "control-base", "control-fill", "control-fields"
PREVIEW, REVERT = "control-preview", "control-revert"
LAST_LINES = 12
"""Of a failed run's error."""
OPEN = "open-control"
"""Once a control was pushed, the form is folded behind this button."""
FORM, MORE, MORE_WORDS = "control-form", "control-more", "control-more-words"
CHIP, NOTE, PUSH, OUTCOME, PLOT = (
    "control-status",
    "control-note",
    "control-push",
    "control-outcome",
    "control-what-if",
)
CONFLICT, CONFLICT_WORDS, TAKE_THEIRS, PUSH_MINE = (
    "control-conflict",
    "control-conflict-words",
    "take-theirs",
    "push-mine",
)
OFFER = "control-offer"
CLIPPED, CLIPPED_SPREAD, CHANGE, ENTROPY = (
    "control-clipped",
    "control-clipped-spread",
    "control-change",
    "control-entropy",
)

ALERTS, ALERTS_SHOWN = "control-alerts", 4
WHAT_IF_HEIGHT = 200

_HOLD_PREFIX = "hold."
HOLD_PARAMETERS = tuple(
    Parameter(name=_HOLD_PREFIX + name, default=default, sense=sense, **bounds)
    for name, default, sense, bounds in (
        (
            "side",
            "both",
            "only raise it, only lower it, or both",
            {"choices": tuple(map(str, HoldSide))},
        ),
        (
            "lever",
            "auto",
            "thresholds, with an entropy bonus where they don't suffice; or one of both",
            {"choices": tuple(map(str, HoldLever))},
        ),
        (
            "max_change_per_step",
            None,
            "largest correction of a step, in nats; else 5 % of the distance",
            {"minimum": 0.0, "minimum_excluded": True},
        ),
        ("mu_min", 0.0, "the lowest threshold allowed: how hard may be clipped", {"minimum": 0.0}),
        ("mu_max", 10.0, "the highest threshold allowed", {"minimum": 0.0}),
        (
            "reward_guard",
            "on",
            "end the hold when the reward begins to fall while it acts",
            {"choices": ("on", "off")},
        ),
    )
)
"""Fields of `Hold` beside its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The form's fields: numbers, or texts that may be half typed; empty where a knob is off."""

    method: str = str(Method.NONE)
    mu_low: object = ""
    mu_high: object = ""
    scope: str = str(Scope.ALL)
    hold: bool = False
    hold_target: object = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """By name; those of a hold begin with `hold.`."""


GUARD = Parameter(
    name="guard",
    default="alert",
    sense=(
        "what happens where the control does harm: an alert, or the control before it comes again"
    ),
    choices=GUARDS,
)


def can_hold(method: Method) -> bool:
    """Whether an entropy can be held with this method."""
    return method.thresholds or method == Method.NONE


def parameters_of(method: Method) -> dict[str, Parameter]:
    """The rare parameters: the method's own, and those of a hold where it can be held."""
    held = {}
    if can_hold(method):
        held = {one.name: one for one in HOLD_PARAMETERS}
    return {**method.parameters, GUARD.name: GUARD, **held}


def fields_of(control: Control) -> Fields:
    """The fields that mean this control."""
    given: dict[str, Value] = {GUARD.name: control.guard or GUARD.default, **control.parameters}
    held = control.held
    if held is not None:
        document = held.to_document() | {"reward_guard": "on" if held.reward_guard else "off"}
        given |= {
            one.name: document[one.name.removeprefix(_HOLD_PREFIX)]  # type: ignore[misc]
            for one in HOLD_PARAMETERS
        }
    known = parameters_of(control.method)
    return Fields(
        method=str(control.method),
        mu_low="" if control.mu_low is None else control.mu_low,
        mu_high="" if control.mu_high is None else control.mu_high,
        scope=str(control.scope),
        hold=held is not None,
        hold_target="" if held is None else held.target,
        parameters={name: written(given.get(name, one.default)) for name, one in known.items()},
    )


def control_of(fields: Fields, reason: str = "", next_step: int = 1) -> Control:
    """The control that the fields mean; parameters at their default are not named in it. An anneal
    begins at the run's next step.
    ConfigurationError: a field has a value that no control can have."""
    method = method_named(fields.method)
    known = parameters_of(method)
    values = {name: _read(fields.parameters.get(name), one) for name, one in known.items()}
    hold = {
        name.removeprefix(_HOLD_PREFIX): values[name]
        for name in values
        if name.startswith(_HOLD_PREFIX)
    }
    if hold:
        hold |= {"target": fields.hold_target, "reward_guard": hold["reward_guard"] == "on"}
    begun = begun_at({"hold": (fields.hold and hold) or None}, next_step)
    return Control(
        method=method,
        mu_low=_read(fields.mu_low) if method.thresholds else None,  # type: ignore[arg-type]  # checked there
        mu_high=_read(fields.mu_high) if method.thresholds else None,  # type: ignore[arg-type]
        scope=fields.scope,
        parameters={
            name: values[name]
            for name, one in method.parameters.items()
            if values[name] != one.default
        },
        hold=begun["hold"],  # type: ignore[arg-type]  # checked there
        reason=reason,
        guard=None if values[GUARD.name] == GUARD.default else str(values[GUARD.name]),
    )


def chosen(method: str, before: Fields) -> Fields:
    """The fields after another method was chosen: its parameters at their defaults, both thresholds
    on where it has some. What fits of those before is kept."""
    row = method_named(method)
    if row.thresholds:
        low, high = (before.mu_low, before.mu_high)
    else:
        low, high = ("", "")
    scope = before.scope
    if row.thresholds and low in ("", None) and high in ("", None):
        low = high = FIRST_CONTROL.mu_low
        if scope == Scope.ALL:
            scope = str(FIRST_CONTROL.scope)
    if row.positive_only and scope == Scope.NEGATIVE:
        scope = str(Scope.ALL)
    held = {
        name: value
        for name, value in before.parameters.items()
        if name.startswith(_HOLD_PREFIX) or name == GUARD.name
    }
    return replace(
        before,
        method=method,
        mu_low=low,
        mu_high=high,
        scope=scope,
        hold=before.hold and can_hold(row),
        parameters={
            name: held.get(name, written(one.default)) for name, one in parameters_of(row).items()
        },
    )


def _read(entered: object, parameter: Parameter | None = None) -> object:
    """What was entered as a control takes it; nothing has the parameter's default. `Control` checks
    it."""
    text = "" if entered is None else str(entered).strip()
    if not text:
        if parameter is None:
            return None
        return parameter.default
    try:
        if parameter is not None and parameter.choices:
            return text
        return float(text)
    except ValueError:
        return text


def takes_controls(run: RunDetail) -> bool:
    """Whether there is a trainer that applies them."""
    return bool(run.capabilities) and not run.status.is_over


def may_control(me: Me) -> bool:
    """Whether this reader's token may push controls and acknowledge alerts."""
    return me.scope in (TokenScope.CONTROL, TokenScope.ADMIN)


def has_form(run: RunDetail, closed: str) -> bool:
    """Whether the form is shown: to push, or, where nothing can be pushed, to see what thresholds
    would do."""
    if run.status == Status.FAILED:
        return False  # its error stands there
    return not closed or run.step is not None


def why_closed(run: RunDetail, me: Me) -> str:
    """Why this reader can't push a control; empty where they can."""
    if run.status.is_over:
        return f"This run has {run.status}: no trainer is there to apply a control."
    if not run.capabilities:
        return "This run only observes: its trainer applies no controls."
    if not may_control(me):
        return (
            f"Signed in as {me.name} with the scope {me.scope}: to push a control, sign in with a"
            " token of scope control."
        )
    return ""


COMMON: tuple[str, ...] = (Method.NONE, SUGGESTED, Method.ENTROPY_BONUS)


def grouped(names: Sequence[str]) -> list[dict[str, Any]]:
    """The methods to choose from: the common ones first."""
    common = [name for name in COMMON if name in names]
    groups: dict[str, list[str]] = {
        "Common": common,
        "From papers": [name for name in names if name not in common],
    }
    return [
        {
            "group": group,
            "items": [{"value": name, "label": METHODS[name].label} for name in of_group],
        }
        for group, of_group in groups.items()
        if of_group
    ]


def form(
    run: RunDetail, fields: Fields, base: Mapping[str, Any], *, only_what_if: bool = False
) -> Component:
    """The card's fields, filled with the version `base`, and the stores of the callbacks about
    them: these run where there is a form. Where no trainer takes a control, it is about thresholds
        alone."""
    names = [
        name
        for name, row in METHODS.items()
        if (row.thresholds if only_what_if else name in run.methods)
    ]
    method = method_named(fields.method)
    stores = {BASE: base, **dict.fromkeys((FIELDS, FILL, REVERT))}
    return html.Div(
        [
            *(dcc.Store(id=name, data=data) for name, data in stores.items()),
            html.Div(id=CHIP, className="status", role="status"),
            html.Button("Change the control", id=OPEN, type="button", className="button"),
            row(
                dmc.Select(
                    id=METHOD,
                    label="Method",
                    data=grouped(names),
                    renderOption={
                        "function": "describeOption",
                        "options": {name: METHODS[name].plain for name in names},
                    },
                    maxDropdownHeight=460,
                    value=fields.method,
                    size="xs",
                    className="grow",
                    comboboxProps={"withinPortal": True},
                ),
                _mu(
                    MU_LOW,
                    ["Lower ", html.Span("µ₋ (σ)", className="nowrap", title=SIGMA)],
                    fields.mu_low,
                ),
                _mu(
                    MU_HIGH,
                    ["Upper ", html.Span("µ₊ (σ)", className="nowrap", title=SIGMA)],
                    fields.mu_high,
                ),
                name="fields",
            ),
            html.Div(
                [html.Div(id=OFFER, className="offer small dim"), _plot(), _numbers()],
                className="for-thresholds what-would",
            ),
            dmc.Select(
                id=SCOPE,
                size="xs",
                className="scope",
                value=fields.scope,
                **{"aria-label": "Scope"},
                data=[{"value": str(scope), "label": scope.label} for scope in Scope],
            ),
            row(*_hold_fields(fields, can="hold" in run.capabilities), name="scope-row"),
            dmc.Accordion(
                dmc.AccordionItem(
                    [
                        dmc.AccordionControl(
                            row(
                                text("More"),
                                html.Span(more_words(method), id=MORE_WORDS, className="dim small"),
                            )
                        ),
                        dmc.AccordionPanel(
                            html.Div(parameter_fields(fields), id=MORE, className="more")
                        ),
                    ],
                    value="more",
                ),
                chevronPosition="right",
                className="accordion",
            ),
            html.Div(
                [
                    html.Div(id=CONFLICT_WORDS),
                    row(
                        dmc.Button(
                            "Take theirs", id=TAKE_THEIRS, size="compact-xs", variant="default"
                        ),
                        dmc.Button("Push mine", id=PUSH_MINE, size="compact-xs", variant="light"),
                    ),
                ],
                id=CONFLICT,
                className="conflict gone",
                role="alert",
            ),
            row(
                dmc.TextInput(
                    id=REASON,
                    placeholder="Reason, for the history",
                    size="xs",
                    className="grow",
                    **{"aria-label": "Reason"},
                ),
                dmc.Button(
                    "Push",
                    id=PUSH,
                    size="xs",
                    h=30,
                    w=104,
                    leftSection=icon("send", 13),
                    disabled=True,
                    className="needs-server",
                ),
                name="push-row",
            ),
            html.Div(id=NOTE, className="control-note", role="status"),
            html.Div(
                [
                    html.Div(
                        "Applied at the next step.", id=OUTCOME, role="status", className="outcome"
                    ),
                    html.Div(
                        "The server does not answer: a push waits until it does.",
                        className="when-lost",
                    ),
                ],
                className="dim small",
            ),
        ],
        id=FORM,
        className=form_class(method),
    )


def form_class(method: Method) -> str:
    """What the style sheet shows of the form."""
    words = {
        "control-form": True,
        "thresholds": method.thresholds,
        "can-hold": can_hold(method),
        "no-method": method == Method.NONE,
    }
    return " ".join(word for word, applies in words.items() if applies)


def control_card(*body: Component) -> Component:
    """The card around the form, or around the reason why there is none."""
    close = html.Button(
        "×", type="button", className="icon-button sheet-close", **{"aria-label": "Close"}
    )
    return card(
        close, *body, title="Control", name="control", id="control", **{"aria-label": "Control"}
    )


def alert_rows(alerts: Sequence[Alert], *, may_acknowledge: bool) -> list[Component]:
    """The worst alerts of all kinds, newest first of its like: step, level and kind in words, what
    was found, who acknowledged it. What to do now is the health line's alone: what was suggested
    then may be no more."""
    rows = []
    worst = sorted(
        alerts, key=lambda one: (one.acknowledged_by is not None, one.level != AlertLevel.ACT)
    )
    for alert in worst[:ALERTS_SHOWN]:
        tone = "watch"
        if alert.level == AlertLevel.ACT:
            tone = "act"
        if alert.acknowledged_by is not None:
            tone = ""
        head = [
            chip(alert.level.capitalize(), tone),
            text(ALERT_KINDS.get(alert.kind, alert.kind), "strong"),
            spacer(),
            text(f"step {count(alert.step)}", "dim small num"),
        ]
        body: list[Component] = [html.Div(unbroken(alert.message), className="dim small")]
        if alert.acknowledged_by is not None:
            words = f"acknowledged by {alert.acknowledged_by}"
            body.append(html.Div(words, className="dim small ellipsis", title=words))
        elif may_acknowledge:
            head.append(button("Acknowledge", **{"data-acknowledge": alert.id}))
        rows.append(html.Div([row(*head), *body], className="alert-row"))
    return rows


def _mu(component: str, label: Any, value: object) -> Component:
    return dmc.NumberInput(
        id=component,
        label=label,
        value=value,
        placeholder="off",
        step=0.05,
        min=0,
        clampBehavior="none",
        allowNegative=False,
        decimalScale=4,
        size="xs",
        w=76,
        className="for-thresholds",
    )


def _hold_fields(fields: Fields, *, can: bool) -> list[Component]:
    look = "for-hold" if can else "gone"
    return [
        html.Label(
            "Hold the entropy at", htmlFor=HOLD_TARGET, className=f"small dim nowrap grow {look}"
        ),
        dmc.TextInput(
            id=HOLD_TARGET,
            value=str(fields.hold_target),
            size="xs",
            w=132,
            className=f"num {look}",
            placeholder="nats or %",
        ),
        dmc.Switch(
            id=HOLD,
            checked=fields.hold,
            size="sm",
            className=look,
            **{"aria-label": "Hold the entropy at this level"},
        ),
    ]


def _plot() -> Component:
    sides = [
        part
        for side in ("low", "high")
        for part in (
            html.Div(className=f"beyond {side}"),
            html.Div(
                [html.Span(className="pill"), html.I()],
                className=f"handle {side}",
                **{"data-side": side},
            ),
            html.I(className=f"dot clipped {side}"),
            html.I(className=f"dot pace {side}"),
            html.Span(className=f"share {side}"),
        )
    ]
    # Keyboards use the number fields.
    handles = html.Div(sides, className="handles", hidden=True, **{"aria-hidden": "true"})
    says = (
        "Clipped share and entropy change a step against both thresholds, mean of the last ten"
        " steps"
    )
    titles = [
        html.Span("share clipped", className="panel-title"),
        html.Span(className="panel-title lower"),
    ]
    return html.Div(
        [
            plot(PLOT, WHAT_IF_HEIGHT, says, **{"data-static": "yes"}),
            handles,
            *titles,
            html.Span(className="unchanged"),
        ],
        className="what-if",
    )


def _numbers() -> Component:
    def cell(value: str, below: Any) -> Component:
        return html.Div(
            [html.Div(id=value, className="value"), html.Div(below, className="dim small")]
        )

    return html.Div(
        [
            cell(CLIPPED, ["clipped", html.Span(id=CLIPPED_SPREAD)]),
            cell(CHANGE, "nats a step"),
            cell(ENTROPY, "nats in 50 steps"),
        ],
        className="stats num",
        id="control-numbers",
    )


def more_words(method: Method) -> str:
    """What the accordion holds."""
    return ", ".join(
        _describe_parameter(name.removeprefix(_HOLD_PREFIX)) for name in parameters_of(method)
    )


def _describe_parameter(parameter: str) -> str:
    return parameter.replace("mu_", "µ ").replace("epsilon_", "ε ").replace("_", " ")


def parameter_fields(fields: Fields) -> list[Component]:
    """One field for each rare parameter of the method, in a fixed order."""
    found = []
    for name, one in parameters_of(method_named(fields.method)).items():
        value, usual = fields.parameters.get(name), written(one.default)
        label = _describe_parameter(name.replace(_HOLD_PREFIX, "hold: "))
        known = {
            "id": {"parameter": name},
            "label": label,
            "size": "xs",
            "value": usual if value is None else str(value),
        }
        if one.choices:
            entry, bounds = dmc.Select(**known, data=list(one.choices)), ""
        else:
            # Not a NumberInput: it can't show 1e-4 as it was typed.
            entry = dmc.TextInput(**known, placeholder="off" if one.default is None else usual)
            bounds = f" Takes {one.range_in_words}."
        found.append(html.Div(entry, title=f"{one.sense[:1].upper()}{one.sense[1:]}.{bounds}"))
    return found
