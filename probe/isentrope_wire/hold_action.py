"""What was decided to hold an entropy in a step, and the control, metrics and labels that come of
it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from isentrope_wire import metrics
from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.errors import CodecError
from isentrope_wire.methods import SUGGESTED
from isentrope_wire.numbers import document_of, read
from isentrope_wire.reports import HOLD_STATE, HOLD_WHY


class HoldStatus(StrEnum):
    """What the hold does in a step."""

    HOLDING = "holding"
    """The threshold is the one that the correction needs."""
    SLEWING = "slewing"
    """The threshold moves towards it, as far as one step may move it."""
    LIMIT = "limit"
    """More would have to be clipped than mu_min or max_fraction allows."""
    APPROACHING = "approaching"
    """The target is far, and the entropy moves towards it."""
    RESTING = "resting"
    """Nothing has to be clipped."""
    SIDE = "side"
    """Nothing is clipped: it would take clipping on the side that is not allowed."""
    FALLBACK = "fallback"
    """It waits: the prediction is not good enough to act on, or the target can't be had. The
    requested method and thresholds are active."""
    ENDED = "ended"
    """The reward guard ended it: the requested method and thresholds are active."""

    @property
    def is_idle(self) -> bool:
        """Whether the hold decides nothing."""
        return self in (HoldStatus.FALLBACK, HoldStatus.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The decision for one step."""

    version: int
    """Version of the control that requested the hold; without effect under another one."""
    status: HoldStatus
    scope: Scope = Scope.ALL
    """`decreasing` or `increasing` with a threshold."""
    mu: float | None = None
    """Both thresholds, in standard deviations; None: nothing is clipped, or the requested
    thresholds are active."""
    bonus: float | None = None
    """Coefficient of an entropy bonus in the place of thresholds; None: there is none."""
    exact: bool = False
    """Whether the bonus is to be of the entropies themselves."""
    reason: str = ""
    """Why the entropy is not held, or what to know of the target, for a person; empty where there
    is nothing to say."""
    target: float | None = None
    """H* of the step, in nats; None while it is not known."""
    steps_to_target: float | None = None
    """At the present pace; with APPROACHING alone."""
    gain: float | None = None
    drift: float | None = None
    resting_point: float | None = None
    """Resting point of the step that the decision is made from, see `EntropyEstimate`. None: not
    known yet."""

    def encode(self) -> bytes:
        """As rank 0 broadcasts it."""
        return json.dumps(document_of(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Action:
        """Read what `encode` wrote."""
        try:
            return read(cls, json.loads(content))
        except ValueError as error:
            raise CodecError(
                f"expected rank 0's decision on a held entropy, got {content[:80]!r} ({error})."
            ) from error


def undecided(version: int) -> Action:
    """The action of a step in which a control becomes active before a decision was made for it."""
    return Action(
        version=version,
        status=HoldStatus.FALLBACK,
        reason="No decision has been made for this control yet.",
    )


def clipping_method(pushed: Control) -> Method:
    """The method whose thresholds are moved."""
    if pushed.method == Method.NONE:
        return SUGGESTED
    return pushed.method


def control_under(action: Action | None, pushed: Control) -> Control:
    """The control of a step: the requested one, with the thresholds that were decided for it."""
    if action is not None and action.bonus is not None:
        known = Method.ENTROPY_BONUS.parameters
        kept = {name: value for name, value in pushed.parameters.items() if name in known}
        if action.exact:
            kept["estimate"] = "exact"
        return Control(
            method=Method.ENTROPY_BONUS,
            parameters={**kept, "coefficient": action.bonus},
            reason=pushed.reason,
            guard=pushed.guard,
        )
    if (
        action is None
        or action.status.is_idle
        or (action.mu is None and pushed.method == Method.NONE)
    ):
        return pushed
    return replace(
        pushed,
        method=clipping_method(pushed),
        mu_low=action.mu,
        mu_high=action.mu,
        scope=action.scope,
    )


def hold_scalars(action: Action | None, pushed: Control) -> dict[str, float]:
    """The metrics of a hold in a step's report; none where no hold is requested."""
    hold = pushed.held
    if action is None or hold is None:
        return {}
    active = control_under(action, pushed)
    if action.status == HoldStatus.ENDED:
        return {}
    numbers = {
        metrics.HOLD_TARGET: hold.target_entropy if action.target is None else action.target,
        metrics.HOLD_STEPS_TO_TARGET: action.steps_to_target,
        metrics.HOLD_MU: action.mu,
        metrics.HOLD_BONUS: action.bonus,
        metrics.HOLD_GAIN: action.gain,
        metrics.HOLD_DRIFT: action.drift,
        metrics.HOLD_RESTING_POINT: action.resting_point,
        metrics.CONTROL_MU_LOW: active.mu_low,
        metrics.CONTROL_MU_HIGH: active.mu_high,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def hold_labels(action: Action | None) -> dict[str, str]:
    """The labels of a hold in a step's report."""
    if action is None:
        return {}
    labels = {HOLD_STATE: str(action.status)}
    if action.reason:
        labels[HOLD_WHY] = action.reason
    return labels
