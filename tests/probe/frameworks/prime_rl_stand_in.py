"""A stand-in for prime-rl's trainer, written for these tests: no line of it is prime-rl's.

It has the fused heads, the losses with their settings, and the names and layouts that the adapter
uses, as at commit 559b447: packs of batch size 1, a temperature per token, log-probs of each token
at its own place, samples as parts of that tensor, samples without a token to learn from skipped,
tokens counted over all ranks, gradients added up. No FSDP and no GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH = 24, 16
LENGTHS = (7, 5, 9)
SKIPPED = 1
"""The sample of each pack that has no token to learn from."""
MICRO_BATCHES, MAX_NORM = 2, 0.05
COUNTED = MICRO_BATCHES * (sum(LENGTHS) - LENGTHS[SKIPPED] - 2)
"""Tokens of a step: without those skipped, and each sample's first."""


class FusedOutputLinear(nn.Linear):
    """prime_rl.trainer.models.layers.lm_head"""

    softcap: float | None = None

    def __init__(self) -> None:
        super().__init__(WIDTH, VOCABULARY, bias=False)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, labels: Tensor | None = None, temperature: Tensor | None = None
    ) -> dict[str, Tensor]:
        assert labels is not None
        assert temperature is not None
        logits = hidden_states @ self.weight.T
        if self.softcap is not None:
            logits = self.softcap * (logits / self.softcap).tanh()
        rows = (logits.float() / temperature.unsqueeze(-1)).log_softmax(-1)
        return {"logprobs": rows.gather(-1, labels.unsqueeze(-1)).squeeze(-1)}


class GemmaFusedOutputLinear(FusedOutputLinear):
    """prime_rl.trainer.models.layers.lm_head_gemma"""

    softcap = 2.0

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, labels: Tensor | None = None, temperature: Tensor | None = None
    ) -> dict[str, Tensor]:
        # Its own, as prime-rl's: wrapped apart from the other.
        unwrapped: Any = FusedOutputLinear.forward
        found: dict[str, Tensor] = getattr(unwrapped, "__wrapped__", unwrapped)(
            self, hidden_states, labels, temperature
        )
        return found


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass
class DefaultLossConfig:
    kl_tau: float = 1e-3


@dataclass
class IPOLossConfig:
    ipo_threshold: float = 0.1


def default_loss_fn(inputs: LossInputs, config: DefaultLossConfig) -> LossOutputs:
    apart = inputs.trainer_logprobs - inputs.inference_logprobs
    terms = config.kl_tau * apart**2 - inputs.advantages * apart.exp()
    weights = torch.ones_like(terms) if inputs.loss_weights is None else inputs.loss_weights
    return LossOutputs((terms * weights * inputs.loss_mask).sum(), {"kl": apart.detach().mean()})


def ipo_loss_fn(inputs: LossInputs, config: IPOLossConfig) -> LossOutputs:
    near = (
        inputs.trainer_logprobs.exp() - inputs.inference_logprobs.exp()
    ).abs() <= config.ipo_threshold
    ratios = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    return LossOutputs(-(near * inputs.advantages * ratios * inputs.loss_mask).sum(), {})


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the stand-in where prime-rl would be, and import the adapter as prime-rl does.

    Returns:
        The adapter's module.
    """
    adapter = "isentrope.integrations.prime_rl"
    of_modules: dict[str, list[Any]] = {
        "prime_rl.trainer.models.layers.lm_head": [FusedOutputLinear],
        "prime_rl.trainer.models.layers.lm_head_gemma": [GemmaFusedOutputLinear],
        "prime_rl.trainer.rl.loss": [default_loss_fn, ipo_loss_fn],
        "prime_rl.configs.trainer": [DefaultLossConfig, IPOLossConfig],
    }
    for name, members in of_modules.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[name].__dict__.update({member.__name__: member for member in members})
    for kind in (FusedOutputLinear, GemmaFusedOutputLinear):
        monkeypatch.setattr(kind, "forward", getattr(kind.forward, "__wrapped__", kind.forward))
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    return importlib.import_module(adapter)


class Trainer:
    """One rank: a tiny policy, and steps of two packs in the order of prime-rl's loop."""

    def __init__(
        self, loss: Callable[..., Any] | None = None, rank: int = 0, gemma: bool = False
    ) -> None:
        self.rank, self.ranks = rank, dist.get_world_size() if dist.is_initialized() else 1
        self._loss = loss or (lambda inputs: default_loss_fn(inputs, DefaultLossConfig()))
        torch.manual_seed(0)
        self.body, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            (GemmaFusedOutputLinear if gemma else FusedOutputLinear)(),
        )
        self.parameters = [self.body.weight, self.head.weight]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.random = torch.Generator().manual_seed(3 + rank)
        self.behind: list[Tensor] = []
        """Of each pack, the gradient of the head's log-probs, [tokens]."""

    def pack(self) -> tuple[Tensor, Tensor]:
        """Log-probs [1, tokens], each at its token's place, and advantages alike."""
        tokens = torch.randint(VOCABULARY, (1, sum(LENGTHS)), generator=self.random)
        labels = torch.cat([tokens[:, 1:], tokens.new_zeros(1, 1)], 1)
        temperature = torch.linspace(0.7, 1.3, labels.numel()).unsqueeze(0)
        found: Tensor = self.head(self.body(tokens), labels, temperature=temperature)["logprobs"]
        if found.requires_grad:
            found.register_hook(lambda gradient: self.behind.append(gradient.flatten().clone()))
        signs = torch.cat(
            [torch.full((n,), sign) for n, sign in zip(LENGTHS, (1.0, 0.5, -1.0), strict=True)]
        )
        return torch.cat([found.new_zeros(1, 1), found[:, :-1]], 1), signs.unsqueeze(0)

    def step(self) -> list[float]:
        """One update; the losses of its packs."""
        self.behind.clear()
        losses = []
        for _ in range(MICRO_BATCHES):
            logprobs, advantages = self.pack()
            own = logprobs.squeeze().split(LENGTHS)
            loss = own[0].sum() * 0.0
            for place, (part, signs) in enumerate(
                zip(own, advantages.squeeze().split(LENGTHS), strict=True)
            ):
                mask = torch.ones(len(part), dtype=torch.bool)
                mask[0] = False
                if place != SKIPPED:
                    sampled = part.detach() - 0.05
                    loss = loss + self._loss(LossInputs(part, sampled, None, signs, mask)).loss
            loss = loss / (self.ranks * COUNTED)
            loss.backward()
            losses.append(loss.item())
        for parameter in self.parameters:
            if self.ranks > 1 and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return losses

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])
