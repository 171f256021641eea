"""The influence of each token: what its part of an update does to the mean entropy H, to first
order, in nats.

    i_t = g_t <grad log p_t, v>        v = P h, h = dH/dtheta (`coupling.py`), g_t = -dL / dlog p_t
    sum_t i_t = -<v, G>                G = dL/dtheta as the optimiser was given it

An update moves the weights by -P G, and by momentum and weight decay, which belong to no token. The
slopes <grad log p_t, v> of all tokens come of two forward passes: (log p_t(theta + eps v) - log
p_t(theta - eps v)) / 2 eps, with eps such that the mean entropy moves by SHIFT. theta are the
weights before the update, without which the sum would not be that of G: the optimiser's state says
where they were. A gradient that the loss has by H_t, of an entropy bonus, counts likewise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isentrope.scores.token_scores import TokenScores
from isentrope.statistics.coupling import EntropyGradient, is_sharded
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.errors import ConfigurationError

SHIFT = 1e-3
"""Nats by which H moves: far above round-off in float32, which models in float64 have inside, too;
small enough for a slope."""


class Slopes(NamedTuple):
    """Derivatives along v of a rank's tokens, one tensor a `gate` call, and -<v, G>; float64, on
    the device."""

    logprobs: Sequence[Tensor]
    entropies: Sequence[Tensor]
    expected: Tensor


class TokenInfluence:
    """Takes the slopes at every n-th step; belongs to the training thread and never waits for the
    device.

    With it a run makes the same steps: the weights are put back bit for bit, whatever raises, and
    no gradient is changed."""

    def __init__(self, coupling: EntropyGradient, every: int) -> None:
        self._coupling, self._every = coupling, every

    def is_due(self, ahead: int = 0) -> bool:
        """Whether the step whose update was just made has influences; with `ahead` 1, the step that
        is open."""
        return (
            bool(self._every)
            and (self._coupling.steps + ahead) % self._every == 0
            and any(self._coupling.parts())
        )

    def slopes(
        self,
        batches: Sequence[TokenBatch],
        score: Callable[[], Sequence[TokenScores | None]] | None,
    ) -> Slopes:
        """Of the step whose update was just made; `score` scores the tokens of all batches again.

        Raises:
            ConfigurationError: there is no influence to be had.
        """
        parts = [*self._coupling.parts()]
        _check([weight for _, _, weight, _ in parts])
        if score is None:
            raise ConfigurationError("it needs a rescore of all tokens.")
        along = torch.zeros((), dtype=torch.float64, device=parts[0][3].device)
        expected = along.clone()
        for optimizer, group, weight, h in parts:
            if weight.grad is not None:
                v = _update_of(optimizer, group, weight, weight.data)[0] * h
                along += (v * h).sum(dtype=torch.float64).to(along.device)
                expected -= (v * weight.grad).sum(dtype=torch.float64).to(along.device)
        eps = SHIFT / along
        kept = [weight.data.clone() for _, _, weight, _ in parts]

        def scored(distance: Tensor) -> list[list[Tensor]]:
            for (optimizer, group, weight, h), after in zip(parts, kept, strict=True):
                if weight.grad is not None:
                    scale, before = _update_of(optimizer, group, weight, after)
                    # By `data`: graphs that the loop keeps do not count this as a change.
                    weight.data.copy_(before + distance.to(h.device) * scale * h)
            return [
                [values.double() for values in (one.logprobs, one.entropies)]
                for one in score()
                if one is not None
            ]

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
        logprobs, entropies = (
            [(up[i] - down[i]) / (2 * eps) for up, down in pairs] for i in (0, 1)
        )
        return Slopes(logprobs, entropies, expected)


def _check(weights: Sequence[Tensor]) -> None:
    reasons = {
        "it needs whole weights on every rank, these are sharded.": map(is_sharded, weights),
        "it needs weights in float32 or float64.": (
            torch.finfo(one.dtype).bits < 32 for one in weights
        ),
        "the gradients were cleared before probe.step.": [
            all(weight.grad is None for weight in weights)
        ],
    }
    for reason, applies in reasons.items():
        if any(applies):
            raise ConfigurationError(reason)


def _update_of(
    optimizer: Any, group: Mapping[str, Any], weight: Tensor, after: Tensor
) -> tuple[Tensor | float, Tensor]:
    """P of these weights and what they were before the update just made, from what the optimiser
    keeps.

    Raises:
        ConfigurationError: its rule is not known.
    """
    state, rate = optimizer.state.get(weight, {}), group["lr"]
    if isinstance(optimizer, torch.optim.Adam) and not (group["amsgrad"] or group["maximize"]):
        (first, second), updates = group["betas"], state["step"].double()
        spread = (state["exp_avg_sq"] / (1 - second**updates)).sqrt() + group["eps"]
        of_mean = rate / (1 - first**updates) / spread
        decay = 1.0
        if group.get("decoupled_weight_decay"):
            decay = 1 - rate * group["weight_decay"]
        # Weights that no token of the step has, such as other embeddings: 1 / eps would be the step
        # that is taken along them.
        return (
            of_mean * (1 - first) * (weight.grad != 0),
            (after + of_mean * state["exp_avg"]) / decay,
        )
    if isinstance(optimizer, torch.optim.SGD) and not (group["nesterov"] or group["maximize"]):
        if (buffer := state.get("momentum_buffer")) is not None:
            return rate * (1 - group["dampening"]), after + rate * buffer
        assert weight.grad is not None
        return rate, (after + rate * weight.grad) / (1 - rate * group["weight_decay"])
    raise ConfigurationError(
        "it needs torch's Adam, AdamW or SGD, without amsgrad, maximize and Nesterov's step; got"
        f" {type(optimizer).__name__}."
    )
