"""The learning rate of an update: by it the prediction of a step is scaled, and a held entropy's effect counted.

An optimiser may have several groups of parameters. The rate that counts is that of the group with the most trainable
parameters among those that move (rate above 0): a policy's entropy follows the bulk of its weights, while a small group,
of a head or of norms, may well have the largest rate. A frozen group says nothing about the update, wherever it stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class LearningRates:
    """Of an optimiser's groups, as they stood at one moment. Read off the training thread: a rate may lie on a device."""

    groups: tuple[tuple[int, SupportsFloat], ...]
    """Of each its number of trainable parameters, and its rate."""

    def __float__(self) -> float:
        """The one that counts, see above; 0 where no group moves, or no rate is a finite number."""
        read = ((parameters, float(rate)) for parameters, rate in self.groups)
        moving = [(parameters, rate) for parameters, rate in read if math.isfinite(rate) and rate > 0]
        return max(moving, key=lambda group: group[0])[1] if moving else 0.0


def learning_rates_of(optimizer: Optimizer | None) -> LearningRates | None:
    """As they are now; waits for no device. None when there is no optimiser to ask, or it has no rates."""
    groups = tuple(
        (
            sum(parameter.numel() for parameter in group["params"] if parameter.requires_grad),
            # Schedulers change a tensor in place.
            group["lr"].detach().clone() if isinstance(group["lr"], Tensor) else group["lr"],
        )
        for group in ([] if optimizer is None else optimizer.param_groups)
        if isinstance(group.get("lr"), SupportsFloat)
    )
    return LearningRates(groups) if groups else None
