"""The sums of a step's tokens and the metrics promised to users; entropies and scores in nats.

The unit prediction is the first-order change of the mean entropy per unit of gain
(arXiv:2602.03392, Cor. 4.1):

    unit = -mean(u S_c),   u = N g / W,   g = -dL / dlog p   of N tokens, averaged over W ranks
                           u = r A                           where no backward reached the log-probs

and its parts by mechanism, which sum to it, are

    by_intervention  = -mean((f - 1) u S_c)   f: the factors of the active control, 0 where it clips
    by_kl_penalty    = -mean(u_KL S_c)        of the reference log-probs, where they require grad
    by_entropy_bonus = +mean(c sum_i S_i^2)   c = -N dL / dH / W
    by_policy_loss   = what is left            advantages, ratios, clip, aggregation

in nats per unit gain. With a temperature every term is over T^2. A metric whose inputs the loop did
not pass is absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from isentrope.statistics.alerts import GradientFault
from isentrope.statistics.calibration import CalibratedPrediction
from isentrope.statistics.histogram import BINS, SMALLEST_EXPONENT, Histogram, bin_counts
from isentrope.statistics.moments import device_moments, finite, flat, zeros
from isentrope.statistics.sums import (
    NOT_FINITE_GRADIENTS,
    Metrics,
    StepSums,
    Sum,
    count,
    largest,
    moments,
    no_metrics,
    not_finite_gradients,
    total,
    totals,
)
from isentrope.statistics.tokens import CODES, THRESHOLD_SOURCES, StepTokens
from isentrope_wire import metrics
from isentrope_wire.reports import ScoreHistogram

ENTROPIES = moments(
    lambda tokens: tokens.moments("H"), lambda value, step: {metrics.ENTROPY_MEAN: value.mean}
)

DISCRIMINATOR = moments(
    lambda tokens: tokens.moments("S*"),
    lambda value, step: {
        metrics.SCORE_DISCRIMINATOR_MEAN: value.mean,
        metrics.SCORE_DISCRIMINATOR_STD: value.standard_deviation,
    },
)
"""Moments of S*. The thresholds of the next step may be counted from it and from VOCAB_CENTERED."""


VOCAB_CENTERED = moments(
    lambda tokens: tokens.moments("S_c"),
    lambda value, step: {
        metrics.SCORE_VOCAB_CENTERED_MEAN: value.mean,
        metrics.SCORE_VOCAB_CENTERED_STD: value.standard_deviation,
    },
)

RATIOS = moments(
    lambda tokens: tokens.moments("r"),
    lambda value, step: {metrics.RATIO_MEAN: value.mean} if value.count else {},
)
"""Moments of the importance ratios; empty when the loop passed no sampler log-probs."""


def _observed_change(tokens: StepTokens) -> tuple[Tensor, Tensor, Tensor]:
    if tokens.entropies_after is None:
        return tokens.none, tokens.none, tokens.none
    after = flat(tokens.entropies_after).double()
    return device_moments(after - tokens["H"], tokens.valid & finite(after))


OBSERVED_CHANGE = moments(
    _observed_change,
    lambda value, step: {metrics.ENTROPY_OBSERVED_CHANGE: value.mean} if value.count else {},
)
"""Moments of H after the update minus H before it on the same tokens; empty when they were not
scored again."""


class MeanChange(NamedTuple):
    """Of H over the update, in nats."""

    mean: float
    error: float
    """Its standard error."""


class UnseenChange(NamedTuple):
    """On tokens that no update is fitted to."""

    judge: MeanChange
    """Of those that the coupled prediction is not made from; of all, where it is made from all."""
    made_from: MeanChange | None
    """Of those that it is made from; None: they were not scored before and after the update."""


def _mean_change(total: float, tokens: float, square: float) -> MeanChange | None:
    if tokens:
        return MeanChange(total / tokens, math.sqrt(square) / tokens)
    return None


def _unseen_change(*numbers: float) -> UnseenChange | None:
    judge = _mean_change(*numbers[:3])
    if judge is None:
        return None
    return UnseenChange(judge, _mean_change(*numbers[3:]))


def _unseen_metrics(change: UnseenChange | None, step: StepSums) -> Metrics:
    if change is None:
        return {}
    return {
        metrics.ENTROPY_UNSEEN_CHANGE: change.judge.mean,
        metrics.ENTROPY_UNSEEN_CHANGE_ERROR: change.judge.error,
    }


UNSEEN_CHANGE = totals(
    _unseen_change,
    6,
    lambda tokens: [tokens.none] * 6 if tokens.unseen is None else tokens.unseen.unbind(),
    _unseen_metrics,
)
"""Over all ranks; None where no rank has it."""


class Coupled(NamedTuple):
    """<h, theta> after the update minus <h, theta> before it, in nats; see
    `isentrope.statistics.coupling`."""

    change: float
    by_momentum: float
    """NaN: not known."""
    by_weight_decay: float
    age: float
    """Updates that were made with h before this one."""


COUPLED_PREDICTION = totals(
    lambda *numbers: (
        Coupled(*(number / numbers[4] for number in numbers[:4])) if numbers[4] else None
    ),
    5,
    lambda tokens: [tokens.none] * 5 if tokens.coupled is None else tokens.coupled.unbind(),
)
"""Mean over the ranks; None where no rank has it."""


def _influences(tokens: StepTokens) -> Tensor:
    found = tokens.influences("gated" if tokens.factors is None else "logprobs")
    if found is None or tokens.slopes is None:
        return zeros(2 + CODES, tokens.count.device)
    by_code = found.new_zeros(CODES).scatter_add_(0, tokens.change_codes, found)
    return torch.hstack([tokens.slopes.expected, tokens.one, by_code])


def _influence_metrics(numbers: Sequence[float], step: StepSums) -> Metrics:
    expected, ranks, *by_code = numbers
    if not expected or step.basis is None:
        return {}
    sums = {
        name: step.change(sum(by_code[code] for code in codes))
        for name, codes in _QUADRANTS.items()
    }
    check: dict[str, float] = {
        metrics.ENTROPY_INFLUENCE_CHECK: sum(sums.values()) * ranks / expected
    }
    return check | {metrics.INFLUENCES[name]: total for name, total in sums.items()}


INFLUENCES = totals(lambda *numbers: numbers, 2 + CODES, _influences, _influence_metrics)
"""Sum over the ranks of -<P h, G>, their number, and the sums of the tokens' influences behind the
intervention, by code."""

OLD_ENTROPIES_KNOWN = count(
    lambda tokens: (
        tokens.none
        if any(batch.old_entropies is None for batch in tokens.batches)
        else tokens.count
    )
)

NOT_FINITE = count(
    lambda tokens: tokens.not_finite,
    lambda value, step: {metrics.TOKEN_NOT_FINITE: float(value)} if value else {},
)
"""Tokens that the mask names, but not all of whose numbers are finite."""

LARGEST_ENTROPY = largest(lambda tokens: tokens["H"].max())
LARGEST_EXPECTED_SCORE = largest(lambda tokens: (tokens["S*"] - tokens["S_c"]).max())

PUSHED = count(
    lambda tokens: (tokens["g"] != 0).sum(dtype=torch.float64),
    lambda value, step: (
        {}
        if step[NOT_FINITE_GRADIENTS]
        else {metrics.TOKEN_EFFECTIVE_FRACTION: value / step.tokens}
    ),
)
"""Tokens whose g is not 0: the loss moves them."""


def change(
    effect: Callable[[StepTokens], Tensor], named: Callable[[float, StepSums], Metrics] = no_metrics
) -> Sum[float]:
    """What an update changes: minus the sum of what it takes from the entropy."""
    return Sum(
        size=1, measure=effect, read=lambda numbers, _: -numbers[0], merge=add, metrics=named
    )


PARTS_KNOWN = totals(
    lambda *ranks: tuple(number > 0 for number in ranks),
    2,
    lambda tokens: [tokens.one if part else tokens.none for part in tokens.parts],
)
"""Whether the gradient of the KL term was read on its own, and that of an entropy bonus."""


INTERVENTION = change(lambda tokens: tokens.intervention_effect)
"""Sum of -(f - 1) g S_c."""

KL_PENALTY = change(
    lambda tokens: tokens.none if tokens.kl_effects is None else tokens.kl_effects.sum()
)
"""Sum of -g_KL S_c."""

BONUS = change(
    lambda tokens: tokens.none if tokens.bonus_effects is None else tokens.bonus_effects.sum()
)
"""Sum of c sum_i S_i^2."""


def _bonus_added(tokens: StepTokens) -> Tensor:
    """What an entropy bonus of 1 at the gate would add to the entropy: (log p + H) / A g S_c, and
    (log p + H) w r S_c where A is 0 (`isentrope.methods.targets`)."""
    surprises = tokens["log p"] + tokens["H"]
    slopes = (surprises / tokens["A"]).nan_to_num_(0.0, 0.0, 0.0)
    idle = torch.where(tokens["A"] == 0, tokens["r S_c"] * tokens.loss_weights, 0.0)
    return slopes.dot(tokens.effects) + surprises.dot(idle)


BONUS_EFFECT = total(
    _bonus_added,
    metrics=lambda value, step: (
        {} if step.basis is None else {metrics.ENTROPY_BONUS_EFFECT: step.change(value)}
    ),
)
"""What an entropy bonus of 1 at the gate would add."""


def _calls_by_source(tokens: StepTokens) -> list[Tensor]:
    sources = [batch.threshold_source for batch in tokens.batches]
    # A fill on the device; copying a Python number there would wait for it.
    return [
        torch.full_like(tokens.count, sources.count(source)) if source in sources else tokens.none
        for source in THRESHOLD_SOURCES
    ]


SOURCES = totals(lambda *calls: tuple(map(int, calls)), len(THRESHOLD_SOURCES), _calls_by_source)
"""How many `gate` calls counted their thresholds from each of THRESHOLD_SOURCES; all 0 with no
intervention."""

_NEGATIVE, _POSITIVE = (0, 1, 2), (6, 7, 8)
_INCREASING, _DECREASING = (0, 3, 6), (2, 5, 8)
_QUADRANTS: dict[str, tuple[int, ...]] = {
    metrics.CHANGE_POSITIVE_HIGH: (8,),
    metrics.CHANGE_POSITIVE_LOW: (6, 7),
    metrics.CHANGE_NEGATIVE_HIGH: (0,),
    metrics.CHANGE_NEGATIVE_LOW: (1, 2),
}
"""The codes of each quadrant: signs of A and S_c (high: S_c > 0), each with its `StepTokens.codes`:
the sign of S_c is that of A S_c times that of A."""


@dataclass(frozen=True, slots=True)
class SignSums:
    """Tokens by the sign of their advantage, and how many of them an intervention clipped."""

    changes: tuple[float, ...]
    """Sums of what the update does, by _QUADRANTS, before they are scaled (`StepSums.change`)."""
    positive: int
    negative: int
    clipped_positive: int
    clipped_negative: int
    clipped: int
    selected: int
    kept: int
    """Selected tokens whose gradient took part all the same: weighted, or kept by a cap or a
    draw."""
    decreasing: int
    """Tokens whose update lowers entropy: A S_c > 0."""
    increasing: int

    @classmethod
    def read(cls, numbers: Sequence[float], rank: int = 0) -> SignSums:
        """From the numbers of `_sum_by_code`."""
        effects, tokens, clipped, selected, kept = (
            numbers[row * CODES :][:CODES] for row in range(5)
        )

        def add(counts: Sequence[float], codes: Sequence[int]) -> int:
            return int(sum(counts[code] for code in codes))

        return cls(
            changes=tuple(-sum(effects[code] for code in codes) for codes in _QUADRANTS.values()),
            positive=add(tokens, _POSITIVE),
            negative=add(tokens, _NEGATIVE),
            clipped_positive=add(clipped, _POSITIVE),
            clipped_negative=add(clipped, _NEGATIVE),
            clipped=int(sum(clipped)),
            selected=int(sum(selected)),
            kept=int(sum(kept)),
            decreasing=add(tokens, _DECREASING),
            increasing=add(tokens, _INCREASING),
        )


def _sum_by_code(tokens: StepTokens) -> Tensor:
    """For the tokens of each of `StepTokens.codes`: what their update takes from the entropy (by
    `change_codes`), how many there are, how many were clipped, how many the intervention selected,
    and how many of these it kept."""
    table = tokens.ones.new_zeros(5, CODES)
    table[0].scatter_add_(0, tokens.change_codes, tokens.all_effects)
    table[1].scatter_add_(0, tokens.codes, tokens.ones)
    if tokens.factors is not None:
        selected = flat(
            [
                torch.zeros_like(batch.mask) if batch.selected is None else batch.selected
                for batch in tokens.batches
            ]
        )
        rows = torch.stack([~tokens.kept, selected, selected & tokens.kept]) * tokens.ones
        table[2:].scatter_add_(1, tokens.codes.expand(3, -1), rows)
    return table.reshape(-1)


def _sign_metrics(sums: SignSums, step: StepSums) -> Metrics:
    tokens = step.tokens
    found: dict[str, float] = {} if step.basis is None else _change_metrics(sums.changes, step)
    found |= {
        metrics.CLIP_CANDIDATE_FRACTION: sums.selected / tokens,
        metrics.CLIP_FRACTION: sums.clipped / tokens,
    }
    if sums.positive:
        found[metrics.CLIP_FRACTION_POSITIVE] = sums.clipped_positive / sums.positive
    if sums.negative:
        found[metrics.CLIP_FRACTION_NEGATIVE] = sums.clipped_negative / sums.negative
    return found


def _change_metrics(changes: Sequence[float], step: StepSums) -> dict[str, float]:
    quadrants = {name: step.change(total) for name, total in zip(_QUADRANTS, changes, strict=True)}
    unit = step.change(sum(changes))
    kl_known, bonus_known = step[PARTS_KNOWN]
    parts: dict[str, float] = {metrics.CHANGE_BY_INTERVENTION: step.change(step[INTERVENTION])}
    if kl_known:
        parts[metrics.CHANGE_BY_KL_PENALTY] = step.change(step[KL_PENALTY])
    if bonus_known:
        parts[metrics.CHANGE_BY_ENTROPY_BONUS] = step.change(step[BONUS])
    whole: dict[str, float] = {
        metrics.ENTROPY_UNIT_PREDICTED_CHANGE: unit,
        metrics.CHANGE_BY_POLICY_LOSS: unit - sum(parts.values()),
    }
    return quadrants | parts | whole


SIGNS = Sum(
    size=5 * CODES, measure=_sum_by_code, read=SignSums.read, merge=None, metrics=_sign_metrics
)

HISTOGRAMS = {
    "S_c": (metrics.VOCAB_CENTERED_SCORES, True),
    "S*": (metrics.DISCRIMINATOR_SCORES, True),
    "H": (metrics.TOKEN_ENTROPIES, False),
    "p": (metrics.TOKEN_PROBABILITIES, False),
}
"""Rows of `StepTokens` that follow each other; the name of each, and whether its range is symmetric
about 0."""

_FIRST, _LAST = next(iter(HISTOGRAMS)), next(reversed(HISTOGRAMS))
_SYMMETRIC = tuple(symmetric for _, symmetric in HISTOGRAMS.values())


def _read_histograms(numbers: Sequence[float], rank: int) -> tuple[Histogram, ...]:
    found = []
    for row, symmetric in enumerate(_SYMMETRIC):
        exponent, *counts = map(int, numbers[row * (1 + BINS) :][: 1 + BINS])
        # With no token at all it must not widen another's bins.
        found.append(
            Histogram(symmetric, exponent if any(counts) else SMALLEST_EXPONENT, tuple(counts))
        )
    return tuple(found)


TOKEN_HISTOGRAMS = Sum[tuple[Histogram, ...]](
    size=len(HISTOGRAMS) * (1 + BINS),
    measure=lambda tokens: bin_counts(tokens.rows(_FIRST, _LAST), tokens.ones, _SYMMETRIC).reshape(
        -1
    ),
    read=_read_histograms,
    merge=lambda left, right: tuple(map(Histogram.merge, left, right)),
)

_FAULT_NUMBERS = 7


def _gradient_fault(tokens: StepTokens) -> list[Tensor]:
    bad = tokens.bad_gradients
    if bad is None:
        return [tokens.none] * _FAULT_NUMBERS
    sizes = [batch.mask.numel() for batch in tokens.batches]
    rows = []
    for place, batch in enumerate(tokens.batches):
        wrong, mask = bad.split(sizes)[place], tokens.mask.split(sizes)[place]
        gradient = batch.gradient or {}
        loss = gradient.get("loss")
        about = (sizes[place], place + 1, len(sizes), loss is not None)
        rows.append(
            torch.stack(
                [
                    (wrong & mask).sum(dtype=torch.float64),
                    (wrong & ~mask).sum(dtype=torch.float64),
                    *(torch.full_like(tokens.none, float(number)) for number in about),
                    tokens.none if loss is None else loss.to(tokens.none),
                ]
            )
        )
    table = torch.stack(rows)
    has_fault = (table[:, 0] + table[:, 1]) > 0
    is_first = has_fault & (has_fault.cumsum(0) == 1)
    # Chosen by a mask, for an index would wait for the device; and not by a product: another
    # micro-batch's loss may be NaN.
    return [*torch.where(is_first[:, None], table, 0.0).sum(0)]


GRADIENT_FAULT = Sum[GradientFault](
    size=_FAULT_NUMBERS, measure=_gradient_fault, read=GradientFault.read, merge=GradientFault.merge
)
"""Where a gradient that is NaN or infinite came from."""

STEP_SUMS = (
    GRADIENT_FAULT,
    ENTROPIES,
    DISCRIMINATOR,
    VOCAB_CENTERED,
    RATIOS,
    OLD_ENTROPIES_KNOWN,
    OBSERVED_CHANGE,
    UNSEEN_CHANGE,
    COUPLED_PREDICTION,
    INFLUENCES,
    NOT_FINITE,
    LARGEST_ENTROPY,
    LARGEST_EXPECTED_SCORE,
    PUSHED,
    PARTS_KNOWN,
    INTERVENTION,
    KL_PENALTY,
    BONUS,
    BONUS_EFFECT,
    SOURCES,
    SIGNS,
    TOKEN_HISTOGRAMS,
)

_OF_AN_INTERVENTION = (metrics.CHANGE_BY_INTERVENTION, metrics.CLIP_CANDIDATE_FRACTION)


def unit_prediction(step: StepSums) -> float | None:
    """-mean(u S_c) over the step's tokens, None where it is not known: arXiv:2602.03392, Cor. 4."""
    if step.tokens and step.basis is not None:
        return step.change(sum(step[SIGNS].changes))
    return None


