"""Which knob of a control that nobody pushed yet could not act, as far as the newest report lets one know.

The probe says it of the control in force, from the sums of the step; here it is said before the push, from what that
step reported, and so only of what the report shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from isentrope_dashboard.controls import ControlValues
from isentrope_dashboard.formatting import count, parameter, percent, threshold
from isentrope_dashboard.predictions import WhatIf
from isentrope_wire.methods import METHODS, idle_parameters
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
    RATIO_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
)

LOWEST_DISCRIMINATOR_SCORE = -0.22388
"""No token's S* lies below: min p (1 - p) log(p / (1 - p)) over all p."""
RATIO_TOLERANCE = 1e-6
EVIDENCE = (
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    RATIO_MEAN,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
    CLIP_FRACTION,
    CLIP_FRACTION_POSITIVE,
    CLIP_FRACTION_NEGATIVE,
)
"""The metrics of the newest step that it is read from."""


def foreseen(
    wanted: ControlValues, defaults: Mapping[str, object], newest: Mapping[str, float], found: WhatIf | None
) -> list[str]:
    """One sentence for each knob that would do nothing, or not what its number says.

    Args:
        wanted: what the form says; parameters left out stand at their defaults.
        defaults: of the method's parameters, by name.
        newest: of the newest step, those of EVIDENCE that were measured.
        found: what its thresholds would have done to that step, where that is known.
    """
    if wanted.method == "none" and wanted.hold is None:
        return []
    parameters = {**defaults, **wanted.parameters}
    return [
        *_nothing_to_act_on(wanted, newest),
        *(idle_parameters(METHODS[wanted.method], parameters) if wanted.method in METHODS else ()),
        *_ratio(wanted.method, parameters, newest),
        *_lower_side_ends(wanted, newest),
        *([] if found is None else _thresholds(parameters, found)),
    ]


def _nothing_to_act_on(wanted: ControlValues, newest: Mapping[str, float]) -> Iterator[str]:
    if newest.get(TOKEN_EFFECTIVE_FRACTION) == 0:
        yield "Every advantage of the newest step is 0: no token has a gradient, whatever the method."
    elif CLIP_FRACTION not in newest:
        return
    elif wanted.scope == "negative" and CLIP_FRACTION_NEGATIVE not in newest:
        yield "scope negative holds no token: no advantage of the newest step is below 0."
    elif wanted.scope == "positive" and CLIP_FRACTION_POSITIVE not in newest:
        yield "scope positive holds no token: no advantage of the newest step is above 0."


def _ratio(method: str, parameters: Mapping[str, object], newest: Mapping[str, float]) -> Iterator[str]:
    knobs = [name for name in ("epsilon_low", "epsilon_high") if parameters.get(name) is not None]
    knobs += ["beta"] if method == "kl_cov" and parameters.get("beta") != 0 else []
    if not knobs or TOKEN_COUNT not in newest:
        return
    names, mean = " and ".join(knobs), newest.get(RATIO_MEAN)
    if mean is None:
        yield f"{names} can't act: the loop does not tell the probe the importance ratio."
    elif abs(mean - 1) < RATIO_TOLERANCE:
        yield f"{names} can't act while the importance ratio is 1, as it was in the newest step."


def _lower_side_ends(wanted: ControlValues, newest: Mapping[str, float]) -> Iterator[str]:
    mean, spread = newest.get(SCORE_DISCRIMINATOR_MEAN), newest.get(SCORE_DISCRIMINATOR_STD)
    if wanted.method != "clip_b" or wanted.mu_low is None or mean is None or not spread:
        return
    largest = (mean - LOWEST_DISCRIMINATOR_SCORE) / spread
    if wanted.mu_low > largest:
        yield (
            f"µ₋ {threshold(wanted.mu_low)} lies beyond {largest:.3g}, where the lower side ends: S* is never below "
            f"{LOWEST_DISCRIMINATOR_SCORE}."
        )


def _thresholds(parameters: Mapping[str, object], found: WhatIf) -> Iterator[str]:
    if found.capped:
        yield (
            f"max_fraction {parameter(parameters.get('max_fraction'))} would bind: it leaves out "
            f"{percent(found.clip_fraction, 2)} of step {count(found.step)}'s tokens, and more lie beyond the "
            "thresholds. Moving µ there changes nothing."
        )
    elif found.clip_fraction == 0 and (found.asked.mu_low is not None or found.asked.mu_high is not None):
        yield f"No token of step {count(found.step)} lies beyond these thresholds."
