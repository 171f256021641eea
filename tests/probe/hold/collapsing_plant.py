"""A run whose mean entropy falls by itself, for the controller alone: no policy, no tokens, no
torch."""

from __future__ import annotations

import random
from typing import Any

from isentrope.hold.estimate import EntropyEstimator
from isentrope_wire.control import Control, Hold, Method, Scope
from isentrope_wire.hold_action import Action
from isentrope_wire.hold_decision import Calibrated, HoldState, Measured, decide
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfCurve, WhatIfSums

GAIN = 0.5
TRUSTED = Calibrated(r2=0.6, sign_agreement=0.9, compared_steps=20)


def step_sums(lowering: float, raising: float) -> WhatIfSums:
    """100 tokens. Of the 40 that lower entropy one lies in each of the bins from 0 to 2, and so do
    those that raise it.

    Args:
        lowering, raising: the sum of either kind's changes over the number of tokens, in nats per
            unit gain.
    """

    def cells(group: TokenGroup, side: int) -> list[int]:
        return [(group * SIDES + side) * len(EDGES) + index for index in range(40)]

    falling, rising = (
        cells(TokenGroup.POSITIVE_DECREASING, 1),
        cells(TokenGroup.POSITIVE_INCREASING, 0),
    )
    changes = dict.fromkeys(falling, -lowering * 100 / 40) | dict.fromkeys(
        rising, raising * 100 / 40
    )
    occupied = tuple(sorted(changes))
    bins = BinSums(occupied, (1,) * len(occupied), tuple(changes[cell] for cell in occupied))
    return WhatIfSums(tokens=100, change_sum=100 * (raising - lowering), by_method={"clip_v": bins})


def decided(
    hold: Hold, state: HoldState, measured: Measured | None, *, step: int, **parameters: Any
) -> tuple[HoldState, Action]:
    """The decision under a control that clips by Clip_V with these parameters."""
    control = Control(method=Method.CLIP_V, hold=hold.to_document(), parameters=parameters)
    return decide(control, state, measured, step=step)


class CollapsingPlant:
    """H follows the clipped unit prediction through momentum, with noise; the controller hears of
    it `lag` steps late."""

    def __init__(
        self,
        *,
        lag: int,
        drift: float = -0.02,
        memory: float = 0.9,
        noise: float = 0.004,
        bias: float = 0.0,
        gain: float = GAIN,
        bonus_effect: float | None = None,
    ) -> None:
        """
        Args:
            lag: steps after which the controller hears of a step.
            drift: change of a step with nothing clipped, in nats.
            memory: share of a step's effect that is left for the steps after it; the optimiser's
                beta_1 is 0.9.
            noise: of a step's mean entropy, in nats.
            bias: change of a step that has nothing to do with its unit prediction.
            gain: of the unit prediction from step 60 on; before, GAIN.
            bonus_effect: what an entropy bonus of 1 adds to a unit prediction; None: not measured.
        """
        self._random = random.Random(0)
        self._lag, self._drift, self._memory, self._noise = lag, drift, memory, noise
        self._bias, self._gain, self._bonus_effect = bias, gain, bonus_effect
        self._estimator = EntropyEstimator()
        self._average = 0.0
        self._arriving: list[Measured] = []
        self.entropy = 0.66
        self.entropies: list[float] = []
        self.actions: list[Action] = []

    def run(self, hold: Hold, steps: int) -> None:
        state = HoldState()
        for step in range(steps):
            arrived = self._arriving[step - self._lag] if step >= self._lag else None
            state, action = decided(hold, state, arrived, step=step)
            self.actions.append(action)
            self._advance(step, action)

    def _advance(self, step: int, action: Action) -> None:
        raising = 0.05 + self._random.gauss(0, 0.01)
        sums = step_sums(raising - self._drift / GAIN, raising)
        scope = action.scope if action.mu is not None else Scope.ALL
        unit = (
            WhatIfCurve(sums, scope, Method.CLIP_V)
            .evaluate(action.mu, action.mu)
            .unit_predicted_change
        )
        if action.bonus is not None and self._bonus_effect is not None:
            unit += action.bonus * self._bonus_effect
        seen = self.entropy + self._random.gauss(0, self._noise)
        self._average = self._memory * self._average + (1 - self._memory) * unit
        gain = GAIN if step < 60 else self._gain
        change = gain * self._average / (1 - self._memory ** (step + 1)) + self._bias
        self.entropies.append(self.entropy)
        self.entropy += change
        estimate = self._estimator.step(
            mean_entropy=seen, unit_prediction=unit, observed_change=change, momentum=0.9
        )
        self._arriving.append(
            Measured(
                step=step,
                run_step=step,
                entropy=estimate,
                calibrated=TRUSTED,
                what_if=sums,
                bonus_effect=self._bonus_effect,
            )
        )