def step_metrics(step: StepSums, *, intervening: bool = False) -> dict[str, float]:
    """Every metric measured on the step's tokens; of an intervention nothing where no control was
    active."""
    if not step.tokens:
        none = {metrics.TOKEN_COUNT: 0.0, metrics.TOKEN_NOT_FINITE: float(step[NOT_FINITE])}
        return none | not_finite_gradients(step[NOT_FINITE_GRADIENTS])
    found = {metrics.TOKEN_COUNT: float(step.tokens)} | step.metrics()
    if intervening:
        return found
    return {name: found[name] for name in found if name not in _OF_AN_INTERVENTION}


def calibration_scalars(prediction: CalibratedPrediction) -> dict[str, float]:
    """The calibrated prediction and how far to trust it."""
    scalars: dict[str, float | None] = {
        metrics.ENTROPY_PREDICTED_CHANGE: prediction.predicted_change,
        metrics.ENTROPY_PREDICTED_CHANGE_LOW: prediction.low,
        metrics.ENTROPY_PREDICTED_CHANGE_HIGH: prediction.high,
        metrics.ENTROPY_INTERVAL_COVERAGE: prediction.interval_coverage,
        metrics.ENTROPY_GAIN: prediction.gain,
        metrics.ENTROPY_GAIN_ERROR: prediction.gain_error,
        metrics.ENTROPY_PREDICTION_R2: prediction.r2,
        metrics.ENTROPY_PREDICTION_SIGN_AGREEMENT: prediction.sign_agreement,
    }
    return {name: value for name, value in scalars.items() if value is not None}


