"""What `trl.py` reads from the inputs of TRL's loss, and from the parameters of the loss.

Scores, mask, groups and log-probs of the sampler, as `Probe.gate` takes them.

The weight of a token in the gradient, `loss_weights` of the gate: the gradient of TRL's losses with respect to a token's
log-prob is -w A, up to the loss's denominator. The plain importance-weighted surrogate has w = r. Each function here
returns w / r, one per token: 1 where the loss changes nothing, 0 where it clips the token. `loss_kl_strengths` is what
the KL term of the loss adds.

For the observed change: a bounded sample of a step's tokens, scored once more after the optimiser's update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.scores import TokenScores, inside_clip, kl_strengths

_ODD = -0x61C8864680B583EB
"""The golden ratio's bits, as an odd int64: multiplying by it spreads numbers that are close together."""

Inputs = Mapping[str, Any]
"""The inputs of TRL's `_compute_loss`: prompt and completion ids and masks, advantages and others."""


def completion_scores(records: Sequence[TokenScores], logprobs: Tensor) -> TokenScores:
    """The scores of the completions, from those of each chunk's whole sequences.

    Args:
        records: one per chunk of rows, [rows, tokens - 1].
        logprobs: as TRL returned them, [batch, completion].

    Returns:
        Scores of the log-probs' shape, with these log-probs themselves, without token ids.
    """

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:, -logprobs.shape[1] :] for part in parts])

    squared = [record.squared_scores for record in records if record.squared_scores is not None]
    return TokenScores(
        logprobs=logprobs,
        entropies=joined([record.entropies for record in records]),
        discriminator_scores=joined([record.discriminator_scores for record in records]),
        expected_scores=joined([record.expected_scores for record in records]),
        vocab_centered_scores=joined([record.vocab_centered_scores for record in records]),
        squared_scores=joined(squared) if squared else None,
        temperature=records[0].temperature,  # TRL has one, a number
    )


def token_mask(inputs: Inputs) -> Tensor:
    """Non-zero where a token counts in TRL's loss: completion tokens, no padding, none that a tool wrote."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def prompt_groups(inputs: Inputs) -> Tensor:
    """A number per sequence, [batch], equal for rollouts of one prompt; the same on every rank.

    TRL shuffles the rollouts of a prompt over micro-batches: only the prompt itself identifies them. The number is a
    hash of its token ids, each multiplied by an odd number that depends on its position from the end, since prompts are
    padded on the left.
    """
    ids: Tensor = inputs["prompt_ids"]
    places = torch.arange(ids.shape[1], 0, -1, device=ids.device)
    odd = (places * _ODD) ^ (places * _ODD >> 29) | 1
    hashed = ((ids + 1) * inputs["prompt_mask"] * odd).sum(1) * _ODD
    groups: Tensor = (hashed >> 12) & ((1 << 52) - 1)
    return groups


def sampler_logprobs(inputs: Inputs, logprobs: Tensor, level: str) -> Tensor | None:
    """Log-probs such that log-prob minus these is the logarithm of TRL's importance ratio; None: the ratio is 1.

    Args:
        inputs: of `_compute_loss`.
        logprobs: of the policy, [batch, completion].
        level: "token"; "sequence" where GRPO takes the mean over a sequence (GSPO).

    Returns:
        [batch, completion]. RLOO's ratio is that of whole sequences: all tokens of one share it.
    """
    logprobs, mask = logprobs.detach(), token_mask(inputs)
    old_sums: Tensor | None = inputs.get("old_logps")
    old: Tensor | None = inputs.get("old_per_token_logps")
    if old_sums is not None:
        return logprobs - ((logprobs * mask).sum(1) - old_sums).unsqueeze(1)
    if old is None or level == "token":
        return old
    lengths = mask.sum(1).clamp(min=1)
    return logprobs - (((logprobs - old) * mask).sum(1) / lengths).unsqueeze(1)


CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Loss types with PPO's clip. RLOO has the clip too, but no loss type."""

LARGEST_LOG_RATIO, SMALLEST_SEQUENCE_RATIO, SMALLEST_LAMBDA = 20.0, 1e-8, 1e-4
"""The bounds that TRL puts on VESPO's ratios and λ."""


