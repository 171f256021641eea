"""The control document: which intervention is in force, with which thresholds. Checked where it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeVar

from isentrope_wire.errors import ControlError

_E = TypeVar("_E", bound=StrEnum)


class Method(StrEnum):
    """Interventions known to the wire. A probe tells in its capabilities which of them it can carry out."""

    NONE = "none"
    CLIP_B = "clip_b"
    CLIP_V = "clip_v"
    CLIP_COV = "clip_cov"
    KL_COV = "kl_cov"
    SCORE_SIGN = "score_sign"
    TOP_ENTROPY = "top_entropy"


class Scope(StrEnum):
    """On which tokens the thresholds act."""

    NEGATIVE = "negative"
    """Tokens with A < 0."""
    POSITIVE = "positive"
    """Tokens with A > 0."""
    ALL = "all"
    DECREASING = "decreasing"
    """Tokens whose update lowers entropy: A * S_c > 0."""
    INCREASING = "increasing"
    """Tokens whose update raises entropy: A * S_c < 0."""


THRESHOLD_METHODS = frozenset({Method.CLIP_B, Method.CLIP_V})


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Control:
    """What a person or a controller asks of a running trainer.

    Raises:
        ControlError: naming the field, what was expected and what came.
    """

    method: Method
    mu_low: float | None
    """µ⁻: drop tokens whose score lies more than this many standard deviations below the centre. None: no lower side."""
    mu_high: float | None
    """µ⁺: the same above the centre. None: no upper side."""
    scope: Scope
    parameters: Mapping[str, object]
    hold: Mapping[str, object] | None
    reason: str

    def __init__(
        self,
        *,
        method: Method | str = Method.NONE,
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: Scope | str = Scope.ALL,
        parameters: Mapping[str, object] | None = None,
        hold: Mapping[str, object] | None = None,
        reason: str = "",
    ) -> None:
        # Written out so that users may pass the plain words of the JSON document.
        object.__setattr__(self, "method", _member(Method, "method", method))
        object.__setattr__(self, "scope", _member(Scope, "scope", scope))
        object.__setattr__(self, "mu_low", _threshold("mu_low", mu_low))
        object.__setattr__(self, "mu_high", _threshold("mu_high", mu_high))
        object.__setattr__(self, "parameters", {} if parameters is None else parameters)
        object.__setattr__(self, "hold", hold)
        object.__setattr__(self, "reason", reason)
        self._check()

    def _check(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise ControlError(f"parameters must be an object of names and values, got {self.parameters!r}.")
        if self.hold is not None and not isinstance(self.hold, Mapping):
            raise ControlError(f"hold must be an object or null, got {self.hold!r}.")
        if not isinstance(self.reason, str):
            raise ControlError(f"reason must be text, got {self.reason!r}.")
        thresholds_given = self.mu_low is not None or self.mu_high is not None
        if self.method in THRESHOLD_METHODS and not thresholds_given and self.hold is None:
            raise ControlError(
                f"{self.method} needs mu_low, mu_high or both, got neither: it would clip nothing. "
                "Give at least one, or use method none."
            )
        if self.method not in THRESHOLD_METHODS and thresholds_given:
            raise ControlError(
                f"mu_low and mu_high act only with {', '.join(sorted(THRESHOLD_METHODS))}, got method {self.method}. "
                "Leave them out, or choose one of these methods."
            )

    def to_document(self) -> dict[str, object]:
        """The control as the JSON object users send and read."""
        return {
            "method": str(self.method),
            "mu_low": self.mu_low,
            "mu_high": self.mu_high,
            "scope": str(self.scope),
            "parameters": dict(self.parameters),
            "hold": None if self.hold is None else dict(self.hold),
            "reason": self.reason,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Control:
        """Read the JSON object users send. Fields left out keep their defaults.

        Raises:
            ControlError: for a field no control has, or a value a field can't take.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(document) - known)
        if unknown:
            raise ControlError(f"A control has the fields {', '.join(sorted(known))}; got {', '.join(unknown)}.")
        return cls(**document)  # type: ignore[arg-type]  # checked field by field

    @property
    def capability(self) -> str:
        """What a probe must be able to do to carry this control out, as it stands in `RunStarted.capabilities`."""
        return "hold" if self.hold is not None else f"method:{self.method}"


def _member(kind: type[_E], name: str, value: object) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(kind)
        raise ControlError(f"{name} must be one of {known}; got {value!r}.") from None


def _threshold(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ControlError(f"{name} counts standard deviations and must be a number, got {value!r}.")
    if not math.isfinite(value) or value < 0:
        raise ControlError(
            f"{name} counts standard deviations and must be finite and not negative, got {value}. "
            "To clip nothing on that side, leave it out."
        )
    return float(value)
