"""Where a gradient that is NaN or infinite came from: which micro-batch, inside or outside the mask,
and whether the loss was finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.statistics.sums import Sum
from isentrope.statistics.tokens import StepTokens
from isentrope_wire.reports import Alert, AlertLevel

_NUMBERS = 7


@dataclass(frozen=True, slots=True)
class GradientFault:
    """The first micro-batch of a step with such a gradient, on the first rank that has one."""

    inside: int
    """Its tokens that the mask counts, and whose gradient is NaN or infinite."""
    outside: int
    """The same of those that the mask leaves out."""
    tokens: int
    """All of its tokens, padding included."""
    micro_batch: int
    """Its number among the `gate` calls of the step, from 1; 0: every gradient is finite."""
    micro_batches: int
    loss_known: bool
    loss: float
    """Of its backward; 0 where it is not known."""
    rank: int

    @classmethod
    def read(cls, numbers: Sequence[float], rank: int) -> GradientFault:
        """From the numbers that `_measure` gives."""
        inside, outside, size, place, calls = map(int, numbers[:5])
        return cls(inside, outside, size, place, calls, bool(numbers[5]), numbers[6], rank)

    def merge(self, other: GradientFault) -> GradientFault:
        """The first of two ranks' that has one."""
        return other if not self.micro_batch and other.micro_batch else self


def _measure(tokens: StepTokens) -> list[Tensor]:
    bad = tokens.bad_gradients
    if bad is None:
        return [tokens.none] * _NUMBERS
    sizes = [batch.mask.numel() for batch in tokens.batches]
    rows = []
    for place, batch in enumerate(tokens.batches):
        wrong, mask = bad.split(sizes)[place], tokens.mask.split(sizes)[place]
        loss = None if batch.gradient is None else batch.gradient.get("loss")
        about = (sizes[place], place + 1, len(sizes), loss is not None)
        rows.append(
            torch.stack(
                [
                    (wrong & mask).sum(dtype=torch.float64),
                    (wrong & ~mask).sum(dtype=torch.float64),
                    *(torch.full_like(tokens.none, float(number)) for number in about),
                    tokens.none if loss is None else loss.to(tokens.none),
                ]
            )
        )
    table = torch.stack(rows)
    has_fault = (table[:, 0] + table[:, 1]) > 0
    is_first = has_fault & (has_fault.cumsum(0) == 1)
    # Chosen by a mask, for an index would wait for the device; and not by a product: another
    # micro-batch's loss may be NaN.
    return [*torch.where(is_first[:, None], table, 0.0).sum(0)]


GRADIENT_FAULT = Sum[GradientFault](
    size=_NUMBERS, measure=_measure, read=GradientFault.read, merge=GradientFault.merge
)


def gradient_alert(fault: GradientFault, tokens: float, ranks: int) -> Alert | None:
    """The alert of a step with such a gradient, on so many tokens in all; None without one."""
    if not fault.micro_batch:
        return None
    loss_is_finite = math.isfinite(fault.loss) if fault.loss_known else None
    message = (
        f"The loss gives {tokens:.0f} tokens a gradient that is NaN or infinite: nothing is "
        f"predicted for this step, and the update spoils the weights unless it is skipped. "
        f"First in micro-batch {fault.micro_batch} of {fault.micro_batches}"
        f"{f' on rank {fault.rank}' if ranks > 1 else ''}: {_place_in_words(fault)}; "
        f"{_loss_in_words(loss_is_finite)} {_advice(fault, loss_is_finite)}"
    )
    evidence = {
        "tokens": tokens,
        "micro_batch": float(fault.micro_batch),
        "micro_batches": float(fault.micro_batches),
        "rank": float(fault.rank),
        "inside_mask": float(fault.inside),
        "outside_mask": float(fault.outside),
    }
    if loss_is_finite is not None:
        evidence["loss_finite"] = float(loss_is_finite)
    return Alert(kind="gradient", level=AlertLevel.ACT, message=message, evidence=evidence)


def _place_in_words(fault: GradientFault) -> str:
    if not fault.outside:
        return f"{fault.inside} tokens inside the mask"
    if not fault.inside:
        return f"{fault.outside} tokens outside the mask"
    return f"{fault.inside} tokens inside and {fault.outside} outside the mask"


def _loss_in_words(is_finite: bool | None) -> str:
    if is_finite is None:
        return "whether the loss is finite is not known."
    return "the loss itself is finite." if is_finite else "the loss itself is NaN or infinite."


def _advice(fault: GradientFault, loss_is_finite: bool | None) -> str:
    if not fault.inside and fault.outside < fault.tokens:
        return (
            "Mask the log-ratios before they are exponentiated: NaN or infinity times 0 is NaN "
            "in backward, also where the loss leaves the value out."
        )
    if fault.inside + fault.outside == fault.tokens and loss_is_finite is not True:
        return "Look for 0 / 0: a mean over a micro-batch without a token that counts, say."
    return "Look at the advantages, the log-probs passed and the ratios of these tokens."
