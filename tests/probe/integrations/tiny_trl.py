"""TRL trainers of a model so small that a step takes milliseconds; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport

VOCABULARY = 32
WORDS = {"<pad>": 0, "<eos>": 1, **{f"w{index}": index for index in range(2, VOCABULARY)}}
PROMPTS = [{"prompt": f"w{2 + index} w{3 + index} w{5 + index}"} for index in range(16)]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel(WORDS, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """As language models have it: bytes merged to pieces, a chat template, one token that ends and
    pads."""
    pieces = Tokenizer(BPE())
    pieces.pre_tokenizer, pieces.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    ends = ["<|im_start|>", "<|im_end|>"]
    learnt = BpeTrainer(
        vocab_size=300,
        special_tokens=ends,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(["user\nassistant\nGröße in"] * 4, learnt)
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{%"
        " endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, eos_token=ends[1], pad_token=ends[1], chat_template=template
    )


def model(seed: int = 0, **config: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**shape, **config}))


def adapted(policy: PreTrainedModel | None = None, **config: Any) -> Any:
    """The policy with LoRA adapters that already do something."""
    targets = ["q_proj", "v_proj"]
    lora = LoraConfig(
        r=4, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False, **config
    )
    return get_peft_model(policy or model(), lora)


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Even tokens, please; the lengths differ by what is sampled."""
    return [sum(token % 2 == 0 for token in ids) / 4 - 0.05 * len(ids) for ids in completion_ids]


def trainer(
    folder: Path, kind: str = "grpo", policy: Any = None, steps: int = 2, **settings: Any
) -> Any:
    """A GRPOTrainer or RLOOTrainer; `settings` go to its config, `trainer_*` to the trainer."""
    config, cls = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[kind]
    of_trainer = {
        name.removeprefix("trainer_"): settings.pop(name)
        for name in list(settings)
        if name.startswith("trainer_")
    }
    arguments = {
        "output_dir": str(folder),
        "report_to": "none",
        "max_steps": steps,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
        "seed": 7,
        "beta": 0.0,
        "use_cpu": True,
        "activation_checkpointing": False,
    }
    made = cls(
        model=model() if policy is None else policy,
        reward_funcs=of_trainer.pop("reward_funcs", reward),
        args=config(**{**arguments, **settings}),
        train_dataset=of_trainer.pop("train_dataset", Dataset.from_list(PROMPTS)),
        processing_class=of_trainer.pop("processing_class", None) or tokenizer(),
        **of_trainer,
    )
    made.remove_callback(PrinterCallback)
    return made


def trained(folder: Path, head: Any = None, **settings: Any) -> Any:
    """A trainer after its training, `head` attached or (None) not. TRL seeds when a trainer is
    made: one after another."""
    made, transport = trainer(folder, **settings), InMemoryTransport()
    if head is not None:
        attach(made, head=head, transport=transport)
    made.train()
    if head is not None:
        assert any("entropy/mean" in report.scalars for report in reports(transport))
        assert len(reports(transport)) == made.state.global_step
    return made


TIMINGS = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def history(trained: Any) -> list[dict[str, Any]]:
    """What the trainer logged, but for how long things took."""
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in trained.state.log_history
    ]


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def parameters(trained: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained.model.parameters()])


def reports(transport: InMemoryTransport) -> list[StepReport]:
    return [message for message in transport.messages if isinstance(message, StepReport)]
