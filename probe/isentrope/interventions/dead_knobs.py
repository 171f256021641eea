"""Which knob of a control cannot act in the present set-up, and why. Read off the sums of a step; no tensors here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isentrope_wire.control import Control, Method, Scope

LOWEST_DISCRIMINATOR_SCORE = -0.22388
"""No token's S* lies below: of all distributions, min p (H + log p) = min p (1 - p) log(p / (1 - p)) at p = 0.176."""

RATIO_TOLERANCE = 1e-6
"""Two forward passes of one policy differ by less; an update moves the ratio by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """What a step was like; counts are of valid tokens."""

    tokens: int
    positive: int
    """Tokens with A > 0."""
    negative: int
    candidates: int
    """Tokens the method asked for, see `Selection.candidates`."""
    spared: int
    """Candidates whose gradient took part all the same."""
    discriminator_mean: float
    discriminator_std: float
    ratio_spread: float | None
    """Root mean square of r - 1. None: the loop gave no sampler log-probs."""


def dead_knobs(control: Control, step: StepEvidence) -> tuple[str, ...]:
    """One sentence for each knob that does nothing, or not what its number says; empty when all is well."""
    if control.method == Method.NONE or not step.tokens:
        return ()
    return (*_nothing_to_act_on(control, step), *_ratio(control, step), *_own(control, step))


def _nothing_to_act_on(control: Control, step: StepEvidence) -> Iterator[str]:
    if not step.positive and not step.negative:
        yield "Every advantage is 0: no token has a gradient, whatever the method."
    elif control.scope == Scope.NEGATIVE and not step.negative:
        yield "scope negative holds no token: no advantage is below 0."
    elif (control.scope == Scope.POSITIVE or control.method == Method.UNLIKELY) and not step.positive:
        yield f"{_positive_only(control)} holds no token: no advantage is above 0."


def _positive_only(control: Control) -> str:
    return "scope positive" if control.scope == Scope.POSITIVE else "The positive side"


def _ratio(control: Control, step: StepEvidence) -> Iterator[str]:
    knobs = [name for name in ("epsilon_low", "epsilon_high") if control.value(name) is not None]
    if control.method == Method.KL_COV:
        knobs.append("beta")
    if not knobs:
        return
    names = " and ".join(knobs)
    if step.ratio_spread is None:
        yield f"{names} can't act: the importance ratio is not known. Give gate the sampler's log-probs."
    elif step.ratio_spread < RATIO_TOLERANCE:
        yield (
            f"{names} can't act: the importance ratio is 1 on every token, for each batch is used for one update. "
            "Use a batch for several updates, or another method."
        )


def _own(control: Control, step: StepEvidence) -> Iterator[str]:
    match control.method:
        case Method.CLIP_B | Method.CLIP_V:
            yield from _thresholds(control, step)
        case Method.CLIP_COV:
            yield from _clip_cov(control, step)
        case Method.KL_COV:
            for name, nothing in (("beta", "no penalty"), ("k", "no token")):
                if control.number(name) == 0:
                    yield f"{name} is 0: {nothing}."
        case Method.UNLIKELY if control.number("strength") == 0:
            yield "strength is 0: every token counts as before."
        case Method.TOP_ENTROPY if control.number("fraction") == 1:
            yield "fraction is 1: every token is updated."


def _thresholds(control: Control, step: StepEvidence) -> Iterator[str]:
    if control.method == Method.CLIP_B and control.mu_low is not None and step.discriminator_std > 0:
        largest = (step.discriminator_mean - LOWEST_DISCRIMINATOR_SCORE) / step.discriminator_std
        if control.mu_low > largest:
            yield (
                f"mu_low {control.mu_low:g} lies beyond {largest:.3g}, where the lower side ends: S* is never below "
                f"{LOWEST_DISCRIMINATOR_SCORE}, so that no token can lie outside."
            )
    if control.value("max_fraction") is not None and step.spared:
        yield (
            f"max_fraction {control.value('max_fraction'):g} binds: {step.candidates} of {step.tokens} tokens lie beyond "
            f"the thresholds, and {step.candidates - step.spared} are left out. Moving µ changes nothing."
        )


def _clip_cov(control: Control, step: StepEvidence) -> Iterator[str]:
    ratio = control.number("ratio")
    if ratio == 0:
        yield "ratio is 0: no token is left out."
    elif not step.candidates:
        yield "No token's covariance lies between omega_low and omega_high: none is left out."
    elif step.candidates < ratio * step.tokens:
        yield (
            f"Only {step.candidates} of {step.tokens} tokens lie between omega_low and omega_high, fewer than the "
            f"{ratio * step.tokens:.3g} that ratio asks for: all of them are left out."
        )
