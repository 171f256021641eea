"""Which mechanism changes the unit prediction by how much: the loop's ratio clip, the intervention, the KL term.

    unit = (-mean(r A S_c)) + by_ratio_clip + by_intervention

    by_ratio_clip   = -mean((w - 1) r A S_c)            w: what the loop's own loss makes of r A, 0 where it clips
    by_intervention = -mean((f - 1) w r A S_c)          f: the factors of the control in force, 0 where it drops
    by_kl_penalty   = -mean(f alpha_KL S_c)             alpha_KL: what the loss's KL term adds to w r A

The last comes on top of the unit prediction, which is of the advantages alone. Each is the first-order change of the
mean entropy per unit of gain (arXiv:2602.03392, Cor. 4.1), in nats per unit gain. What a loop does not say is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from isentrope.statistics.step_tokens import StepTokens
from isentrope_wire.metrics import (
    CHANGE_BY_INTERVENTION,
    CHANGE_BY_KL_PENALTY,
    CHANGE_BY_RATIO_CLIP,
    CHANGE_WITH_NOTHING_IN_FORCE,
)


@dataclass(frozen=True, slots=True)
class MechanismSums:
    """Sums over the valid tokens of a step; `merge` is exact."""

    with_nothing_in_force: float = 0.0
    """Of -r A S_c."""
    after_ratio_clip: float = 0.0
    """Of -w r A S_c."""
    ratio_clip_known: int = 0
    """Tokens of which the loop said w."""
    kl_penalty: float = 0.0
    """Of -f alpha_KL S_c."""
    kl_known: int = 0
    """Tokens of which the loop said alpha_KL."""
    pushed: int = 0
    """Tokens whose w r A is not 0: the loop's loss has a gradient there."""

    def merge(self, other: MechanismSums) -> MechanismSums:
        return MechanismSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @classmethod
    def read(cls, numbers: Iterable[float]) -> MechanismSums:
        """What `mechanism_sums` made, from the host."""
        unclipped, clipped, knows_loss, penalty, knows_kl, pushed = numbers
        # What the update takes from the entropy is what it changes with the sign turned round.
        return cls(-unclipped, -clipped, int(knows_loss), -penalty, int(knows_kl), int(pushed))


def mechanism_sums(tokens: StepTokens, factors: Tensor | None) -> tuple[Tensor, ...]:
    """The fields of `MechanismSums`, sums with the opposite sign, on the device.

    Args:
        factors: by what each token's gradient is multiplied under the control in force; None: by 1.
    """
    penalty = tokens.none
    if "kl" in tokens:
        pull = tokens["kl"] * tokens["S_c"]
        penalty = (pull if factors is None else torch.where(tokens.valid, factors, 0.0) * pull).sum()
    return (
        tokens.unclipped_effect_sum,
        tokens.sums[-1],
        tokens.known_loss,
        penalty,
        tokens.known_kl,
        tokens.pushed,
    )


def mechanism_scalars(sums: MechanismSums, tokens: int, unit_sum: float, *, intervening: bool) -> dict[str, float]:
    """The change of each mechanism, as means over the step's tokens; what is not known of every token is left out.

    Args:
        tokens: valid ones of the step, at least one.
        unit_sum: of the unit prediction.
        intervening: whether a control was in force. Without one it changed nothing, and nothing is said of it.
    """
    scalars: dict[str, float] = {}
    if sums.ratio_clip_known in (0, tokens):
        scalars[CHANGE_WITH_NOTHING_IN_FORCE] = sums.with_nothing_in_force / tokens
    if sums.ratio_clip_known == tokens:
        scalars[CHANGE_BY_RATIO_CLIP] = (sums.after_ratio_clip - sums.with_nothing_in_force) / tokens
    if intervening:
        scalars[CHANGE_BY_INTERVENTION] = (unit_sum - sums.after_ratio_clip) / tokens
    if sums.kl_known == tokens:
        scalars[CHANGE_BY_KL_PENALTY] = sums.kl_penalty / tokens
    return scalars
