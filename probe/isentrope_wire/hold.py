"""A control's `hold` document: the entropy to hold, and the bounds within which thresholds may be moved for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from isentrope_wire.errors import ControlError
from isentrope_wire.finite_numbers import is_finite_number, shown

CHANGE_OF_TARGET = 0.05
"""Share of the target that a step may correct, where nothing else is said."""


class HoldSide(StrEnum):
    """Which way the entropy may be moved."""

    RAISE = "raise"
    """Only up: tokens whose update lowers entropy are clipped, and nothing is where there is entropy to spare."""
    LOWER = "lower"
    """Only down: tokens whose update raises entropy are clipped."""
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What a controller is told.

    Raises:
        ControlError: naming the field, what was expected and what came.
    """

    target_entropy: float
    """H* in nats: the mean entropy of a step's tokens that is wanted."""
    max_change_per_step: float | None = None
    """The largest correction that one step is to bring about, in nats. None: CHANGE_OF_TARGET of the target."""
    mu_min: float = 0.0
    """The lowest threshold allowed, in standard deviations: how hard may be clipped."""
    mu_max: float = 10.0
    """The highest one; where it would still be too low, nothing is clipped."""
    side: HoldSide = HoldSide.BOTH

    def __post_init__(self) -> None:
        object.__setattr__(self, "side", _side(self.side))
        object.__setattr__(self, "target_entropy", _above_zero("target_entropy", self.target_entropy))
        if self.max_change_per_step is not None:
            change = _above_zero("max_change_per_step", self.max_change_per_step)
            object.__setattr__(self, "max_change_per_step", change)
        for name in ("mu_min", "mu_max"):
            object.__setattr__(self, name, _threshold(name, getattr(self, name)))
        if self.mu_min > self.mu_max:
            raise ControlError(f"hold.mu_min must not lie above mu_max, got {self.mu_min:g} and {self.mu_max:g}.")

    @classmethod
    def from_document(cls, document: object) -> Hold:
        """Read the object that users send. Fields left out, and those that are null, keep their defaults.

        Raises:
            ControlError: no object, a field it does not have, or a value a field can't take.
        """
        if not isinstance(document, Mapping):
            raise ControlError(f"hold must be an object or null, got {document!r}.")
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in document if name not in known)
        if unknown:
            raise ControlError(f"hold has the fields {', '.join(known)}; got {', '.join(unknown)[:200]}.")
        given = {name: value for name, value in document.items() if value is not None}
        if "target_entropy" not in given:
            raise ControlError("hold needs target_entropy: the mean entropy to hold, in nats.")
        return cls(**given)

    def to_document(self) -> dict[str, object]:
        """As JSON takes it, with every default filled in: what a run was held by must not change with the defaults."""
        return {
            "target_entropy": self.target_entropy,
            "max_change_per_step": self.largest_change,
            "mu_min": self.mu_min,
            "mu_max": self.mu_max,
            "side": str(self.side),
        }

    @property
    def largest_change(self) -> float:
        """Of a step, in nats."""
        given = self.max_change_per_step
        return CHANGE_OF_TARGET * self.target_entropy if given is None else given


def _side(value: object) -> HoldSide:
    try:
        return HoldSide(str(value))
    except ValueError:
        raise ControlError(f"hold.side must be one of {', '.join(HoldSide)}; got {value!r}.") from None


def _above_zero(name: str, value: object) -> float:
    number = _finite(name, "nats", value)
    if number <= 0:
        raise ControlError(f"hold.{name} counts nats and must be above 0, got {value!r}.")
    return number


def _threshold(name: str, value: object) -> float:
    number = _finite(name, "standard deviations", value)
    if number < 0:
        raise ControlError(f"hold.{name} counts standard deviations and must not be negative, got {value!r}.")
    return number


def _finite(name: str, unit: str, value: object) -> float:
    if not is_finite_number(value):
        raise ControlError(f"hold.{name} counts {unit} and must be a finite number, got {shown(value)}.")
    return float(value)
