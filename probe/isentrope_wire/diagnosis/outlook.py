"""Diagnosis and previews of one step in one answer, so that no two numbers of one name differ on a
screen; and what is kept of them when a control is pushed, to judge it by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import EntropyForecast, PredictedEffect
from isentrope_wire.diagnosis.effect import predicted_effect
from isentrope_wire.diagnosis.health import Diagnosis, Measured, Preview, diagnose, preview
from isentrope_wire.methods import SUGGESTED
from isentrope_wire.numbers import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook(Answer):
    """What is known of a run at its newest step, and of the next ones."""

    diagnosis: Diagnosis
    suggested: Preview | None
    """What the diagnosis' suggestion would do; null where it makes none."""
    preview: Preview | None
    """What the control that was asked about would do. Without one: null, or with curves what the
    suggested thresholds would do, or else those of `FIRST_CONTROL`. Of the active control the
    forecast is the diagnosis'."""


def outlook(measured: Measured, control: Control | None, *, curves: bool = False) -> Outlook:
    """All of it from one reading; `curves` are those of the asked control's thresholds, and where
    none is asked about those of the `offered_control`."""
    diagnosis = diagnose(measured)
    if control is None and curves:
        control = offered_control(diagnosis)
    suggested = asked = None
    if diagnosis.suggestion is not None:
        suggested = preview(measured, Control.from_document(diagnosis.suggestion.control))
    if control is not None:
        asked = preview(measured, control, curves=curves)
        active = measured.active
        if active is not None and does_the_same(active.control, control):
            asked = replace(asked, forecast=diagnosis.forecast, pace=diagnosis.mean_pace)
    return Outlook(diagnosis=diagnosis, suggested=suggested, preview=asked)


FIRST_CONTROL = Control(method=SUGGESTED, mu_low=2.0, mu_high=2.0, scope=Scope.DECREASING)
"""What is shown where none was chosen. A threshold of 1 on all tokens clips a fifth of them,
half of which lower no entropy."""


def offered_control(diagnosis: Diagnosis) -> Control:
    """What is shown to somebody who chose no control: the suggestion, where it has thresholds."""
    if diagnosis.suggestion is not None:
        suggested = Control.from_document(diagnosis.suggestion.control)
        if suggested.method.thresholds and suggested.hold is None:
            return suggested
    return FIRST_CONTROL


_DIGITS = 5
"""Significant ones of a promised entropy."""


def promise(measured: Measured, control: Control) -> PredictedEffect | None:
    """What a control is predicted to do, with both forecasts of this moment: under it, and without
    it. None where the sums of the steps do not answer for it."""
    effect = predicted_effect(control, measured.last, measured.course)
    if effect is None:
        return None
    return replace(
        effect,
        forecast=_entropies(preview(measured, control).forecast),
        unchanged=_entropies(diagnose(measured).forecast),
    )


def _entropies(forecast: EntropyForecast | None) -> list[float] | None:
    if forecast is None:
        return None
    return [float(f"{entropy:.{_DIGITS}g}") for entropy in forecast.entropy]


def does_the_same(one: Control, other: Control) -> bool:
    """Whether two controls differ in what is written about them alone."""
    return replace(one, reason="", guard=None) == replace(other, reason="", guard=None)
