"""PRIME: rewards of tokens from a second language model that learns online which completions are right.

    r_t = beta (log p_phi - log p_ref) of token t        R_phi = sum over t of r_t
    L_phi = -[R log sigma(R_phi) + (1 - R) log(1 - sigma(R_phi))]                          arXiv:2502.01456, eq. 3 and 5

p_phi begins as the policy does, and p_ref stays what the policy began as. Trained on outcomes alone, their ratio rewards each
token for making a right answer likelier. It learns from a batch before that batch's tokens are rewarded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.ranks import Ranks
from isentrope_trainer.rollout import Rollouts
from isentrope_trainer.settings import ProcessRewardConfig


class ProcessReward:
    """The reward model, its optimiser and the frozen reference."""

    def __init__(self, policy: Policy, config: ProcessRewardConfig, ranks: Ranks | None = None) -> None:
        """Model and reference begin as two copies of the policy."""
        self._policy = policy
        self._beta = config.beta
        self._ranks = ranks or Ranks()
        self.reference: PreTrainedModel = copy.deepcopy(policy.model).eval().requires_grad_(False)
        self.model: PreTrainedModel = copy.deepcopy(policy.model).train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate, weight_decay=0.0)

    def learn(self, rollouts: Rollouts, rewards: Tensor) -> float:
        """One update from the outcomes of a batch, rewards [prompts, group size] between 0 and 1; return the loss
        before it, in nats.
        """
        sums = (self._token_rewards(rollouts) * rollouts.mask).sum(dim=1)
        loss = binary_cross_entropy_with_logits(sums, rewards.reshape(-1).to(sums))
        self._optimizer.zero_grad()
        loss.backward()
        self._ranks.average_gradients(self.model.parameters())
        self._optimizer.step()
        return loss.item()

    @torch.no_grad()
    def token_rewards(self, rollouts: Rollouts) -> Tensor:
        """[rollouts, completion length], 0 on padding."""
        return self._token_rewards(rollouts) * rollouts.mask

    def _token_rewards(self, rollouts: Rollouts) -> Tensor:
        with torch.no_grad():
            reference = self._policy.logprobs(rollouts, model=self.reference)
        return self._beta * (self._policy.logprobs(rollouts, model=self.model) - reference)

    def state_dict(self) -> dict[str, Any]:
        """Without the reference, which is what the run begins with."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
