"""In words: how a held entropy is doing, and the fit of reward against entropy with its intervals."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.figures.held_entropy import WORDS, Holding
from isentrope_dashboard.formatting import MISSING, count, number, percent, threshold
from isentrope_wire.control_answers import EntropyPerformance, Estimate, Fit, Forecast

_COLORS = {"holding": "teal", "slewing": "iris", "approaching": "iris", "resting": "gray"}
"""By state; the others prevent holding and are orange."""


def hold_facts() -> html.Div:
    """Empty while no entropy is held."""
    return html.Div([], id=ids.HOLD_FACTS, className="hold-facts num", **{"aria-live": "off"})


def hold_props(held: Holding | None) -> dict[str, dict[str, Any]]:
    """Component id -> properties."""
    return {ids.HOLD_FACTS: {"children": [] if held is None else _facts(held)}}


def _facts(held: Holding) -> list[Any]:
    word, meaning = WORDS.get(held.state, (held.state or "Held", "" if held.state else "No report of it yet."))
    badge = dmc.Badge(
        word,
        variant="light",
        color=_COLORS.get(held.state, "orange") if held.state else "gray",
        size="sm",
        radius="sm",
        tt="none",
        className="unshrinking",
    )
    target = [f"target {held.hold.target_in_words}"]
    if held.target is not None:
        largest = number(held.hold.largest_change(held.target), 4)
        target = ["target ", _strong(f"{number(held.target, 4)} nats"), f", at most ±{largest} a step"]
    facts = [html.Span(target)]
    if held.steps_to_target is not None:
        facts.append(html.Span(["about ", _strong(count(int(held.steps_to_target))), " steps to go"]))
    if held.state != "fallback":
        chosen = ["nothing clipped"] if held.mu is None else ["µ ", _strong(threshold(held.mu))]
        facts.append(html.Span(chosen))
    if held.distance is not None:
        steps = f"{held.distance_steps} step{'s' * (held.distance_steps > 1)}"
        facts.append(html.Span(["mean distance ", _strong(percent(held.distance)), f" of the target, last {steps}"]))
    return [html.Div([badge, *facts], className="quality"), html.Div(held.why or meaning)]


def _strong(text: str) -> html.Span:
    return html.Span(text, className="strong")


def law_facts(law: EntropyPerformance | None) -> list[Any]:
    """Ceiling, coefficients, what the checks found and the forecast, or why there are none."""
    if law is None:
        return []
    if law.fit is None:
        return [_fact("Ceiling", MISSING, law.reason.message if law.reason else "")]
    return [_ceiling(law.fit, law.confidence), _coefficients(law.fit, law), _finding(law.fit), _forecast(law)]


def _ceiling(fit: Fit, confidence: float) -> html.Div:
    if fit.ceiling is None:
        return _fact("Ceiling", MISSING, "None follows.")
    note = f"{_range(fit.ceiling)}, {confidence:.0%} interval"
    return _fact("Ceiling b − a, reward at H = 0", number(fit.ceiling.value), note)


def _coefficients(fit: Fit, law: EntropyPerformance) -> html.Div:
    return _fact(
        "Fit",
        f"a {number(fit.a.value)}, b {number(fit.b.value)}",
        f"a {_range(fit.a)}, b {_range(fit.b)}; {count(law.steps)} steps with {law.reward}",
    )


def _finding(fit: Fit) -> html.Div:
    """The checks that failed, or else that none did. The slope and the reach are in the other facts."""
    failed = [check.message for check in fit.checks if not check.passed]
    passed = [check.message for check in fit.checks if check.code in ("shape", "halves")]
    return _fact("Finding", "conclusive" if fit.conclusive else "not conclusive", " ".join(failed or passed))


def _forecast(law: EntropyPerformance) -> html.Div:
    made = law.forecast
    if made is None:
        return _fact("Forecast of the last reward", MISSING, law.forecast_reason.message if law.forecast_reason else "")
    return _fact(
        f"Forecast from step {count(made.through_step)}",
        number(made.reward.value),
        f"{_range(made.reward)}; {_outcome(made)}",
    )


def _outcome(made: Forecast) -> str:
    when = f"last {made.final_steps} steps" + ("" if made.run_over else " so far")
    return f"{when}: {number(made.actual)}, error {number(made.error, signed=True)}"


def _range(estimate: Estimate) -> str:
    return f"{number(estimate.low)} to {number(estimate.high)}"


def _fact(label: str, value: str, note: str) -> html.Div:
    return html.Div(
        [
            dmc.Text(label, size="xs", c="dimmed", fw=500),
            dmc.Text(value, className="kpi-value"),
            dmc.Text(note, size="xs", c="dimmed", className="num"),
        ],
        className="law-fact",
    )