def loss_weights(trainer: Any, inputs: Inputs, logprobs: Tensor, ratios: Tensor) -> Tensor:
    """w / r of each token, [batch, tokens]: r A times this is the token's weight in the gradient of TRL's loss.

    Args:
        trainer: its loss type and the parameters of the loss are read.
        inputs: of `_compute_loss`: advantages [batch] or [batch, tokens], old log-probs and masks.
        logprobs: of the policy, without gradient, [batch, tokens].
        ratios: r as the loss has it, of tokens or of sequences, [batch, tokens].
    """
    args = trainer.args
    advantages: Tensor = inputs["advantages"]
    advantages = (advantages if advantages.dim() == 2 else advantages.unsqueeze(1)).expand_as(ratios)
    loss_type = getattr(trainer, "loss_type", "grpo")
    if loss_type in CLIPPED_LOSSES:
        delta = getattr(args, "delta", None)
        return inside_clip(advantages, ratios, trainer.epsilon_low, trainer.epsilon_high, delta).to(ratios.dtype)
    if loss_type == "cispo":
        return cispo_weight(ratios, trainer.epsilon_high)
    if loss_type == "sapo":
        return sapo_weight(advantages, ratios, args.sapo_temperature_pos, args.sapo_temperature_neg)
    if loss_type == "vespo":
        positive, negative = (args.vespo_k_pos, args.vespo_lambda_pos), (args.vespo_k_neg, args.vespo_lambda_neg)
        log_ratios = logprobs - inputs["old_per_token_logps"]
        phi = vespo_weight(advantages, log_ratios, token_mask(inputs), positive, negative)
        # φ replaces r. Where r is 0 in float32, there is nothing to replace.
        return torch.where(ratios > 0, phi / ratios, 0.0)
    return torch.ones_like(ratios)


def loss_kl_strengths(trainer: Any, inputs: Inputs, logprobs: Tensor, ratios: Tensor | None) -> Tensor | None:
    """What the KL term of TRL's loss adds to r A, [batch, tokens]; None where there is no term, or it is not known.

    With `use_bias_correction_kl` the estimator k is weighted by the ratio, which has a gradient too: that of beta r k is
    beta r log(p / p_ref). For ratios of whole sequences it is not known. RLOO's KL is part of the reward, and so of A.

    Args:
        ratios: r as the loss has it; None: 1.
    """
    reference: Tensor | None = inputs.get("ref_per_token_logps")
    if reference is None or "old_logps" in inputs or not trainer.beta:
        return None
    if not getattr(trainer.args, "use_bias_correction_kl", False):
        return kl_strengths(logprobs, reference, float(trainer.beta))
    if getattr(trainer, "importance_sampling_level", "token") != "token":
        return None
    pull: Tensor = trainer.beta * (reference - logprobs)
    return pull if ratios is None else ratios * pull


def cispo_weight(ratios: Tensor, high: float) -> Tensor:
    """min(r, ε_high) / r: CISPO bounds the weight of a log-prob, which keeps its gradient.

        loss = -sg(min(r, ε_high)) A log p        arXiv:2506.13585; TRL bounds r by ε_high itself, not by 1 + ε_high

    Args:
        ratios: r, [batch, tokens].
        high: ε_high.
    """
    return (high / ratios).clamp(max=1.0)


def sapo_weight(advantages: Tensor, ratios: Tensor, temperature_positive: float, temperature_negative: float) -> Tensor:
    """4 σ(τ (r - 1)) (1 - σ(τ (r - 1))): the slope in r of SAPO's soft gate; 1 at r = 1.

        loss = -4 / τ σ(τ (r - 1)) A        arXiv:2511.20347

    Args:
        advantages: A, [batch, tokens].
        ratios: r, [batch, tokens].
        temperature_positive: τ where A > 0.
        temperature_negative: τ elsewhere.
    """
    temperatures = torch.where(advantages > 0, temperature_positive, temperature_negative)
    gate = torch.sigmoid(temperatures * (ratios - 1))
    return 4 * gate * (1 - gate)


