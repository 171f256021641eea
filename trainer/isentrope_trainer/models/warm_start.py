"""The family of small models, Llama-shaped, of one form in five sizes (`settings.SIZES`), over the
words of a task, one token a word. And their supervised learning on demonstrations, so that the
first rollouts are well-formed and sometimes right.

A fixed number of steps makes it repeatable, and the weights are rounded to half precision at its
end. They are kept in a file whose name hashes all that determines them, so a changed setting never
meets old weights: those of the default settings beside this module, where this command puts them,
all others in the home folder.

    python -m isentrope_trainer.models.warm_start
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from isentrope_trainer.models.policy import Policy, padded_reading
from isentrope_trainer.models.sampling import Rollouts, left_padded
from isentrope_trainer.settings import PolicyConfig, TaskConfig
from isentrope_trainer.tasks.base import Task, make_task
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError, IsentropeError

_MOST_POSITIONS = 128
"""Tokens of the longest prompt and answer of any task, and some more."""
MARKERS = PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(len(MARKERS))


class VocabularyError(IsentropeError, ValueError):
    """A word that the vocabulary does not have."""


class WordTokenizer:
    pad_token_id = PAD_ID
    bos_token_id = BOS_ID
    eos_token_ids = (EOS_ID,)

    def __init__(self, words: Sequence[str]) -> None:
        """The words are the task's; the markers come before them."""
        self.words = (*MARKERS, *words)
        self._ids = {word: token_id for token_id, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, after the marker that begins every text; see
        `encode_words`."""
        return [BOS_ID, *self.encode_words(text)]

    def encode_answer(self, text: str) -> list[int]:
        """The token ids of an answer, with the marker that ends it; see `encode_words`."""
        return [*self.encode_words(text), EOS_ID]

    def encode_words(self, text: str) -> list[int]:
        """The token ids of a text's words; VocabularyError: for a word that the vocabulary doesn't
        have."""
        try:
            return [self._ids[word] for word in text.split()]
        except KeyError as missing:
            raise VocabularyError(
                f"The vocabulary has {len(self.words)} words, {missing.args[0]!r} is not one of"
                " them."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The words of any token ids, apart by one space."""
        return " ".join(self.words[token_id] for token_id in token_ids)


def untrained_policy(task: Task, config: PolicyConfig, seed: int) -> Policy:
    """A model with fresh weights and the tokenizer of a task's words."""
    tokenizer = WordTokenizer(task.words)
    return Policy(build_policy(config, tokenizer, seed), tokenizer)


def build_policy(config: PolicyConfig, tokenizer: WordTokenizer, seed: int) -> LlamaForCausalLM:
    """A model with fresh weights; the same seed gives the same weights and leaves the global
    generator alone."""
    architecture = LlamaConfig(
        vocab_size=len(tokenizer.words),
        hidden_size=config.hidden_size,
        intermediate_size=config.feed_forward_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.attention_heads,
        max_position_embeddings=_MOST_POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=EOS_ID,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(architecture)


CODE_VERSION = 1
"""Raise it when a change to this file or to the demonstrations makes old weights wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How much is learned before reinforcement begins: enough to solve one problem in six, at a
    high entropy."""

    steps: int = 520
    batch_size: int = 128
    learning_rate: float = 1e-3
    noise: float = 0.5
    """Share of demonstrations that need not be right, see `Task.demonstration`."""
    seed: int = 0


WARM_STARTS = {
    "countdown": WarmStartConfig(),
    "chain_sum": WarmStartConfig(steps=320, batch_size=64, learning_rate=3e-3, noise=0.9),
    "jugs": WarmStartConfig(steps=240, batch_size=64, learning_rate=3e-3, noise=0.7),
}
"""For each task, the same for every size of the family: all sizes have imitated the same
demonstrations."""


def warm_started_policy(task: Task, policy_config: PolicyConfig, config: WarmStartConfig) -> Policy:
    """The policy after its warm start: as shipped, from the home where it has been trained before,
    or trained now. ConfigurationError, before the minute that training takes: trained weights can't
    be kept."""
    policy = untrained_policy(task, policy_config, config.seed)
    path = shipped_path(task, policy_config, config)
    if not path.exists():
        path = cache_path(task, policy_config, config)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The warm start is kept in {path.parent}, which can't be made ({error.strerror})."
                " Point ISENTROPE_HOME at a folder you can write to."
            ) from error
    if path.exists():
        policy.model.load_state_dict(load_file(path))
    else:
        train_warm_start(policy, task, config)
        save_weights(policy, path)
    return policy


def shipped_path(task: Task, policy_config: PolicyConfig, config: WarmStartConfig) -> Path:
    """Where the package holds the weights of exactly this warm start, if it does. Other CPUs and
    other versions of torch train other last digits; those shipped are the same for all."""
    return Path(__file__).with_name(_file_name(task, policy_config, config))


def cache_path(task: Task, policy_config: PolicyConfig, config: WarmStartConfig) -> Path:
    """Where the home keeps the weights that were trained there:
    `ISENTROPE_HOME/trainer/warm-start-HASH.safetensors`."""
    return (
        environment.home()
        / "trainer"
        / _file_name(task, policy_config, config, torch=torch.__version__)
    )


def _file_name(
    task: Task, policy_config: PolicyConfig, config: WarmStartConfig, **more: str
) -> str:
    determinants = {
        "code_version": CODE_VERSION,
        "task": type(task).__name__,
        "words": task.words,
        "policy": dataclasses.asdict(policy_config),
        "warm_start": dataclasses.asdict(config),
        **more,
    }
    digest = hashlib.sha256(json.dumps(determinants, sort_keys=True).encode()).hexdigest()[:16]
    return f"warm-start-{digest}.safetensors"


def train_warm_start(policy: Policy, task: Task, config: WarmStartConfig) -> None:
    """Teach `policy` in place, and round its weights to what half precision holds, as the shipped
    ones are."""
    model = policy.model
    generator = random.Random(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    model.train()
    for _ in (
        progress := tqdm(range(config.steps), desc="warm start", unit="step", dynamic_ncols=True)
    ):
        batch = demonstration_batch(task, config.batch_size, config.noise, generator)
        loss = cross_entropy(
            padded_reading(model, batch).logits[batch.mask], batch.completions[batch.mask]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(weights.half())


def demonstration_batch(task: Task, size: int, noise: float, generator: random.Random) -> Rollouts:
    """Demonstrations for one supervised step, as rollouts of one completion each; for `noise` see
    `Task.demonstration`."""
    tokenizer = WordTokenizer(task.words)
    demonstrations = [task.demonstration(noise, generator) for _ in range(size)]
    prompts, prompt_mask = left_padded(
        [tokenizer.encode(prompt) for prompt, _ in demonstrations], PAD_ID
    )
    answers = [tokenizer.encode_answer(answer) for _, answer in demonstrations]
    completions = pad_sequence(
        [torch.tensor(answer) for answer in answers], batch_first=True, padding_value=PAD_ID
    )
    mask = (
        torch.arange(completions.shape[1])
        < torch.tensor([len(answer) for answer in answers])[:, None]
    )
    return Rollouts(
        prompts,
        prompt_mask,
        completions,
        mask,
        torch.zeros_like(mask, dtype=torch.float),
        group_size=1,
    )


def save_weights(policy: Policy, path: Path) -> None:
    """Write the weights in half precision. Renamed into place when complete: another run never
    loads half a file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(descriptor)
    try:
        save_file(
            {name: weights.half() for name, weights in policy.model.state_dict().items()}, temporary
        )
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="[default: where the package holds them]",
)
def main(out: Path | None) -> None:
    """Train the warm start of the default settings, and write its weights. Takes a minute and a
    half on two cores."""
    task, policy_config, config = make_task(0, TaskConfig()), PolicyConfig(), WarmStartConfig()
    policy = untrained_policy(task, policy_config, config.seed)
    train_warm_start(policy, task, config)
    path = out or shipped_path(task, policy_config, config)
    save_weights(policy, path)
    click.echo(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
