"""What `trl.py` reads from the inputs of TRL's loss.

Scores, mask, groups and log-probs of the old policy, as `Probe.gate` takes them.

For the observed change: a bounded sample of a step's tokens, scored once more after the optimiser's update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.scores import TokenScores

_ODD = -0x61C8864680B583EB
"""The golden ratio's bits, as an odd int64: multiplying by it spreads numbers that are close together."""

SAMPLED = "sampling_per_token_logps"
"""Among the inputs of TRL's loss: log-probs that vLLM, or a `rollout_func`, drew the tokens with, [batch, completion]; NaN where
vLLM had none."""

Inputs = Mapping[str, Any]
"""The inputs of TRL's `_compute_loss`: prompt and completion ids and masks, advantages and others."""


def completion_scores(records: Sequence[TokenScores], logprobs: Tensor, entropies: Tensor | None = None) -> TokenScores:
    """The scores of the completions, from those of each chunk's whole sequences.

    Args:
        records: one per chunk of rows, [rows, tokens - 1].
        logprobs: as TRL returned them, [batch, completion].
        entropies: the same; None: it returned none.

    Returns:
        Scores of the log-probs' shape, with these log-probs and entropies themselves, without token ids.
    """

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:, -logprobs.shape[1] :] for part in parts])

    squared = [record.squared_scores for record in records if record.squared_scores is not None]
    return TokenScores(
        logprobs=logprobs,
        entropies=joined([record.entropies for record in records]) if entropies is None else entropies,
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


def truncated(trainer: Any, inputs: Inputs) -> Tensor | None:
    """Which completions the length limit ended, [batch]: their last token ends no turn; None: not known."""
    ends = {*getattr(trainer, "eos_token_ids", ())}
    if not ends:
        return None
    ids, mask = inputs["completion_ids"], inputs["completion_mask"]
    last = ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
    found = torch.ones_like(last, dtype=torch.bool)
    for end in ends:
        found &= last != end
    return found


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


def old_logprobs(inputs: Inputs, logprobs: Tensor, level: str) -> Tensor | None:
    """Log-probs such that log-prob minus these is the logarithm of TRL's importance ratio; None: it has none, so that it is 1.

    Where a sampler's log-probs are known a ratio of 1 is written out: without one the gate would take the ratio to the sampler,
    which is no part of TRL's loss.

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
    if old is None:
        return None if inputs.get(SAMPLED) is None else logprobs
    if level == "token":
        return old
    lengths = mask.sum(1).clamp(min=1)
    return logprobs - (((logprobs - old) * mask).sum(1) / lengths).unsqueeze(1)


def with_kl_part(trainer: Any, inputs: Inputs) -> Inputs:
    """The inputs with reference log-probs that get a gradient, where TRL's loss has a KL term of which it tells the share.

    The term is a function of log p_ref - log p alone: its gradient by log p is minus that by log p_ref. With
    `use_bias_correction_kl` it depends on the ratio too, and its share is not known. RLOO's KL is part of the reward.
    """
    reference: Tensor | None = inputs.get("ref_per_token_logps")
    corrected = getattr(trainer.args, "use_bias_correction_kl", False)
    if reference is None or "old_logps" in inputs or not trainer.beta or corrected:
        return inputs
    return {**inputs, "ref_per_token_logps": reference.detach().requires_grad_()}


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
