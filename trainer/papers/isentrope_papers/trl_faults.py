"""TRL FAULTS: failures that a run under TRL meets by itself, made with a model of eight words on a
CPU.

Each row says what is changed in TRL's own settings, what is rewarded, and which kinds of findings
name it. Nothing is downloaded; TRL is imported where a run is made."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isentrope_papers.faults import RATE_KINDS, Named

if TYPE_CHECKING:
    from isentrope.transport import Transport

Judge = Callable[[Sequence[int]], float]
"""The reward of a completion's token ids."""
_WORDS = 8
"""Of the vocabulary, padding (0) and end (1) among them."""
_RATE = 1e-3
_SETTINGS: Mapping[str, Any] = {
    "per_device_train_batch_size": 32,
    "num_generations": 8,
    "max_completion_length": 24,
    "learning_rate": _RATE,
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
}


def _share_of_even(ids: Sequence[int]) -> float:
    """Of its words; nothing for one that does not end."""
    words = [token for token in ids if token > 1]
    return (ids[-1] == 1) * sum(token % 2 == 0 for token in words) / max(len(words), 1)


def _length(ids: Sequence[int]) -> float:
    return len(ids) / 24


def _begins_as_asked(ids: Sequence[int]) -> float:
    return float(list(ids[:1]) == [2])


def _hardly_ever(ids: Sequence[int]) -> float:
    return float(list(ids[:6]) == [7, 6, 5, 4, 3, 2])


def _nearly_always(ids: Sequence[int]) -> float:
    return float(len(ids) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlFault(Named):
    """One row; without `kinds` a run that is to be called healthy."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of TRL's config, that are others."""
    judges: Mapping[Judge, float] = field(default_factory=lambda: {_share_of_even: 1.0})
    """What is rewarded, with its weight."""
    is_rloo: bool = False
    infinite_at: int | None = None
    """Step whose first reward is infinite."""


TRL_FAULTS: dict[str, TrlFault] = {
    "reward pays length": TrlFault(
        kinds=frozenset({"length", "truncation"}), judges={_length: 1.0}
    ),
    "format takes the reward": TrlFault(
        kinds=frozenset({"reward_parts", "reward_hacking"}),
        judges={_begins_as_asked: 1.0, _hardly_ever: 0.1},
        # As many steps as are made must be enough to saturate it.
        settings={"learning_rate": 4 * _RATE},
    ),
    "problems too easy": TrlFault(
        kinds=frozenset({"zero_advantage"}), judges={_nearly_always: 1.0}
    ),
    "problems too hard": TrlFault(kinds=frozenset({"zero_advantage"}), judges={_hardly_ever: 1.0}),
    "30 times the learning rate": TrlFault(
        kinds=RATE_KINDS, settings={"learning_rate": 30 * _RATE}
    ),
    "completions cut": TrlFault(
        kinds=frozenset({"truncation", "zero_advantage/cut"}),
        settings={"max_completion_length": 3},
    ),
    "an infinite reward": TrlFault(kinds=frozenset({"gradient", "not_finite"}), infinite_at=32),
    "clip of 0.01, eight updates": TrlFault(
        kinds=frozenset({"clip_saturation"}),
        settings={"epsilon": 0.01, "num_iterations": 8, "learning_rate": 3 * _RATE},
    ),
    "healthy: grpo": TrlFault(),
    "healthy: dr_grpo": TrlFault(settings={"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "healthy: rloo": TrlFault(is_rloo=True),
    "healthy: off-policy": TrlFault(settings={"num_iterations": 2}),
}


def train_under_trl(name: str, seed: int, steps: int, transport: Transport) -> list[dict[str, Any]]:
    """Train as a row says; TRL's own log. A run that ends with an error ends there."""
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        PreTrainedTokenizerFast,
        PrinterCallback,
        Qwen2Config,
        Qwen2ForCausalLM,
    )
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: PLC0415

    import isentrope  # noqa: PLC0415

    fault = TRL_FAULTS[name]
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=_WORDS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    ids = {"<pad>": 0, "<eos>": 1, **{f"w{word}": word for word in range(2, _WORDS)}}
    words = Tokenizer(WordLevel(ids, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    prompts = [
        {"prompt": f"w{first} w{second}"}
        for first in range(2, _WORDS)
        for second in range(2, _WORDS)
    ]
    config, trainer_class = (GRPOConfig, GRPOTrainer)
    if fault.is_rloo:
        config, trainer_class = (RLOOConfig, RLOOTrainer)
    with tempfile.TemporaryDirectory() as nothing_is_saved:
        trainer = trainer_class(
            model=model,
            processing_class=PreTrainedTokenizerFast(
                tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
            ),
            reward_funcs=[_reward_of(judge, fault.infinite_at) for judge in fault.judges],
            train_dataset=Dataset.from_list(prompts),
            args=config(
                output_dir=nothing_is_saved,
                max_steps=steps,
                seed=seed,
                reward_weights=[*fault.judges.values()],
                **{**_SETTINGS, **fault.settings},
            ),
        )
        trainer.remove_callback(PrinterCallback)
        isentrope.attach(trainer, name="reproduce", project="reproduce", transport=transport)
        # Weights that are NaN draw no token.
        with suppress(*([RuntimeError] if fault.kinds else [])):
            trainer.train()
    log: list[dict[str, Any]] = trainer.state.log_history
    return log


def _reward_of(judge: Judge, infinite_at: int | None) -> Callable[..., list[float]]:
    """A reward function as TRL calls it."""
    calls = 0

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        nonlocal calls
        calls += 1
        rewards = [judge(ids) for ids in completion_ids]
        if calls == infinite_at:
            rewards[0] = math.inf
        return rewards

    reward.__name__ = judge.__name__.strip("_")
    return reward
