"""Supervised learning on demonstrations, so that the first rollouts are well-formed and sometimes right.

A fixed number of steps makes it repeatable, and the weights are rounded to half precision at its end. They are kept in a
file whose name hashes all that determines them, so a changed setting never meets old weights: those of the default
settings beside this module, where this command puts them, all others in the home folder.

    python -m isentrope_trainer.models.warm_start
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

import click
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import LlamaForCausalLM

from isentrope_trainer.models.policy import PolicyConfig, build_policy, completion_logits
from isentrope_trainer.tasks.demonstrations import SHAPES, demonstration_batch
from isentrope_trainer.tasks.vocabulary import EOS_ID, WORDS
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError

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
    """The policy after its warm start: as shipped, from the home where it has been trained before, or trained now.

    Raises:
        ConfigurationError: trained weights can't be kept; raised before the minute that training takes.
    """
    policy = build_policy(policy_config, config.seed)
    path = shipped_path(policy_config, config)
    if not path.exists():
        path = cache_path(policy_config, config)
        _make_folder(path.parent)
    if path.exists():
        policy.load_state_dict(load_file(path))
    else:
        train_warm_start(policy, config)
        save_weights(policy, path)
    return policy


def shipped_path(policy_config: PolicyConfig, config: WarmStartConfig) -> Path:
    """Where the package holds the weights of exactly this warm start, if it does. Other CPUs and other versions of torch
    train other last digits; those shipped are the same for all."""
    return Path(__file__).with_name(_file_name(policy_config, config))


def cache_path(policy_config: PolicyConfig, config: WarmStartConfig) -> Path:
    """Where the home keeps the weights that were trained there: `ISENTROPE_HOME/trainer/warm-start-HASH.safetensors`."""
    return environment.home() / "trainer" / _file_name(policy_config, config, torch=torch.__version__)


def _file_name(policy_config: PolicyConfig, config: WarmStartConfig, **more: str) -> str:
    determinants = {
        "code_version": CODE_VERSION,
        "policy": dataclasses.asdict(policy_config),
        "warm_start": dataclasses.asdict(config),
        "vocabulary": WORDS,
        "shapes": list(SHAPES),
        **more,
    }
    digest = hashlib.sha256(json.dumps(determinants, sort_keys=True).encode()).hexdigest()[:16]
    return f"warm-start-{digest}.safetensors"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The warm start is kept in {folder}, which can't be made ({error.strerror}). Point ISENTROPE_HOME at a folder "
            "you can write to."
        ) from error


def train_warm_start(policy: LlamaForCausalLM, config: WarmStartConfig) -> None:
    """Teach `policy` in place, and round its weights to what half precision holds, as the shipped ones are."""
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
    with torch.no_grad():
        for weights in policy.parameters():
            weights.copy_(weights.half())


def _imitation_loss(policy: LlamaForCausalLM, prompts: Tensor, completions: Tensor) -> Tensor:
    logits = completion_logits(policy, prompts, completions)
    # The end marker is learned, the padding after it isn't.
    ends_before = (completions == EOS_ID).cumsum(dim=1) - (completions == EOS_ID).long()
    taught = ends_before == 0
    return cross_entropy(logits[taught], completions[taught])


def save_weights(policy: LlamaForCausalLM, path: Path) -> None:
    """Write the weights in half precision. Renamed into place when complete: another run never loads half a file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(descriptor)
    try:
        save_file({name: weights.half() for name, weights in policy.state_dict().items()}, temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="[default: where the package holds them]")
def main(out: Path | None) -> None:
    """Train the warm start of the default settings, and write its weights. Takes a minute and a half on two cores."""
    policy_config, config = PolicyConfig(), WarmStartConfig()
    policy = build_policy(policy_config, config.seed)
    train_warm_start(policy, config)
    path = out or shipped_path(policy_config, config)
    save_weights(policy, path)
    click.echo(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