def coupled_parts(coupled: Coupled, prediction: CalibratedPrediction) -> dict[str, float]:
    """The coupled prediction in its parts, which sum to it; empty where they are not known."""
    predicted = prediction.predicted_change
    if predicted is None or not coupled.change or not math.isfinite(coupled.by_momentum):
        return {}
    level = predicted / coupled.change
    by_momentum, by_weight_decay = level * coupled.by_momentum, level * coupled.by_weight_decay
    return {
        metrics.ENTROPY_PREDICTED_BY_MOMENTUM: by_momentum,
        metrics.ENTROPY_PREDICTED_BY_WEIGHT_DECAY: by_weight_decay,
        metrics.ENTROPY_PREDICTED_BY_BATCH: predicted - by_momentum - by_weight_decay,
    }


def report_histograms(step: StepSums) -> tuple[ScoreHistogram, ...]:
    """The step's distributions as they are reported; none without tokens."""
    if not step.tokens:
        return ()
    return tuple(
        ScoreHistogram(
            name=name,
            low=histogram.low,
            high=histogram.high,
            counts=histogram.counts,
            not_finite=step[NOT_FINITE],
        )
        for (name, _), histogram in zip(HISTOGRAMS.values(), step[TOKEN_HISTOGRAMS], strict=True)
    )
