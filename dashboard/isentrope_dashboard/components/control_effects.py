"""What became of the newest control; the versions before it in a line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import button, chip, icon, row, spacer, text
from isentrope_dashboard.formatting import (
    count,
    method,
    number,
    percent,
    seconds,
    short_label,
)
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    ControlVersion,
    Outcome,
    State,
    version_before,
    version_to_revert,
)
from isentrope_wire.metrics import HOLD_BONUS, HOLD_MU

LATEST = "control-latest"
OLDER_VERSIONS = 8
_STATES = {
    State.PENDING: ("Pending", "watch", "clock", "Waits for the trainer."),
    State.DELIVERED: (
        "Delivered",
        "iris",
        "clock",
        "The trainer has it, and applies it at its next step.",
    ),
    State.APPLIED: ("Applied", "ok", "check", ""),
    State.PARTIAL: ("Partly applied", "act", "alert", "Some ranks applied it, some did not."),
    State.REJECTED: ("Rejected", "act", "alert", "The trainer refused it."),
    State.EXPIRED: ("Expired", "act", "alert", "No step took it in time."),
    State.SUPERSEDED: ("Superseded", "", "", "A later version came first."),
}
"""Word, tone, symbol and sentence."""
_OUTCOMES = {
    Outcome.STOPPED: ("Stopped", "ok", "check"),
    Outcome.SLOWED: ("Slowed", "watch", "alert"),
    Outcome.NO_EFFECT: ("No effect", "watch", "alert"),
    Outcome.OVERSHOT: ("Overshot", "act", "alert"),
    Outcome.TURNED: ("Turned", "watch", "alert"),
    Outcome.REACHED: ("Reached", "ok", "check"),
    Outcome.APPROACHING: ("Approaches", "iris", "clock"),
    Outcome.WAITING: ("Not there yet", "watch", "clock"),
    Outcome.FAILED: ("Can't hold", "act", "alert"),
}


def name_of(control: Control) -> str:
    """A control in a few words: `Clip_V · µ₋ 1.00 · µ₊ 1.00`."""
    return short_label(control, None) or method(control.method)


def latest_control(
    history: Sequence[ControlVersion], *, is_over: bool, may_push: bool, acts: str = ""
) -> list[Component]:
    """The newest version with what became of it, and those before in a line each; `history` has the
    newest first. `may_push`: whether this reader can go back to an earlier one. `acts`: by what a
    hold acts now."""
    if not history or history[0].version == 0:
        runs = "runs"
        if is_over:
            runs = "ran"
        first = history[0].control if history else Control()
        if first == Control():
            name = "without one"
        else:
            name = f"with {name_of(first)}"
        active = f" It {runs} as it started, {name}."
        return [html.P(f"No control was pushed to this run.{active}", className="dim small none")]
    newest, *older = history
    taken_back = None
    if may_push:
        taken_back = version_to_revert(history)
    return [
        _newest(newest, version_before(taken_back, history) if taken_back else None, acts),
        *(_older(item) for item in older[:OLDER_VERSIONS]),
    ]


def _chip_of(item: ControlVersion) -> tuple[str, str, str]:
    """Word, tone and symbol: of the verdict where there is one, else of the state."""
    word, tone, symbol, _ = _STATES[item.state]
    if item.verdict is None:
        return word, tone, symbol
    word, tone, symbol = _OUTCOMES.get(item.verdict.outcome, (word, tone, symbol))
    if item.verdict.outcome == Outcome.STOPPED:
        word = item.verdict.message.partition(":")[0].rstrip(".")  # "Stopped" alone is the control
    if item.verdict.outcome == Outcome.SLOWED and item.verdict.left is not None:
        word = f"Slowed to {percent(item.verdict.left, 0)}"
    return word, tone, symbol


def hold_in_words(scalars: Mapping[str, float]) -> str:
    """By what a hold acts in the newest steps: `by a bonus of 0.53`; empty where it does not."""
    bonus, mu = scalars.get(HOLD_BONUS), scalars.get(HOLD_MU)
    parts = []
    if mu is not None and math.isfinite(mu):
        parts.append(f"a µ of {number(mu, 2)}")
    if bonus:
        parts.append(f"a bonus of {number(bonus, 2)}")
    if parts:
        return f"now by {' and '.join(parts)}"
    return ""


def _newest(item: ControlVersion, revert_to: ControlVersion | None, acts: str) -> Component:
    word, tone, symbol = _chip_of(item)
    who, reason = item.author or "unknown", ""
    if item.control.held is not None and item.was_applied and acts:
        reason = f" · {acts}"
    if item.reason:
        reason += f" · “{item.reason}”"
    why = ": ".join(part for part in (item.code, item.message) if part)
    revert = []
    if revert_to is not None:
        label = [icon("undo", 12), f"Revert to v{revert_to.version}"]
        revert = [button(label, **{"data-revert": revert_to.version})]
    if item.verdict is not None:
        said = item.verdict.message
    else:
        said = _STATES[item.state][3]
    return html.Div(
        [
            row(
                text(f"v{item.version}", "mono dim"),
                text(name_of(item.control), "strong spacer"),
                chip(word, tone, symbol=symbol),
            ),
            html.Div([who, reason], className="dim small"),
            _stages(item),
            *([html.Div(why, className="small why")] if why else []),
            row(html.Div(said, className="dim small"), spacer(), *revert, name="foot"),
        ],
        className=f"version {tone}",
        **{"data-version": item.version, "data-state": str(item.state)},
    )


def _stages(item: ControlVersion) -> Component:
    if item.requested_step is None:
        pushed = "before step 1"
    else:
        pushed = f"step {count(item.requested_step)}"
    delivered = item.state != State.PENDING and item.state not in (State.EXPIRED, State.SUPERSEDED)
    reached = [True, delivered or item.was_applied, item.was_applied]
    if item.latency_seconds is None:
        took = ""
    else:
        took = seconds(item.latency_seconds)
    applied: Any = f"step {count(item.applied_step)}" if item.was_applied else ""
    if not item.was_applied and not item.state.is_final and item.expires_at is not None:
        applied = html.Span("waiting", **{"data-expires": item.expires_at})
    words = [("Pushed", pushed), ("Delivered", took), ("Applied", applied)]
    if item.verdict is not None and item.applied_step is not None:
        verdict = item.verdict
        reached.append(verdict.judged_steps > 0)
        if verdict.judged_steps:
            judged = f"{count(verdict.judged_steps)} steps"
        else:
            judged = f"{verdict.steps} of 20 steps"
        words.append(("Verdict", judged))
    return html.Div(
        [
            html.Div([html.B(name), html.Span(below)], className="stage on" if on else "stage")
            for (name, below), on in zip(words, reached, strict=True)
        ],
        className="stages num",
    )


def _older(item: ControlVersion) -> Component:
    word, tone, when = "Start", "", f"step {count(0)}"
    if item.version:
        word, tone, _ = _chip_of(item)
        when = ""
        if item.applied_step is not None:
            when = f"step {count(item.applied_step)}"
    return html.Div(
        [
            text(f"v{item.version}", "mono dim"),
            text(name_of(item.control), "ellipsis"),
            spacer(),
            chip(word, tone),
            text(when, "dim small num"),
        ],
        className="row older",
    )
