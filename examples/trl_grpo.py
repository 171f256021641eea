"""TRL's GRPOTrainer under Isentrope: one line more than without it.

    python examples/trl_grpo.py                             # a random model of letters, on a CPU
    python examples/trl_grpo.py --model Qwen/Qwen3-0.6B     # a pretrained one

The reward is the share of vowels among the letters of a completion.
"""

from __future__ import annotations

import argparse

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer

import isentrope

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def share_of_vowels(completions: list[str], **_: object) -> list[float]:
    """The reward of each completion, in [0, 1]."""
    letters = ["".join(filter(str.isalpha, text.lower())) for text in completions]
    return [sum(text.count(vowel) for vowel in "aeiou") / max(1, len(text)) for text in letters]


def random_model() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model so small that a step takes a fraction of a second; nothing is downloaded."""
    words = {"<pad>": 0, "<eos>": 1} | {letter: 2 + i for i, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        eos_token_id=1,
    )
    return Qwen2ForCausalLM(config), PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def model_and_tokenizer(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A pretrained model by its name, or the random one."""
    if not name:
        return random_model()
    return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def prompts_for(name: str) -> Dataset:
    """What the policy completes: letters, or a request that a pretrained model understands."""
    if not name:
        return Dataset.from_list([{"prompt": letter} for letter in LETTERS])
    requests = [f"Write a word that begins with {letter}: " for letter in LETTERS]
    return Dataset.from_list([{"prompt": request} for request in requests])


def arguments_of(description: str) -> argparse.Namespace:
    """The options that the two TRL examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", default="", help="of the Hugging Face hub; default: a random one"
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    return parser.parse_args()


def config_of(arguments: argparse.Namespace) -> GRPOConfig:
    return GRPOConfig(
        output_dir="build/examples",
        report_to="none",
        max_steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=12,
        logging_steps=1,
        save_strategy="no",
        bf16=False,
    )


def main() -> None:
    arguments = arguments_of("GRPO with TRL, watched by Isentrope.")
    model, tokenizer = model_and_tokenizer(arguments.model)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=share_of_vowels,
        args=config_of(arguments),
        train_dataset=prompts_for(arguments.model),
        processing_class=tokenizer,
    )
    probe = isentrope.attach(trainer, name="trl-grpo", project="examples")
    trainer.train()
    print(f"run: {probe.run_id}")
    print(probe.show())


if __name__ == "__main__":
    main()
