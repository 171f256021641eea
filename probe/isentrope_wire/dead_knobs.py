"""Which knob of a control cannot act in the present set-up, and why. Read off the sums of a step; no tensors here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.methods import idle_parameters

THRESHOLD_TOLERANCE = 1e-9
"""Relative; a threshold at the very bound is beyond it."""

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
    """Tokens the method selected, see `Selection.selected`."""
    spared: int
    """Candidates whose gradient took part all the same."""
    decreasing: int
    """Tokens whose update lowers entropy: A S_c > 0."""
    increasing: int
    discriminator_mean: float
    discriminator_std: float
    vocab_centered_std: float
    largest_entropy: float
    """Largest entropy of the step's tokens, nats."""
    largest_expected_score: float
    """Largest E[S] of the step's tokens, nats."""
    ratio_spread: float | None
    """Root mean square of r - 1. None: the loop gave no sampler log-probs."""
    groups: int = 0
    """Groups of two sequences and more that the loop named."""
    old_entropies_known: bool = False
    """Whether the loop passed the entropies of the old policy."""
    outside_low: float = 0.0
    """Tokens that the method asked for on the lower side, where it has thresholds; from the step's what-if sums."""
    outside_high: float = 0.0


def dead_knobs(control: Control, step: StepEvidence) -> tuple[str, ...]:
    """One sentence for each knob that does nothing, or not what its number asks for; empty where all knobs act."""
    if control.method == Method.NONE or not step.tokens:
        return ()
    idle = tuple(idle_parameters(control.method, control.parameters))
    own = () if idle else control.method.dead(control, step)
    return (
        *_nothing_to_act_on(control, step),
        *_ratio(control, step),
        *idle,
        *_thresholds(control, step),
        *own,
    )


def _nothing_to_act_on(control: Control, step: StepEvidence) -> Iterator[str]:
    if not step.positive and not step.negative:
        yield "Every advantage is 0: no token has a gradient, whatever the method."
    elif control.scope == Scope.NEGATIVE and not step.negative:
        yield "scope negative holds no token: no advantage is below 0."
    elif (control.scope == Scope.POSITIVE or control.method.positive_only) and not step.positive:
        yield f"{_positive_only(control)} holds no token: no advantage is above 0."
    elif control.scope == Scope.DECREASING and not step.decreasing:
        yield "scope decreasing holds no token: no update lowers the entropy."
    elif control.scope == Scope.INCREASING and not step.increasing:
        yield "scope increasing holds no token: no update raises the entropy."


def _positive_only(control: Control) -> str:
    return "scope positive" if control.scope == Scope.POSITIVE else "The positive side"


def _ratio(control: Control, step: StepEvidence) -> Iterator[str]:
    parameters = control.method.parameters.items()
    knobs = [name for name, parameter in parameters if parameter.needs_ratio and control.value(name) is not None]
    if not knobs:
        return
    names = " and ".join(knobs)
    if step.ratio_spread is None:
        yield f"{names} can't act: the importance ratio is not known. Give gate the old policy's log-probs."
    elif step.ratio_spread < RATIO_TOLERANCE:
        yield (
            f"{names} can't act: the importance ratio is 1 on every token, for each batch is used for one update. "
            "Use a batch for several updates, or another method."
        )


def _thresholds(control: Control, step: StepEvidence) -> Iterator[str]:
    if not control.method.thresholds:
        return
    bounds = control.method.bounds(step)
    for name, mu, bound, why, outside in (
        ("mu_low", control.mu_low, bounds.low, bounds.why_low, step.outside_low),
        ("mu_high", control.mu_high, bounds.high, bounds.why_high, step.outside_high),
    ):
        # A hold rests its threshold out there on purpose. The bounds are counted from this step's tokens; the gate may
        # have counted from the step's before, and have left some out all the same.
        if control.hold is not None or mu is None or bound is None or outside:
            continue
        if mu >= bound * (1 - THRESHOLD_TOLERANCE):
            side = "lower" if name == "mu_low" else "upper"
            yield f"{name} {mu:g} lies beyond {bound:.3g}, where the {side} side ends: {why}, so no token can lie outside."
    if control.value("max_fraction") is not None and step.spared:
        yield (
            f"max_fraction {control.value('max_fraction'):g} binds: {step.candidates} of {step.tokens} tokens lie beyond "
            f"the thresholds, and {step.candidates - step.spared} are clipped. Moving µ changes nothing."
        )
