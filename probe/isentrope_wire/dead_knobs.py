"""Which knob of a control cannot act in the present set-up, and why. Read off the sums of a step; no tensors here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.methods import idle_parameters

LOWEST_DISCRIMINATOR_SCORE = -0.22388
"""No token's S* lies below: of all distributions, min p (H + log p) = min p (1 - p) log(p / (1 - p)) at p = 0.176."""

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
    """Of the step's tokens, nats."""
    largest_expected_score: float
    """The same of E[S]."""
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
    return (*_nothing_to_act_on(control, step), *_ratio(control, step), *_own(control, step))


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
    knobs = [name for name in ("epsilon_low", "epsilon_high") if control.value(name) is not None]
    if control.method == Method.KL_COV:
        knobs.append("beta")
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


def _own(control: Control, step: StepEvidence) -> Iterator[str]:
    idle = list(idle_parameters(control.method, control.parameters))
    yield from idle
    match control.method:
        case Method.CLIP_B | Method.CLIP_V:
            yield from _thresholds(control, step)
        case Method.CLIP_COV:
            yield from () if idle else _clip_cov(control, step)
        case Method.RANK_REWARD if not step.groups:
            yield "rank_reward can't act: no group of sequences is known. Give gate the groups, each in one call."
        case Method.ENTROPY_RATIO_CLIP if not step.old_entropies_known:
            yield "entropy_ratio_clip can't act: the old policy's entropies are not known. Give gate old_entropies."
        case Method.ENTROPY_RATIO_CLIP if not step.candidates:
            yield (
                "No token's entropy has moved beyond beta_low or beta_high since the old policy: every token is kept. "
                "With one update a batch none moves."
            )
        case Method.STEER if not step.candidates and not idle:
            yield "No token's update is estimated to change the entropy: every token counts as before."
        case Method.UNLIKELY if step.positive and not step.candidates and not idle:
            yield f"No token with A > 0 is less likely than {control.number('below'):g}: every token counts as before."


def _thresholds(control: Control, step: StepEvidence) -> Iterator[str]:
    bounds = clip_b_bounds(step) if control.method == Method.CLIP_B else clip_v_bounds(step)
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """The µ from which on a side can leave nothing out, in standard deviations, and why; None: there is no such."""

    low: float | None = None
    high: float | None = None
    why_low: str = ""
    why_high: str = ""


def clip_b_bounds(step: StepEvidence) -> Bounds:
    """Where Clip_B's sides end: -0.22388 <= S* <= H, counted from mean S* in sigma.

        mu_low  < (mean S* + 0.22388) / sigma          mu_high < (max H - mean S*) / sigma

    S* = p (H + log p). Below: given p, H is least when all the rest lies on one other token, which leaves
    p (1 - p) log(p / (1 - p)), and that is never below -0.22388. Above: p <= 1 and log p <= 0.
    """
    sigma = step.discriminator_std
    if sigma <= 0:
        return Bounds()
    return Bounds(
        (step.discriminator_mean - LOWEST_DISCRIMINATOR_SCORE) / sigma,
        (step.largest_entropy - step.discriminator_mean) / sigma,
        f"S* is never below {LOWEST_DISCRIMINATOR_SCORE}",
        f"S* is never above its token's H, here {step.largest_entropy:.3g} at most",
    )


def clip_v_bounds(step: StepEvidence) -> Bounds:
    """Where Clip_V's sides end: -0.22388 - max E[S] <= S_c <= max H, counted from 0 in sigma'.

        mu_low  < (0.22388 + max E[S]) / sigma'        mu_high < max H / sigma'

    S_c = S* - E[S] and S* >= -0.22388, as for Clip_B. E[S] = sum p_i p_i (H + log p_i) is the covariance under p of p
    and log p, for H = -mean log p: both rise together, so E[S] >= 0 and S_c <= S* <= H. It has no bound of its own (it
    grows with the logarithm of the vocabulary), so the largest of the step's tokens is taken.
    """
    sigma = step.vocab_centered_std
    if sigma <= 0:
        return Bounds()
    return Bounds(
        (step.largest_expected_score - LOWEST_DISCRIMINATOR_SCORE) / sigma,
        step.largest_entropy / sigma,
        f"S_c is never below {LOWEST_DISCRIMINATOR_SCORE} - E[S], and E[S] is {step.largest_expected_score:.3g} at most",
        f"S_c is never above its token's H, here {step.largest_entropy:.3g} at most",
    )


def _clip_cov(control: Control, step: StepEvidence) -> Iterator[str]:
    ratio = control.number("ratio")
    if not step.candidates:
        yield "No token's covariance lies between omega_low and omega_high: none is clipped."
    elif step.candidates < ratio * step.tokens:
        yield (
            f"Only {step.candidates} of {step.tokens} tokens lie between omega_low and omega_high, fewer than the "
            f"{ratio * step.tokens:.3g} that ratio asks for: all of them are clipped."
        )
