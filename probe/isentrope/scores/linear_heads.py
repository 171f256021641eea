"""Language-model heads as they occur in practice, and the arguments of `linear_token_scores` for
each.

Only attributes are read, so that no adapter library is needed here: a plain `nn.Linear` (tied to
the embedding or not, cast to float32 or not), one wrapped for full training, one with low-rank
adapters, and any of them sharded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isentrope_wire.errors import InputError


@dataclass(frozen=True, slots=True)
class LowRankAdapter:
    """s B A, added to a weight."""

    down: Tensor
    """A [rank, width]"""
    up: Tensor
    """B [vocabulary, rank]"""
    scaling: float = 1.0
    """s"""
    dropout: Callable[[Tensor], Tensor] | None = None
    """Applied to the hidden states before A, as in the model's own forward: in training mode the
    scores are those of a forward with dropout."""


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """W + sum s B A; the sum, as large as W, is never formed."""

    base: Tensor
    """W [vocabulary, width]"""
    adapters: tuple[LowRankAdapter, ...]


def linear_head_parts(head: nn.Module) -> tuple[Tensor | AdaptedWeight, Tensor | None]:
    """The weight and bias that score hidden states as `head(hidden)` would.

        weight, bias = linear_head_parts(model.get_output_embeddings())
        scores = linear_token_scores(hidden, weight, token_ids, bias)

    Gradient flows to all trained parts of the head: weight, bias, the adapters' A and B. Adapters
    that are merged or disabled are respected. Call it for every forward: a wrapper's state may have
    changed.

    Args:
        head: An `nn.Linear`, plain, trained whole beside adapters, or with LoRA adapters.

    Returns:
        The weight, with its adapters where it has some, and the bias or None.

    Raises:
        InputError: The head computes something else than hidden @ (W + sum s B A).T + bias.
    """
    if hasattr(head, "modules_to_save"):
        return linear_head_parts(_trained_copy(head))
    if hasattr(head, "lora_A") and hasattr(head, "base_layer"):
        return _adapted(head)
    # A subclass with a forward of its own (quantised, normalised, parallel) need not multiply by
    # `weight` at all.
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        raise InputError(
            "The head must be an nn.Linear, plain or with LoRA adapters, got"
            f" {type(head).__name__}, which may compute something else than hidden @ weight.T."
            " Score its logits with token_scores."
        )
    return head.weight, head.bias


def _trained_copy(wrapper: Any) -> nn.Module:
    """The copy that the forward uses of a head that is trained whole beside adapters."""
    if wrapper.disable_adapters:
        active = []
    else:
        active = list(wrapper.active_adapters)
    copies: nn.ModuleDict = wrapper.modules_to_save
    original: nn.Module = wrapper.original_module
    if active and active[0] in copies:
        return copies[active[0]]
    return original


def _adapted(head: Any) -> tuple[Tensor | AdaptedWeight, Tensor | None]:
    weight, bias = linear_head_parts(head.base_layer)
    if isinstance(weight, AdaptedWeight):
        raise InputError(
            "The head carries adapters within adapters. Score its logits with token_scores."
        )
    if head.disable_adapters and head.merged_adapters:
        raise InputError(
            f"The head's adapters {head.merged_adapters} are disabled and still merged into its"
            " weight. Unmerge them first."
        )
    if head.disable_adapters or head.merged_adapters:
        return weight, bias
    active = [name for name in head.active_adapters if name in head.lora_A]
    for name in active:
        if name in getattr(head, "lora_variant", ()) or head.use_dora.get(name, False):
            raise InputError(
                f"Adapter {name!r} of the head is not plain LoRA (DoRA or another variant), so it"
                " is not a sum W + s B A. Merge it, leave the head out of the adapter's target"
                " modules, or score its logits with token_scores."
            )
        if (up_bias := head.lora_B[name].bias) is not None:
            bias = up_bias * head.scaling[name] + (0.0 if bias is None else bias)
    if not active:
        return weight, bias
    adapters = (
        LowRankAdapter(
            head.lora_A[name].weight,
            head.lora_B[name].weight,
            head.scaling[name],
            head.lora_dropout[name],
        )
        for name in active
    )
    return AdaptedWeight(weight, tuple(adapters)), bias


def adapter_operands(
    hidden: Tensor, adapters: tuple[LowRankAdapter, ...]
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """x [..., ranks] and B [vocabulary, ranks] with x B^T = sum_i s_i dropout_i(hidden) A_i^T
    B_i^T, differentiable.

    Runs in the types the adapter's own layers would use, under autocast too.
    """
    if not adapters:
        return None, None
    inputs, ups = [], []
    for adapter in adapters:
        down = whole(adapter.down)
        dropped = hidden.to(down.dtype)
        if adapter.dropout is not None:
            dropped = adapter.dropout(dropped)
        inputs.append(nn.functional.linear(dropped, down) * adapter.scaling)
        ups.append(whole(adapter.up))
    if len(ups) == 1:
        return inputs[0], ups[0]  # B is as tall as the vocabulary: not copied where there is one
    return torch.cat(inputs, -1), torch.cat(ups, 1)


def whole(tensor: Any) -> Tensor:
    """The whole of a sharded tensor (DTensor) on every rank of its mesh; any other tensor as it is.

    A collective, forward and backward: every rank of the mesh must score at the same time, a rank
    without tokens with zero rows. Backward hands each rank its shard of the mean gradient over the
    mesh: what FSDP does with ranks that have data of their own, and no change along a dimension
    whose ranks all computed the same."""
    if not hasattr(tensor, "full_tensor"):
        plain: Tensor = tensor
        return plain
    # By default `full_tensor` assumes the same gradient on all ranks, and each keeps its own rows
    # of its own gradient.
    averaged = [torch.distributed.tensor.Partial("avg")] * tensor.device_mesh.ndim
    gathered: Tensor = tensor.full_tensor(grad_placements=averaged)
    return gathered
