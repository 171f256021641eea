"""The influence of each token: what its part of an update does to the mean entropy H, to first order, in nats.

    i_t = g_t <grad log p_t, v>        v = P h, h = dH/dtheta (`coupling.py`), g_t = -dL / dlog p_t
    sum_t i_t = -<v, G>                G = dL/dtheta as the optimiser was given it

An update moves the weights by -P G, and by momentum and weight decay, which belong to no token. The slopes <grad log p_t, v> of
all tokens come of two forward passes: (log p_t(theta + eps v) - log p_t(theta - eps v)) / 2 eps, with eps such that the mean
entropy moves by SHIFT. theta are the weights before the update, without which the sum would not be that of G: the optimiser's
state says where they were. A gradient that the loss has by H_t, of an entropy bonus, counts likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isentrope.scores.token_scores import TokenScores
from isentrope.statistics.coupling import EntropyGradient, is_sharded
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.errors import ConfigurationError

SHIFT = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Nats by which H moves, by the weights' type: far above the round-off of a log-prob, small enough to be a slope."""


class Slopes(NamedTuple):
    """Derivatives along v, of a rank's tokens in the order of its `gate` calls; float64, on the device."""

    logprobs: Sequence[Tensor]
    entropies: Sequence[Tensor]
    expected: Tensor
    """-<v, G>, a scalar."""


class TokenInfluence:
    """Takes the slopes at every n-th step; belongs to the training thread and never waits for the device.

    With it a run makes the same steps: the weights are put back bit for bit, whatever raises, and no gradient is changed.
    """

    def __init__(self, coupling: EntropyGradient, every: int) -> None:
        self._coupling, self._every = coupling, every
        self._steps = 0

    def slopes(
        self, batches: Sequence[TokenBatch], score: Callable[[], Sequence[TokenScores | None]] | None
    ) -> Slopes | None:
        """Of the step whose update was just made; None where it is not due, or there is no h yet.

        Args:
            score: scores the tokens of all batches under the weights as they are then. None: nothing does.

        Raises:
            ConfigurationError: there is no influence to be had.
        """
        self._steps += 1
        parts = [*self._coupling.parts()]
        if self._steps % self._every or not parts:
            return None
        _check([weight for _, _, weight, _ in parts])
        if score is None:
            raise ConfigurationError("it needs a rescore of all tokens.")
        along = torch.zeros((), dtype=torch.float64, device=parts[0][3].device)
        expected = along.clone()
        for optimizer, group, weight, h in parts:
            update = _update_of(optimizer, group, weight, weight.data)
            if update is not None and weight.grad is not None:
                v = update.scale * h
                along += (v * h).sum(dtype=torch.float64).to(along.device)
                expected -= (v * weight.grad).sum(dtype=torch.float64).to(along.device)
        eps = min(SHIFT[weight.dtype] for _, _, weight, _ in parts) / along
        kept = [weight.data.clone() for _, _, weight, _ in parts]

        def scored(distance: Tensor) -> list[tuple[Tensor, Tensor]]:
            for (optimizer, group, weight, h), after in zip(parts, kept, strict=True):
                update = _update_of(optimizer, group, weight, after)
                if update is not None:
                    # By `data`: graphs that the loop keeps do not count this as a change.
                    weight.data.copy_(update.before + distance.to(h.device) * update.scale * h)
            return [_numbers(*pair) for pair in zip(score(), batches, strict=bool(batches))]

        def put_back() -> None:
            for (_, _, weight, _), after in zip(parts, kept, strict=True):
                weight.data.copy_(after)

        try:
            pairs = [*zip(scored(eps), scored(-eps), strict=True)]
        finally:
            try:
                put_back()
            except BaseException:  # an interrupt meanwhile
                put_back()
                raise
        logprobs, entropies = ([(up[i] - down[i]) / (2 * eps) for up, down in pairs] for i in (0, 1))
        return Slopes(logprobs, entropies, expected)


def _numbers(scores: TokenScores | None, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    assert scores is not None
    found = scores.logprobs.double(), scores.entropies.double()
    return found if batch.packing is None else (batch.packing.rows(found[0]), batch.packing.rows(found[1]))


def _check(weights: Sequence[Tensor]) -> None:
    if any(map(is_sharded, weights)):
        raise ConfigurationError("it needs whole weights on every rank; these are sharded.")
    if any(weight.dtype not in SHIFT for weight in weights):
        raise ConfigurationError(
            f"it needs weights in float32 or float64, got {weights[0].dtype}: rounding hides a slope."
        )
    if all(weight.grad is None for weight in weights):
        raise ConfigurationError(
            "the gradients were cleared before probe.step, without which the sum can't be checked."
        )


class _Update(NamedTuple):
    scale: Tensor | float
    """P of these weights: theta moves by -P G."""
    before: Tensor
    """The weights before the update."""


def _update_of(optimizer: Any, group: Mapping[str, Any], weight: Tensor, after: Tensor) -> _Update | None:
    """Of the update just made, from what the optimiser keeps; None: it did not move these weights.

    Raises:
        ConfigurationError: its rule is not known.
    """
    if weight.grad is None:
        return None
    state, rate = optimizer.state.get(weight, {}), group["lr"]
    if isinstance(optimizer, torch.optim.Adam) and not (group["amsgrad"] or group["maximize"]):
        (first, second), updates = group["betas"], state["step"].double()
        spread = (state["exp_avg_sq"] / (1 - second**updates)).sqrt() + group["eps"]
        of_mean = rate / (1 - first**updates) / spread
        decay = 1 - rate * group["weight_decay"] if group.get("decoupled_weight_decay") else 1.0
        return _Update(of_mean * (1 - first), (after + of_mean * state["exp_avg"]) / decay)
    if isinstance(optimizer, torch.optim.SGD) and not (group["nesterov"] or group["maximize"]):
        if (buffer := state.get("momentum_buffer")) is not None:
            return _Update(rate * (1 - group["dampening"]), after + rate * buffer)
        return _Update(rate, (after + rate * weight.grad) / (1 - rate * group["weight_decay"]))
    raise ConfigurationError(
        f"it needs torch's Adam, AdamW or SGD, without amsgrad, maximize and Nesterov's step; got {type(optimizer).__name__}."
    )
