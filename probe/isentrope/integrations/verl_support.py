"""What of verl is known to work: its versions, the methods that are wrapped, and the set-ups that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from isentrope.integrations.attachment import Versions, check_parameters, refuse

ATTRIBUTE = "_isentrope_attachment"
"""Of an engine: its attachment, where it has one."""

VERSIONS = Versions("verl", "verl", at_least="0.9.1", below="0.10")

WRAPPED = {
    "prepare_model_inputs": ("micro_batch",),
    "prepare_model_outputs": ("output", "output_args", "micro_batch"),
    "forward_step": ("micro_batch", "loss_function", "forward_only"),
    "optimizer_step": (),
    "train_batch": ("data", "loss_function"),
    "save_checkpoint": ("local_path",),
    "load_checkpoint": ("local_path",),
    "_gather_and_unpad_packed": ("tensor", "pad_size"),
}
"""Methods of an engine that are wrapped or called, and the parameters each must have."""

BACKENDS = {
    "megatron": (
        "Megatron splits vocabulary and pipeline over ranks, and its logits exist only inside its own schedule. Train with "
        "actor_rollout_ref.actor.strategy=fsdp2; trainer.logger=['console','isentrope'] still reports verl's own metrics."
    ),
}


def check_supported(engine: Any) -> None:
    """Refuse set-ups that can't be observed faithfully.

    Args:
        engine: of verl.

    Raises:
        ConfigurationError: with the reason.
    """
    installed = VERSIONS.check()
    refuse(f"verl's {type(engine).__name__}", _reasons_against(engine))
    for method, parameters in WRAPPED.items():
        check_parameters(engine, method, parameters, f"verl {installed}")


def _reasons_against(engine: Any) -> Iterator[str]:
    backend = str(getattr(engine.engine_config, "strategy", "")).lower()
    if "megatron" in f"{backend} {type(engine).__name__}".lower():
        yield BACKENDS["megatron"]
    if not isinstance(engine, FSDPEngineWithLMHead):
        yield (
            f"the adapter knows verl's FSDP engines of language models, and this one ({backend or 'unknown'}) computes its "
            "log-probs elsewhere. Train with actor_rollout_ref.actor.strategy=fsdp2."
        )
    if getattr(engine.engine_config, "use_fused_kernels", False):
        yield (
            "use_fused_kernels computes log-probs inside the model and keeps no logits to score. Set "
            "actor_rollout_ref.model.use_fused_kernels=False."
        )
    if getattr(engine.engine_config, "forward_only", False):
        yield "it is forward_only: nothing is trained there."
    if hasattr(engine, ATTRIBUTE):
        yield "it has a probe already."
