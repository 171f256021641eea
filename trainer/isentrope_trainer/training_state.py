"""All that changes while a policy is trained, put together from the settings; `checkpoint.py` saves it."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isentrope_trainer.algorithms.adaptive_entropy import AdaptiveEntropyCoefficient
from isentrope_trainer.algorithms.prime import ProcessReward
from isentrope_trainer.models.policy import Policy, ValueHead
from isentrope_trainer.models.sampling import StaleSampler
from isentrope_trainer.ranks import Ranks
from isentrope_trainer.settings import ALGORITHMS, TrainingConfig

# Each rank draws from a generator of its own; that of the first is the seed's, as without ranks.
_RANK_STRIDE = 1_000_003


class TrainingState:
    """The policy with its optimiser, the models that the algorithm needs beside it, and where the run is."""

    def __init__(self, policy: Policy, config: TrainingConfig, ranks: Ranks) -> None:
        algorithm, loss = ALGORITHMS[config.algorithm], config.effective_loss()
        device = policy.model.device
        self.policy = policy
        self.ranks = ranks
        self.step = 0
        """Optimiser updates made."""
        self.next_problem = 0
        self.generator = torch.Generator(device).manual_seed(config.seed + _RANK_STRIDE * ranks.rank)
        self.value_head = ValueHead(policy.model.config.hidden_size).to(device) if algorithm.value_head else None
        self.process_reward = ProcessReward(policy, config.process_reward, ranks) if algorithm.process_reward else None
        self.reference: PreTrainedModel | None = None
        """What the policy was at the start of the run, for the divergence from it."""
        if loss.kl_coefficient > 0:
            self.reference = copy.deepcopy(policy.model).eval().requires_grad_(False)
        self.stale_sampler = StaleSampler(policy.model, config.sampler_lag) if config.sampler_lag else None
        self.adaptive_entropy = (
            None if config.adaptive_entropy is None else AdaptiveEntropyCoefficient(config.adaptive_entropy)
        )
        self.optimizer = torch.optim.AdamW(
            self.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )

    def parameters(self) -> list[Tensor]:
        """What the optimiser changes."""
        heads = [] if self.value_head is None else [self.value_head]
        return list(itertools.chain.from_iterable(module.parameters() for module in (self.policy.model, *heads)))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; `reference` is not among them, for the run begins with it."""
        return {
            "step": self.step,
            "next_problem": self.next_problem,
            "generator": self.generator.get_state(),
            "model": self.policy.model.state_dict(),
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()` of a state of the same settings, whose policy began with the same weights."""
        self.step, self.next_problem = state["step"], state["next_problem"]
        self.generator.set_state(state["generator"])
        self.policy.model.load_state_dict(state["model"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "optimizer": self.optimizer,
            "value_head": self.value_head,
            "process_reward": self.process_reward,
            "stale_sampler": self.stale_sampler,
            "adaptive_entropy": self.adaptive_entropy,
        }
        return {name: part for name, part in parts.items() if part is not None}
