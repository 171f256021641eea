"""Supervised learning on demonstrations, so that the first rollouts are well-formed and sometimes right.

A fixed number of steps makes it repeatable. The weights are kept in the home folder under a name that hashes all that
determines them, so a second run starts at once and a changed setting never meets old weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import LlamaForCausalLM

from isentrope_trainer.models.policy import PolicyConfig, build_policy, completion_logits
from isentrope_trainer.tasks.demonstrations import SHAPES, demonstration_batch
from isentrope_trainer.tasks.vocabulary import EOS_ID, WORDS
from isentrope_wire import environment

CODE_VERSION = 1
"""Raise it when a change to this file or to the demonstrations makes old weights wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How much is learned before reinforcement begins: enough to solve one problem in six, at a high entropy."""

    steps: int = 520
    batch_size: int = 128
    learning_rate: float = 1e-3
    noise: float = 0.5
    """Share of demonstrations that use the right numbers but needn't reach the target."""
    seed: int = 0


def warm_started_policy(policy_config: PolicyConfig, config: WarmStartConfig) -> LlamaForCausalLM:
    """The policy after its warm start, from the cache where it has been trained before."""
    path = cache_path(policy_config, config)
    policy = build_policy(policy_config, config.seed)
    if path.exists():
        policy.load_state_dict(torch.load(path, weights_only=True))
        return policy
    _train(policy, config)
    _save(policy, path)
    return policy


def cache_path(policy_config: PolicyConfig, config: WarmStartConfig) -> Path:
    """Where the weights of exactly this warm start are kept: `ISENTROPE_HOME/trainer/warm-start-HASH.pt`."""
    determinants = {
        "code_version": CODE_VERSION,
        "torch": torch.__version__,
        "policy": dataclasses.asdict(policy_config),
        "warm_start": dataclasses.asdict(config),
        "vocabulary": WORDS,
        "shapes": list(SHAPES),
    }
    digest = hashlib.sha256(json.dumps(determinants, sort_keys=True).encode()).hexdigest()[:16]
    return environment.home() / "trainer" / f"warm-start-{digest}.pt"


def _train(policy: LlamaForCausalLM, config: WarmStartConfig) -> None:
    generator = random.Random(config.seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    policy.train()
    for _ in (progress := tqdm(range(config.steps), desc="warm start", unit="step", dynamic_ncols=True)):
        prompts, completions = demonstration_batch(config.batch_size, config.noise, generator)
        loss = _imitation_loss(policy, prompts, completions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def _imitation_loss(policy: LlamaForCausalLM, prompts: Tensor, completions: Tensor) -> Tensor:
    logits = completion_logits(policy, prompts, completions)
    # The end marker is learned, the padding after it isn't.
    ends_before = (completions == EOS_ID).cumsum(dim=1) - (completions == EOS_ID).long()
    taught = ends_before == 0
    return cross_entropy(logits[taught], completions[taught])


def _save(policy: LlamaForCausalLM, path: Path) -> None:
    # Renamed into place when complete: another run never loads half a file.
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(policy.state_dict(), file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
