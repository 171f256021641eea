"""What a control would do before it is pushed, and what became of it; the versions before it in a line each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import button, chip, icon, row, spacer, table, text
from isentrope_dashboard.formatting import (
    change,
    count,
    method,
    number,
    parameter,
    percent,
    seconds,
    short_label,
    threshold,
)
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, State, Verdict, VerdictState, WhatIfAnswer, version_before
from isentrope_wire.dead_knobs import StepEvidence, dead_knobs
from isentrope_wire.hold_decision import (
    COMPARED_STEPS,
    Action,
    Calibrated,
    EntropyEstimate,
    HoldState,
    HoldStatus,
    Measured,
    clipping_method,
    decide,
)
from isentrope_wire.methods import idle_parameters
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    HOLD_DRIFT,
    HOLD_GAIN,
    HOLD_RESTING_POINT,
    RATIO_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    SCORE_VOCAB_CENTERED_STD,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
)
from isentrope_wire.what_if import what_if

_SLEWS = 20
"""Steps after which a threshold has come from any score to any other."""
_WORDS: Mapping[HoldStatus, str] = {
    HoldStatus.HOLDING: "would hold it",
    HoldStatus.SLEWING: "would move its threshold there",
    HoldStatus.LIMIT: "would clip as hard as µ min or the share limit allows, which is too little",
    HoldStatus.APPROACHING: "would clip nothing: the entropy moves towards the target",
    HoldStatus.RESTING: "would clip nothing: none is needed",
    HoldStatus.SIDE: "would clip nothing: only the side that is not allowed would help",
    HoldStatus.FALLBACK: "can't hold it now",
}


def cap_of(control: Control) -> float | None:
    """The share of tokens that may be clipped; None: all."""
    return None if control.value("max_fraction") is None else control.number("max_fraction")


def measured_step(
    newest: Mapping[str, float], entropy: float, found: WhatIfAnswer, early_level: float | None, highest: float
) -> Measured:
    """The newest step as the probe's decision takes it.

    The probe's own gain, drift and resting point are used where it reported them, which it does while it holds; else the
    calibration's gain, with no drift.

    Args:
        newest: the step's metrics.
        entropy: its mean entropy, nats.
        found: the step's what-if answer, with its sums.
        early_level: of the run's entropy, nats; None: not known.
        highest: the highest mean entropy of the run so far, nats.
    """
    held = HOLD_GAIN in newest
    agreement = newest.get(ENTROPY_PREDICTION_SIGN_AGREEMENT)
    assert found.sums is not None, "asked for with sums"
    return Measured(
        step=0,
        run_step=found.step,
        entropy=EntropyEstimate(
            mean_entropy=entropy,
            gain=newest[HOLD_GAIN] if held else found.gain,
            to_come=newest.get(HOLD_RESTING_POINT, entropy) - entropy if held else 0.0,
            drift=newest.get(HOLD_DRIFT, 0.0) if held else 0.0,
        ),
        calibrated=Calibrated(
            r2=newest.get(ENTROPY_PREDICTION_R2),
            sign_agreement=agreement,
            compared_steps=0 if agreement is None else COMPARED_STEPS,
        ),
        what_if=found.sums,
        early_level=early_level,
        highest_entropy=highest,
    )


def expected_action(wanted: Control, measured: Measured, *, held: bool) -> Action:
    """What the probe would decide, once its threshold has moved as far as it is going to.

    Args:
        wanted: the form's control, with its hold.
        measured: the newest step.
        held: whether an entropy is held now: then the probe goes on with less trust than it begins with.
    """
    assert wanted.held is not None, "asked for a hold"
    state = HoldState(acting=held)
    for _ in range(_SLEWS):
        before = state
        state, action = decide(
            wanted.held,
            replace(before, plans=()),
            measured,
            step=1,
            method=clipping_method(wanted),
            max_fraction=cap_of(wanted),
            shrink_denominator=wanted.value("denominator") == "shrink",
        )
        if state.mu == before.mu:
            break
    return action


def hold_in_words(wanted: Control, measured: Measured, action: Action) -> str:
    """What the probe would decide for a held entropy, in one sentence."""
    words = f"At step {count(measured.run_step)} the hold {_WORDS[action.status]}"
    if action.target is not None and action.status != HoldStatus.FALLBACK:
        words += f" (target {number(action.target)} nats, now {number(measured.entropy.mean_entropy)})"
    if action.mu is not None:
        clipped = what_if(measured.what_if, action.mu, action.mu, action.scope, clipping_method(wanted))
        words += f": µ {threshold(action.mu)}, {action.scope}, clips {percent(clipped.clip_fraction)}"
        if measured.entropy.gain is not None:
            moved = measured.entropy.gain * clipped.unit_predicted_change + measured.entropy.drift
            words += f", ΔH {change(moved)} nats"
    return f"{words}. {action.reason}".strip()


def dead_before_push(wanted: Control, newest: Mapping[str, float], found: WhatIfAnswer | None) -> list[str]:
    """One sentence for each knob that would do nothing, or less than its number.

    The probe checks the active control with the same `dead_knobs`, from the sums of a step. Here they are read from what
    the newest step reported; what it did not report is taken to be no obstacle.

    Args:
        wanted: the form's control.
        newest: the newest step's metrics.
        found: what its thresholds would have done, where that is known.
    """
    idle = list(idle_parameters(wanted.method, wanted.parameters))
    dead = [*dead_knobs(wanted, _evidence(newest))] if TOKEN_COUNT in newest else idle
    return [*dead, *([] if found is None else _by_what_if(wanted, found))]


def _evidence(newest: Mapping[str, float]) -> StepEvidence:
    tokens = round(newest[TOKEN_COUNT])
    acts = newest.get(TOKEN_EFFECTIVE_FRACTION) != 0
    known = CLIP_FRACTION in newest
    ratio = newest.get(RATIO_MEAN)
    return StepEvidence(
        tokens=tokens,
        positive=int(acts and (not known or CLIP_FRACTION_POSITIVE in newest)),
        negative=int(acts and (not known or CLIP_FRACTION_NEGATIVE in newest)),
        candidates=tokens,
        spared=0,
        decreasing=1,
        increasing=1,
        discriminator_mean=newest.get(SCORE_DISCRIMINATOR_MEAN, 0.0),
        discriminator_std=newest.get(SCORE_DISCRIMINATOR_STD, 0.0),
        vocab_centered_std=newest.get(SCORE_VOCAB_CENTERED_STD, 0.0),
        largest_entropy=math.inf,
        largest_expected_score=math.inf,
        ratio_spread=None if ratio is None else abs(ratio - 1),
    )


def _by_what_if(wanted: Control, found: WhatIfAnswer) -> Iterator[str]:
    if found.capped:
        yield (
            f"max fraction {parameter(wanted.parameters.get('max_fraction'))} binds: more tokens lie beyond the "
            "thresholds, and moving µ changes nothing."
        )
    elif found.clip_fraction == 0 and (found.mu_low is not None or found.mu_high is not None):
        yield "No token of these steps lies beyond the thresholds."


LATEST = "control-latest"
OLDER_VERSIONS = 8
_STATES = {
    State.PENDING: ("Pending", "watch", "clock"),
    State.DELIVERED: ("Delivered", "iris", "clock"),
    State.APPLIED: ("Applied", "ok", "check"),
    State.PARTIAL: ("Partly applied", "act", "alert"),
    State.REJECTED: ("Rejected", "act", "alert"),
    State.EXPIRED: ("Expired", "act", "alert"),
    State.SUPERSEDED: ("Superseded", "", ""),
}
_VERDICTS = {
    VerdictState.HOLDS: ("Holds", "ok", "check"),
    VerdictState.TOO_WEAK: ("Too weak", "watch", "alert"),
    VerdictState.TOO_STRONG: ("Too strong", "watch", "alert"),
    VerdictState.RISES: ("Rises", "watch", "alert"),
}


def name_of(control: Control) -> str:
    """A control in a few words: `Clip_V · µ₋ 1.00 · µ₊ 1.00`."""
    return short_label(control, None) or method(control.method)


def latest_control(history: Sequence[ControlVersion], *, is_over: bool, may_push: bool) -> list[Component]:
    """What the card shows.

    Args:
        history: newest first.
        is_over: whether the run is.
        may_push: whether this reader can go back to an earlier version.
    """
    if not history or history[0].version == 0:
        runs = "ran" if is_over else "runs"
        first = history[0].control if history else Control()
        name = "without one" if first == Control() else f"with {name_of(first)}"
        active = f" It {runs} as it started, {name}."
        return [html.P(f"No control was pushed to this run.{active}", className="dim small none")]
    newest, *older = history
    return [
        _newest(newest, version_before(newest, history) if may_push else None),
        *(_older(item) for item in older[:OLDER_VERSIONS]),
    ]


def _chip_of(item: ControlVersion) -> tuple[str, str, str]:
    """Word, tone and symbol: of the verdict where there is one, else of the state."""
    verdict = item.verdict
    return _VERDICTS.get(verdict.state, _STATES[item.state]) if verdict is not None else _STATES[item.state]


def _newest(item: ControlVersion, revert_to: ControlVersion | None) -> Component:
    word, tone, symbol = _chip_of(item)
    who = item.author or "unknown"
    reason = f" · “{item.reason}”" if item.reason else ""
    why = ": ".join(part for part in (item.code, item.message) if part)
    revert = [] if revert_to is None else [_revert(revert_to)]
    said = item.verdict.message if item.verdict is not None else _in_a_sentence(item)
    return html.Div(
        [
            row(
                text(f"v{item.version}", "mono dim"), text(name_of(item.control), "strong ellipsis"), spacer(),
                chip(word, tone, symbol=symbol),
            ),
            html.Div([who, reason], className="dim small ellipsis", title=f"{who}{reason}"),
            _stages(item),
            *([_compared(item.verdict)] if item.verdict is not None else []),
            *([html.Div(why, className="small why")] if why else []),
            row(html.Div(said, className="dim small"), spacer(), *revert, name="foot"),
        ],
        className=f"version {tone}",
        **{"data-version": item.version, "data-state": str(item.state)},
    )  # fmt: skip


def _compared(verdict: Verdict) -> Component:
    """What was before, what was predicted and what came."""
    clipped, slope = verdict.clip_fraction, verdict.slope
    rows = [
        ("Clipped", [percent(value) for value in (clipped.before, clipped.predicted, clipped.realised)]),
        ("Slope, nats / step", [change(value) for value in (slope.before, slope.predicted, slope.realised)]),
    ]
    return table(["", "before", "predicted", "realised"], [[name, *values] for name, values in rows], "compared num")


def _revert(item: ControlVersion) -> Component:
    return button([icon("undo", 12), f"Revert to v{item.version}"], **{"data-revert": item.version})


def _stages(item: ControlVersion) -> Component:
    pushed = "before step 1" if item.requested_step is None else f"step {count(item.requested_step)}"
    delivered = item.state != State.PENDING and item.state not in (State.EXPIRED, State.SUPERSEDED)
    reached = [True, delivered or item.was_applied, item.was_applied]
    took = "" if item.latency_seconds is None else seconds(item.latency_seconds)
    applied: Any = f"step {count(item.applied_step)}" if item.was_applied else _waiting(item)
    words = [("Pushed", pushed), ("Delivered", took), ("Applied", applied)]
    if item.verdict is not None and item.applied_step is not None:
        verdict = item.verdict
        given = verdict.state != VerdictState.PENDING
        reached.append(given)
        words.append(
            (
                "Verdict",
                f"step {count(item.applied_step + verdict.steps)}"
                if given
                else f"{verdict.steps} of {verdict.steps_needed} steps",
            )
        )
    return html.Div(
        [
            html.Div([html.B(name), html.Span(below)], className="stage on" if on else "stage")
            for (name, below), on in zip(words, reached, strict=True)
        ],
        className="stages num",
    )


def _waiting(item: ControlVersion) -> Any:
    if item.state.is_final or item.expires_at is None:
        return ""
    return html.Span("waiting", **{"data-expires": item.expires_at})


def _in_a_sentence(item: ControlVersion) -> str:
    match item.state:
        case State.PENDING:
            return "Waits for the trainer."
        case State.DELIVERED:
            return "The trainer has it, and applies it at its next step."
        case State.APPLIED:
            return ""
        case State.PARTIAL:
            return "Some ranks applied it, some did not."
        case State.EXPIRED:
            return "No step took it in time."
        case State.SUPERSEDED:
            return "A later version came first."
    return "The trainer refused it."


def _older(item: ControlVersion) -> Component:
    word, tone, _ = _chip_of(item) if item.version else ("Start", "", "")
    when = "step 0" if not item.version else "" if item.applied_step is None else f"step {count(item.applied_step)}"
    return html.Div(
        [
            text(f"v{item.version}", "mono dim"), text(name_of(item.control), "ellipsis"), spacer(), chip(word, tone),
            text(when, "dim small num"),
        ],
        className="row older",
    )  # fmt: skip