def vespo_weight(
    advantages: Tensor,
    log_ratios: Tensor,
    mask: Tensor,
    positive: tuple[float, float],
    negative: tuple[float, float],
) -> Tensor:
    """φ(w) = exp(λ + k log w - λ w) of the whole sequence's ratio w, by which VESPO replaces r; 1 at w = 1.

        loss = -sg(φ(w)) A log p        arXiv:2602.10693; TRL keeps w within [1e-8, e^20]

    Args:
        advantages: A, [batch, tokens].
        log_ratios: log r of each token, [batch, tokens].
        mask: non-zero where the token counts.
        positive: (k, λ) where A >= 0.
        negative: (k, λ) where A < 0.

    Returns:
        [batch, tokens].
    """
    sums = (log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO) * mask).sum(1, keepdim=True)
    log_weight = sums.clamp(math.log(SMALLEST_SEQUENCE_RATIO), LARGEST_LOG_RATIO)
    k = torch.where(advantages >= 0, positive[0], negative[0])
    rate = torch.where(advantages >= 0, positive[1], negative[1]).clamp(min=SMALLEST_LAMBDA)
    return (rate + k * log_weight - rate * log_weight.exp()).exp()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The sequences of one `gate` call: prompt [rows, prompt], completion [rows, completion]."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    text_only: bool
    """False: there are images; such sequences are not sampled."""

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> MicroBatch:
        """The sequences among the inputs of TRL's loss."""
        return cls(
            prompt_ids=inputs["prompt_ids"],
            prompt_mask=inputs["prompt_mask"],
            completion_ids=inputs["completion_ids"],
            completion_mask=inputs["completion_mask"],
            text_only=inputs.get("pixel_values") is None,
        )


def default_tokens(batches: Sequence[MicroBatch]) -> int:
    """How many tokens to score again: a sixteenth of the step, about a fiftieth of its cost; at least one sequence."""
    sizes = [batch.prompt_ids.numel() + batch.completion_ids.numel() for batch in batches]
    longest = max((batch.prompt_ids.shape[1] + batch.completion_ids.shape[1] for batch in batches), default=0)
    return max(sum(sizes) // 16, longest)


@dataclass(frozen=True, slots=True)
class Sample:
    """Which sequences are scored again: the first `rows[i]` of micro-batch i, and `completion` tokens of each."""

    rows: tuple[int, ...]
    completion: int

    @classmethod
    def of(cls, batches: Sequence[MicroBatch], step: int, tokens: int) -> Sample | None:
        """As many sequences as fit into `tokens` tokens, prompt and padding included; None where none can be scored.

        Each step starts with another micro-batch, and takes those of the same width, so that one forward is enough. TRL
        has shuffled the sequences, so the first ones are a random sample. Where not even one fits, its end is cut off.
        """
        turn = [(step + offset) % len(batches) for offset in range(len(batches))]
        first = next((index for index in turn if batches[index].text_only), None)
        if first is None:
            return None
        prompt, completion = (part.shape[1] for part in (batches[first].prompt_ids, batches[first].completion_ids))
        room = max(1, tokens // (prompt + completion))
        rows = [0] * len(batches)
        for index in turn:
            batch = batches[index]
            if batch.text_only and (batch.prompt_ids.shape[1], batch.completion_ids.shape[1]) == (prompt, completion):
                rows[index] = min(room - sum(rows), batch.completion_ids.shape[0])
        completion = min(completion, tokens - prompt)
        return cls(tuple(rows), completion) if completion > 0 else None

    def forward_inputs(self, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor, int]:
        """Input ids and attention mask [rows, prompt + completion], and the number of completion tokens at the end."""
        chosen = [(batch, rows) for batch, rows in zip(batches, self.rows, strict=True) if rows]
        ids, mask = (
            torch.cat(
                [
                    torch.cat([getattr(batch, prompt)[:rows], getattr(batch, completion)[:rows, : self.completion]], 1)
                    for batch, rows in chosen
                ]
            )
            for prompt, completion in (("prompt_ids", "completion_ids"), ("prompt_mask", "completion_mask"))
        )
        return ids, mask, self.completion

    def spread(self, entropies: Tensor, batches: Sequence[MicroBatch]) -> list[TokenScores]:
        """Scores for the tokens of every `gate` call, NaN outside the sample, from its entropies [rows, completion]."""
        parts = iter(entropies.split([rows for rows in self.rows if rows]))
        return [
            _entropies_only(batch.completion_ids, next(parts) if rows else None)
            for batch, rows in zip(batches, self.rows, strict=True)
        ]


def _entropies_only(completion_ids: Tensor, entropies: Tensor | None) -> TokenScores:
    missing = torch.full(completion_ids.shape, torch.nan, device=completion_ids.device)
    known = missing
    if entropies is not None:
        known = missing.to(entropies.dtype, copy=True)
        known[: entropies.shape[0], : entropies.shape[1]] = entropies
    return TokenScores(missing, known, missing, missing, missing)


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Switch dropout on, as in the forward that was scored first: after an evaluation the model is in eval mode."""
    evaluating = [module for module in model.modules() if not module.training] if not model.training else []
    for module in evaluating:
        module.training = True
    try:
        yield
    finally:
        for module in evaluating:
            module.training = False
