"""What `attach` asks of a TRL trainer: refused set-ups, the methods it wraps, and a self-check of the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor, nn
from trl import GRPOTrainer, RLOOTrainer

from isentrope.errors import ConfigurationError
from isentrope.integrations.attachment import Versions, check_parameters, refuse
from isentrope.integrations.transformers import IsentropeCallback
from isentrope.integrations.trl_head import FusedHead
from isentrope.integrations.trl_loss import completion_scores

VERSIONS = Versions("TRL", "trl", at_least="1.15", below="1.17")

WRAPPED = {
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "compute_entropy"),
    "_generate_and_score_completions": ("inputs",),
    "_compute_loss": ("model", "inputs"),
    "train": (),
}
"""The trainer's methods that are wrapped, and the parameters each must have."""

ROUND_OFF, LOW_PRECISION_ROUND_OFF = 1e-3, 0.1
"""Nats by which two heads may differ: float32 logits, and bfloat16, float16 or TF32 ones (half a unit at a logit of 16)."""


def check_supported(trainer: Any) -> None:
    """Refuse set-ups that can't be observed faithfully.

    Raises:
        ConfigurationError: with the reason.
    """
    installed = VERSIONS.check()
    if any(cls.__name__ == "AsyncGRPOTrainer" for cls in type(trainer).__mro__):
        raise ConfigurationError(
            "Can't attach to AsyncGRPOTrainer: its compute_loss takes the log-probs straight from the model's output, so that "
            "nothing can be gated between them. Report its scalars with IsentropeCallback, or train with GRPOTrainer."
        )
    if not isinstance(trainer, GRPOTrainer | RLOOTrainer):
        raise ConfigurationError(
            f"attach takes TRL's GRPOTrainer or RLOOTrainer, got {type(trainer).__name__}. "
            f"For another loop use isentrope.Probe; for scalars of any transformers.Trainer, IsentropeCallback."
        )
    refuse(f"this {type(trainer).__name__}", _reasons_against(trainer))
    for method, parameters in WRAPPED.items():
        check_parameters(trainer, method, parameters, f"TRL {installed}")


def _reasons_against(trainer: Any) -> Iterator[str]:
    model, args = policy_of(trainer), trainer.args
    if "_isentrope_attachment" in trainer.__dict__:
        yield "it has a probe already. Call isentrope.detach(trainer) first."
    if any(isinstance(callback, IsentropeCallback) for callback in trainer.callback_handler.callbacks):
        yield "it reports through IsentropeCallback already. Leave that out: attach sends the same scalars."
    if trainer.is_in_train:
        yield "its training is under way, or was interrupted. Attach to a new trainer, before trainer.train()."
    modules = f"{type(trainer).__module__} {type(trainer).__name__} {type(model).__module__}"
    if "unsloth" in modules.lower() or hasattr(model.config, "unsloth_version"):
        yield "Unsloth has replaced the model's forward by one that returns no log-probs."
    if args.use_liger_kernel:
        yield (
            "use_liger_kernel replaces layers when training starts, after the self-check. Use "
            "model_init_kwargs={'use_kernels': True} instead, as TRL advises."
        )
    if args.torch_compile:
        yield "torch_compile compiles the forward into one program, from which no scores can be read. Turn it off."
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        yield (
            "DeepSpeed and FSDP shard the policy when training starts, after the self-check. Use DDP, or "
            "isentrope.Probe in a loop of your own."
        )


def policy_of(trainer: Any) -> nn.Module:
    """The model whose forward TRL has patched: under PEFT the base model."""
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model)
    if is_peft_model(model):
        base: nn.Module = model.get_base_model()  # type: ignore[operator]
        return base
    return model


def self_check(trainer: Any, head: FusedHead) -> None:
    """Compare log-probs and entropies of random tokens, ours and TRL's from the same hidden states.

    One forward of 2 x 9 tokens without gradient. Module modes and random states are restored.

    Raises:
        ConfigurationError: they differ by more than round-off, or TRL's method never ran the model's fused forward.
    """
    model = policy_of(trainer)
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    ids = random_ids(model).to(device)
    try:
        model.eval()
        devices = [device] if device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices), head.recording(alone=False) as records:
            logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), ids.shape[1] - 1, compute_entropy=True
            )
    finally:
        for module in training:
            module.training = True
    if len(records) != 1:
        raise ConfigurationError(
            f"{type(trainer).__name__} does not get its log-probs from one fused forward of its model, or that forward "
            f"could not be scored (see the log). Log-probs computed elsewhere can't be observed."
        )
    ours = completion_scores(records, records[0].logprobs[:, -logprobs.shape[1] :])
    allowed = ROUND_OFF if _computes_in_float32(trainer, model) else LOW_PRECISION_ROUND_OFF
    for name, mine, theirs in (("log-prob", ours.logprobs, logprobs), ("entropy", ours.entropies, entropies)):
        _compare(name, mine, theirs, allowed)


def _compare(name: str, ours: Tensor, theirs: Tensor, allowed: float) -> None:
    difference = (ours.float() - theirs.float()).abs().flatten()
    # NaN agrees with NaN alone.
    difference = torch.where(ours.isnan().flatten() & theirs.isnan().flatten(), 0.0, difference).nan_to_num(torch.inf)
    worst = int(difference.argmax())
    if difference[worst] > allowed:
        raise ConfigurationError(
            f"The self-check failed: for the same token TRL's {name} is {float(theirs.flatten()[worst]):.6f} nats and "
            f"ours {float(ours.flatten()[worst]):.6f}, more than {allowed:g} apart. Please report the model's type; "
            f"until then only IsentropeCallback can be used with it."
        )


def _computes_in_float32(trainer: Any, model: nn.Module) -> bool:
    low = (torch.bfloat16, torch.float16)
    cast = trainer.args.bf16 or trainer.args.fp16 or any(parameter.dtype in low for parameter in model.parameters())
    return not (cast or torch.backends.cuda.matmul.allow_tf32)


def random_ids(model: Any) -> Tensor:
    """[2, 9] token ids from a generator of their own; no special ones, such as those of an image."""
    config, text = model.config, model.config.get_text_config()
    special = {*_special_ids(config), *_special_ids(text)}
    usual = [token for token in range(min(text.vocab_size, 1000)) if token not in special]
    drawn = torch.randint(0, len(usual), (2, 9), generator=torch.Generator().manual_seed(0))
    return torch.tensor(usual)[drawn]


def _special_ids(config: Any) -> Iterator[int]:
    """A config may name one id, none, or several that mean the same (Llama 3's ends of a turn)."""
    for name, value in vars(config).items():
        if name.endswith(("_token_id", "_token_ids", "_token_index")):
            yield from value if isinstance(value, list | tuple) else (value,)
