"""Input checks of `score`, `gate`, `log` and `step`, and their messages.

Shapes and types are checked by what computes with them. Values are checked here, those on an
accelerator on the first calls only: reading them waits for the device.

The learning rate of an update: by it the prediction of a step is scaled, and a held entropy's
effect counted.

An optimiser may have several groups of parameters. The rate that counts is that of the group with
the most trainable parameters among those that move (rate above 0): a policy's entropy follows the
bulk of its weights, while a small group, of a head or of norms, may well have the largest rate. A
frozen group says nothing about the update, wherever it stands."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope.scores.layouts import Packing
from isentrope.scores.token_scores import check_not_nested, check_temperatures
from isentrope_wire.errors import InputError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from isentrope.statistics.calibration import SeveralOptimizers


_LARGEST_GROUP_ID = (1 << 52) - 1
"""What a float64 holds to the last bit."""


def check_scored(scores: TokenScores, vocabulary: int | None, *, first: bool) -> None:
    """Check the values that tokens were scored from; where `first`, wait for the device and look at
    the scores too. A vocabulary that is split over ranks is None: an id that no shard holds shows
    as log p = -inf."""
    ids = scores.token_ids
    if ids is not None and vocabulary is not None and (first or ids.device.type == "cpu"):
        _check_ids(ids, vocabulary)
    if first:
        if isinstance(scores.temperature, Tensor) and scores.temperature.device.type != "cpu":
            check_temperatures(scores.temperature)
        check_first_values(scores)


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    if not ids.numel():
        return
    for bound in torch.aminmax(ids):
        if not 0 <= bound < vocabulary:
            raise InputError(
                f"token_ids must lie in [0, {vocabulary}) for a vocabulary of {vocabulary} tokens,"
                f" got {int(bound)}. Replace padding ids (such as -100) by any real id and leave"
                " them out with the mask."
            )


def not_scored(source: Tensor, token_ids: Tensor) -> TokenScores:
    """Scores of NaN for tokens that can't be scored, of the token ids' shape; `source` is what was
    to be scored, logits or hidden states. The log-probs have a gradient, of 0: a loss of them can
    be differentiated, and moves nothing by itself."""
    nan = torch.full(token_ids.shape, torch.nan, device=source.device)
    logprobs = nan
    if source.requires_grad and torch.is_grad_enabled():
        logprobs = nan + 0.0 * source.sum()
    return TokenScores(logprobs, nan, nan, nan, nan, token_ids=token_ids)


def check_first_values(scores: TokenScores, mask: Tensor | None = None) -> None:
    """Refuse scores of broken logits; waits for the device. Padding may hold anything: no row that
    `mask` (bool, of the tokens' shape) counts may be NaN, or, before there is a mask, not all
    rows."""
    nan = scores.entropies.isnan()
    rows = nan.numel()
    if mask is not None:
        nan = nan & mask
        rows = int(mask.sum())
    broken = int(nan.sum())
    if broken and (mask is not None or broken == rows):
        raise InputError(
            f"logits must hold numbers or -inf: {broken} of {rows} rows hold NaN or +Inf, or mask"
            " the whole vocabulary. Look at the model's forward pass, and leave padding out with"
            " the mask."
        )


def check_first_mask(mask: Tensor | None) -> None:
    """InputError where a float mask holds other numbers than 0 and 1: weights would be lost. Waits
    for the device."""
    if isinstance(mask, Tensor) and mask.is_floating_point():
        odd = mask[(mask != 0) & (mask != 1)]
        if odd.numel():
            raise InputError(
                f"mask says which tokens count: True or False, or 0 and 1; got {odd[0].item():g}."
                " Weights of tokens belong into the loss, whose gradient the probe reads."
            )


def not_finite_advantages(advantages: Tensor, mask: Tensor) -> str:
    """Warning about non-finite advantages, or empty. Waits for the device."""
    broken = int((mask & ~advantages.isfinite()).sum())
    if not broken:
        return ""
    return (
        f"{broken} of {int(mask.sum())} advantages are NaN or infinite where the mask counts them."
        " Such tokens are left out of what is measured (token/not_finite), but not out of the"
        " loss: are the rewards of a group all alike, and divided by their spread?"
    )


def check_not_in_backward() -> None:
    """InputError where backward is under way: a function that is computed again would have its
    tokens counted twice, by other thresholds."""
    if torch._C._current_graph_task_id() != -1:
        raise InputError(
            "probe.gate was called while backward runs, by a function that is checkpointed and "
            "computed again: its tokens would count twice. Call score and gate outside the "
            "function that is passed to torch.utils.checkpoint."
        )


def broadcast_advantages(
    advantages: Tensor, logprobs: Tensor, packing: Packing | None = None
) -> Tensor:
    """Advantages [batch], [batch, 1] or [batch, tokens] as one per token; a copy, for loops
    overwrite theirs. `packing` is that of tokens laid end to end, [tokens]."""
    if not isinstance(advantages, Tensor):
        raise InputError(f"advantages must be a torch.Tensor, got {type(advantages).__name__}.")
    check_not_nested("advantages", advantages)
    _check_device("advantages", advantages, logprobs)
    if advantages.shape == logprobs.shape:
        return advantages.detach().clone()
    if logprobs.dim() == 2 and advantages.shape in ((logprobs.shape[0],), (logprobs.shape[0], 1)):
        return advantages.detach().clone().reshape(-1, 1).expand_as(logprobs)
    per_sequence = ""
    if packing is not None:
        rows = len(packing.lengths)
        if advantages.shape in ((rows,), (rows, 1)):
            return packing.spread(advantages.detach().reshape(-1))
        per_sequence = f" or one per sequence [{rows}]"
    elif logprobs.dim() == 2:
        per_sequence = f" or one per sequence [{logprobs.shape[0]}]"
    raise InputError(
        f"advantages must be one per token {list(logprobs.shape)}{per_sequence}, got"
        f" {list(advantages.shape)}."
    )


def valid_mask(mask: Tensor | None, logprobs: Tensor) -> Tensor:
    """The mask as bool, of the log-probs' shape."""
    if mask is None:
        return torch.ones_like(logprobs, dtype=torch.bool)
    return matching("mask", mask, logprobs).detach() != 0


def first_pass_parts(
    scores: TokenScores | Sequence[TokenScores], mask: Tensor | Sequence[Tensor] | None
) -> tuple[list[TokenScores], list[Tensor]]:
    """The parts of a first pass and their masks as bool."""
    parts = scores
    if isinstance(scores, TokenScores):
        parts = [scores]
    if not isinstance(parts, Sequence) or not all(isinstance(part, TokenScores) for part in parts):
        raise InputError(
            "first_pass takes TokenScores, such as probe.score gives, or a list of them; got"
            f" {scores!r}."
        )
    masks: Sequence[Tensor | None]
    if mask is None:
        masks = [None] * len(parts)
    elif isinstance(mask, Tensor):
        masks = [mask]
    else:
        masks = mask
    if len(masks) != len(parts):
        raise InputError(
            f"first_pass needs one mask per part: got {len(parts)} parts and {len(masks)} masks."
        )
    valid = [valid_mask(mask, part.logprobs) for mask, part in zip(masks, parts, strict=True)]
    return list(parts), valid


def matching(name: str, tensor: Tensor, logprobs: Tensor) -> Tensor:
    """`tensor` itself when its shape is the log-probs'."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
    check_not_nested(name, tensor)
    if tensor.shape != logprobs.shape:
        raise InputError(
            f"{name} must have the tokens' shape {list(logprobs.shape)}, got {list(tensor.shape)}."
        )
    _check_device(name, tensor, logprobs)
    return tensor


def _check_device(name: str, tensor: Tensor, logprobs: Tensor) -> None:
    if tensor.device != logprobs.device:
        raise InputError(
            f"{name} are on {tensor.device}, the scores on {logprobs.device}. Move one to the"
            " other."
        )


def differences_of(logprobs: Tensor, others: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """log p minus the log-probs of each policy that was passed: {"sampler_logprobs": ...} ->
    {"sampler": difference}."""
    return {
        name.removesuffix("_logprobs"): logprobs.detach() - matching(name, other, logprobs).detach()
        for name, other in others.items()
        if other is not None
    }


def require_token_shape(name: str, given: Tensor | None, logprobs: Tensor) -> Tensor | None:
    """An optional tensor of the tokens' shape, itself."""
    if given is None:
        return None
    return matching(name, given, logprobs)


def group_ids_of(
    groups: Tensor | int | None, logprobs: Tensor, rank: int, first_position: int
) -> Tensor | None:
    """Which group each sequence belongs to, [batch], float64: the same number wherever the group's
    other sequences are. A number that is given says how many rows that follow each other make a
    group; None: not known."""
    if groups is None:
        return None
    if logprobs.dim() != 2:
        raise InputError(
            "groups needs one row per sequence, [batch, tokens], got scores of shape"
            f" {list(logprobs.shape)}. Leave it out where sequences are packed."
        )
    rows = logprobs.shape[0]
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 1 or rows % groups:
            raise InputError(
                f"groups must divide the {rows} rows of this call, got {groups}. Where a group is"
                " spread over calls or ranks, pass a number per sequence."
            )
        # Below 0, where no number given lies, and never the same twice in a step.
        first = -1 - (rank << 36) - first_position
        return first - (torch.arange(rows, device=logprobs.device) // groups).double()
    fits = isinstance(groups, Tensor) and groups.shape in ((rows,), (rows, 1))
    if not isinstance(groups, Tensor) or not fits or groups.is_floating_point():
        raise InputError(
            f"groups must be a whole number per sequence [{rows}], or the size of a group; got"
            f" {groups!r}."
        )
    _check_device("groups", groups, logprobs)
    return (groups.detach().reshape(-1).long() & _LARGEST_GROUP_ID).double()


def loggable(name: str, value: float | Tensor) -> float | Tensor:
    """One number, or a tensor of one number that stays on its device until the report is built."""
    if not _is_text(name):
        raise InputError(
            f"The name of a logged scalar must be text, such as reward/mean; got {name!r}."
        )
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{name} must be a real number, got a tensor of {value.dtype}.")
        if value.numel() != 1:
            raise InputError(
                f"{name} must be one number, got a tensor of shape {list(value.shape)}. Log its"
                " mean, say."
            )
        return _local_part(name, value.detach()).clone()
    try:
        return float(_only_element(value))
    except OverflowError:
        raise InputError(
            f"{name} must be a number up to 1.8e308, got a larger one. Log its logarithm, say."
        ) from None
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise InputError(f"{name} must be a number, got {value!r}.") from error


def _only_element(value: Any) -> Any:
    """The number of an array of one: `float` takes none that has dimensions."""
    if hasattr(value, "item") and getattr(value, "size", None) == 1:
        return value.item()
    return value


def _local_part(name: str, value: Tensor) -> Tensor:
    """This rank's part of a DTensor. Reading all of it would be a collective, which the other ranks
    may not join."""
    placements = getattr(value, "placements", None)
    if placements is None:
        return value
    if not all(placement.is_replicate() for placement in placements):
        raise InputError(
            f"{name} lies spread over ranks: {placements}. Call its full_tensor() on every rank and"
            " log what it gives."
        )
    local: Tensor = value.to_local()  # type: ignore[attr-defined]
    return local


def step_number(step: SupportsIndex) -> int:
    """The number of an optimiser update as an int."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InputError(
            f"step must be a whole number from 0 on, got {step!r}. Pass the count of optimiser"
            " updates."
        )
    return number


def _is_text(name: object) -> bool:
    """Half a character can't be written to the spool."""
    return isinstance(name, str) and name != "" and name.encode(errors="replace").decode() == name


@dataclass(frozen=True, slots=True)
class LearningRates:
    """Learning rates of an optimiser's groups at one moment. Read off the training thread: a rate
    may lie on a device."""

    groups: tuple[tuple[int, SupportsFloat], ...]
    """For each group its number of trainable parameters, and its rate."""

    def __float__(self) -> float:
        """The one that counts, see above; 0 where no group moves, or no rate is a finite number."""
        most, rate_of_most = -1, 0.0
        for parameters, given in self.groups:
            rate = float(given)
            if parameters > most and math.isfinite(rate) and rate > 0:
                most, rate_of_most = parameters, rate
        return rate_of_most


def learning_rates_of(optimizer: Optimizer | SeveralOptimizers | None) -> LearningRates | None:
    """As they are now; waits for no device. None when there is no optimiser to ask, or it has no
    rates."""
    if optimizer is None:
        return None
    groups = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, Tensor):
            # Schedulers change a tensor in place.
            rate = rate.detach().clone()
        if isinstance(rate, SupportsFloat):
            trained = [weight.numel() for weight in group["params"] if weight.requires_grad]
            groups.append((sum(trained), rate))
    if groups:
        return LearningRates(tuple(groups))
    return None


def clip_factor_of(norm: float | Tensor | None, largest: float | None) -> float | Tensor | None:
    """What clipping multiplied a gradient by, as torch, DeepSpeed and Megatron do it, from its norm
    before (None: not known) and the largest allowed (None or 0: nothing was clipped). Waits for no
    device."""
    if norm is None or not largest or largest < 0:
        return None
    factor = largest / (norm + 1e-6)
    if isinstance(factor, Tensor):
        return factor.clamp(max=1.0)
    return min(factor, 1.0)
