"""What was decided for a step: the control it puts in force, what reports say of it, and how rank 0 tells the others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.errors import CodecError
from isentrope_wire.metrics import (
    CONTROL_MU_HIGH,
    CONTROL_MU_LOW,
    HOLD_DRIFT,
    HOLD_GAIN,
    HOLD_MU,
    HOLD_RESTING_POINT,
    HOLD_TARGET,
)


class HoldWord(StrEnum):
    """What the controller does in a step, in one word."""

    HOLDING = "holding"
    """The threshold in force is the one that the correction asks for."""
    SLEWING = "slewing"
    """On its way there: it moves only so far in a step."""
    LIMIT = "limit"
    """More would have to be clipped than mu_min, or the pushed max_fraction, lets it."""
    RESTING = "resting"
    """Nothing need be clipped."""
    SIDE = "side"
    """Nothing is clipped: it would take the side that is not allowed."""
    FALLBACK = "fallback"
    """The prediction can't be acted on: the method and thresholds that were pushed are in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The decision for one step."""

    version: int
    """Of the control that asked for it: under another one it counts for nothing."""
    word: HoldWord
    scope: Scope = Scope.ALL
    """`decreasing` or `increasing` with a threshold."""
    mu: float | None = None
    """Both thresholds, in standard deviations; None: nothing is clipped, or what was pushed is in force."""
    why: str = ""
    """For a person: what keeps it from holding; empty where nothing does."""
    gain: float | None = None
    drift: float | None = None
    resting_point: float | None = None
    """What it went by: of the newest step measured then, see `EntropyEstimate`. None: not known yet."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Action:
        """What `encode` wrote.

        Raises:
            CodecError: it is something else.
        """
        try:
            document = json.loads(content)
            return cls(
                version=int(document["version"]),
                word=HoldWord(document["word"]),
                scope=Scope(document["scope"]),
                mu=None if document["mu"] is None else float(document["mu"]),
                why=str(document["why"]),
                **{name: _number(document.get(name)) for name in ("gain", "drift", "resting_point")},
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CodecError(
                f"expected rank 0's decision on a held entropy, got {content[:80]!r} ({error})."
            ) from error


def _number(value: object) -> float | None:
    """Of an older checkpoint's action, which said nothing of what it went by: None."""
    return float(value) if isinstance(value, int | float) else None


def undecided(version: int) -> Action:
    """For the step in which a control takes effect before anybody could decide about it."""
    return Action(version=version, word=HoldWord.FALLBACK, why="Nothing is decided about this control yet.")


def clipping_method(pushed: Control) -> Method:
    """Whose thresholds are moved."""
    return Method.CLIP_V if pushed.method == Method.NONE else pushed.method


def control_under(action: Action | None, pushed: Control) -> Control:
    """The control that a step runs under: the pushed one, with the thresholds that the controller chose."""
    if action is None or action.word == HoldWord.FALLBACK or (action.mu is None and pushed.method == Method.NONE):
        return pushed
    return Control(
        method=clipping_method(pushed),
        mu_low=action.mu,
        mu_high=action.mu,
        scope=action.scope,
        parameters=pushed.parameters,
        hold=pushed.hold,
        reason=pushed.reason,
    )


def hold_scalars(action: Action | None, pushed: Control) -> dict[str, float]:
    """What a step's report says of it; nothing where nobody asked for an entropy to be held."""
    hold = pushed.held
    if action is None or hold is None:
        return {}
    in_force = control_under(action, pushed)
    numbers = {
        HOLD_TARGET: hold.target_entropy,
        HOLD_MU: action.mu,
        HOLD_GAIN: action.gain,
        HOLD_DRIFT: action.drift,
        HOLD_RESTING_POINT: action.resting_point,
        CONTROL_MU_LOW: in_force.mu_low,
        CONTROL_MU_HIGH: in_force.mu_high,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def hold_labels(action: Action | None) -> dict[str, str]:
    """The same in words."""
    if action is None:
        return {}
    return {"hold/state": str(action.word)} | ({"hold/why": action.why} if action.why else {})
