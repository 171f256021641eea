"""verl's own FSDP engine, PPO loss and update on a tiny random model, on the CPU; runs where verl
is installed."""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch
import verl  # noqa: F401  (loads the plugins)
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
)
from verl.workers.engine.base import EngineRegistry
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

VOCABULARY, PROMPT, SEQUENCES = 96, 5, 8


def save_model(folder: str, *, tied: bool = False) -> None:
    """A random policy, and a tokenizer.

    Args:
        folder: to save them in.
        tied: whether the head's weight is that of the embedding. Under FSDP2 verl's fused kernels
            need it: a head of its own is sharded apart, and they read its weight without calling it
            (verl-project/verl, pull request 7427).
    """
    import_module("tiny_policy").save(
        folder, VOCABULARY, initializer_range=0.08, tie_word_embeddings=tied
    )


def engine_of(
    model: str,
    *,
    remove_padding: bool,
    strategy: str = "fsdp2",
    fused: bool = False,
    precision: str = "fp32",
    lora_rank: int = 0,
    attached: bool = True,
    **settings: Any,
) -> Any:
    """An engine as verl's actor worker builds it; not attached: by the registry's own function.

    Fused kernels change the model's class: in this process no other engine can be built after them.
    """
    new = EngineRegistry.new
    new = new if attached else getattr(new, "__wrapped__", new)
    mixed_precision = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    torch.manual_seed(0)  # of new adapters
    engine = new(
        model_type="language_model",
        backend=strategy,
        model_config=HFModelConfig(
            path=model,
            use_remove_padding=remove_padding,
            enable_gradient_checkpointing=False,
            lora_rank=lora_rank,
            target_modules="all-linear",
            override_config={"attn_implementation": "packed" if remove_padding else "eager"},
            use_fused_kernels=fused,
            fused_kernel_options={"impl_backend": "torch"},
        ),
        engine_config=FSDPEngineConfig(
            strategy=strategy,
            model_dtype="fp32",
            use_torch_compile=False,
            use_remove_padding=remove_padding,
            use_fused_kernels=fused,
            forward_only=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=4,
            mixed_precision=mixed_precision,
            **settings,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=2e-3, total_training_steps=1000),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def batch_of(seed: int) -> TensorDict:
    """Sequences of their own lengths as verl's trainer hands them over: nested tensors."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [12, 13, 14, 16, 16, 17, 18, 19]  # odd in the first micro-batch, which Ulysses pads
    rows = [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in lengths]
    answers = [length - PROMPT for length in lengths]

    def nested(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    ends = [
        torch.zeros(answer).index_fill(0, torch.tensor([answer - 1]), float(i))
        for i, answer in enumerate(answers)
    ]
    return TensorDict(
        {
            "input_ids": nested(rows),
            "position_ids": nested([torch.arange(length) for length in lengths]),
            "loss_mask": nested(
                [torch.cat([torch.zeros(PROMPT), torch.ones(answer)]) for answer in answers]
            ),
            "prompts": nested([row[:PROMPT] for row in rows]),
            "responses": nested([row[PROMPT:] for row in rows]),
            "response_mask": nested([torch.ones(answer) for answer in answers]),
            "advantages": nested(
                [torch.full((answer,), float(i % 3 - 1)) for i, answer in enumerate(answers)]
            ),
            "token_level_scores": nested(ends),
            "uid": NonTensorStack.from_list(
                [NonTensorData(f"prompt-{i // 4}") for i in range(SEQUENCES)]
            ),
        },
        batch_size=[SEQUENCES],
    )


def update(
    engine: Any, seed: int, *, temperature: float | torch.Tensor = 1.0, spoilt: bool = False
) -> dict[str, Any]:
    """One update as verl's worker makes it: log-probs of the old policy, then PPO's loss over two
    micro-batches.

    Each data-parallel rank has sequences of its own. Spoilt, an advantage is NaN: an alert, and
    verl makes no update."""
    data = batch_of(seed * engine.get_data_parallel_size() + engine.get_data_parallel_rank())
    if spoilt:
        data["advantages"].values()[0] = torch.nan
    tu.assign_non_tensor(
        data,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=4,
        use_remove_padding=engine.use_remove_padding,
        use_fused_kernels=engine.engine_config.use_fused_kernels,
        calculate_entropy=False,
        max_token_len_per_gpu=4096,
        global_batch_size=SEQUENCES * engine.get_data_parallel_size(),
    )
    if isinstance(temperature, torch.Tensor):
        data["temperature"] = temperature
    else:
        tu.assign_non_tensor(data, temperature=temperature)
    with engine.eval_mode():
        old = engine.infer_batch(data.clone(), loss_function=None)["model_output"]["log_probs"]
    padded = no_padding_2_padding(old, data)
    answers = data["response_mask"].offsets().diff().tolist()
    kept = [padded[i, :answer].detach() for i, answer in enumerate(answers)]
    data["old_log_probs"] = torch.nested.as_nested_tensor(kept, layout=torch.jagged)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=4,
        ppo_mini_batch_size=8,
        ppo_micro_batch_size_per_gpu=4,
        use_dynamic_bsz=False,
    )
    with engine.train_mode():
        output: dict[str, Any] = engine.train_batch(
            data, loss_function=partial(ppo_loss, config=config)
        )
    return output


def fingerprint(engine: Any) -> str:
    """Of all parameters, to the last bit."""
    digest = hashlib.sha256()
    for _, tensor in sorted(engine.module.state_dict().items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(whole.float().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    save_model(sys.argv[1])
    print("RESULTS {}")
