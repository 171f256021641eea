"""The control document: a method with its thresholds, and the entropy to hold. Checked where it is built.

A control's `hold` document: the entropy to hold, and the bounds within which thresholds may be moved for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import (
    METHODS,
    Method,
    Value,
    checked_parameters,
    method_named,
    parameter_value,
    preset,
    threshold_methods,
    without_aliases,
)
from isentrope_wire.numbers import Answer, is_finite_number, shown

CHANGE_OF_TARGET = 0.05
"""Share of the target that a step may correct, where `max_change_per_step` is not given."""


class HoldSide(StrEnum):
    """Which way the entropy may be moved."""

    RAISE = "raise"
    """Only up: tokens whose update lowers entropy are clipped, and nothing is where there is entropy to spare."""
    LOWER = "lower"
    """Only down: tokens whose update raises entropy are clipped."""
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The entropy to hold, and the bounds for it.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
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
            object.__setattr__(self, name, _hold_threshold(name, getattr(self, name)))
        if self.mu_min > self.mu_max:
            raise ConfigurationError(f"hold.mu_min must not lie above mu_max, got {self.mu_min:g} and {self.mu_max:g}.")

    @classmethod
    def from_document(cls, document: object) -> Hold:
        """Read the object that users send. Fields not given, and those that are null, keep their defaults.

        Raises:
            ConfigurationError: no object, a field it does not have, or a value a field can't take.
        """
        if not isinstance(document, Mapping):
            raise ConfigurationError(f"hold must be an object or null, got {document!r}.")
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in document if name not in known)
        if unknown:
            raise ConfigurationError(f"hold has the fields {', '.join(known)}; got {', '.join(unknown)[:200]}.")
        given = {name: value for name, value in document.items() if value is not None}
        if "target_entropy" not in given:
            raise ConfigurationError("hold needs target_entropy: the mean entropy to hold, in nats.")
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
        raise ConfigurationError(f"hold.side must be one of {', '.join(HoldSide)}; got {value!r}.") from None


def _above_zero(name: str, value: object) -> float:
    number = _finite(name, "nats", value)
    if number <= 0:
        raise ConfigurationError(f"hold.{name} counts nats and must be above 0, got {value!r}.")
    return number


def _hold_threshold(name: str, value: object) -> float:
    number = _finite(name, "standard deviations", value)
    if number < 0:
        raise ConfigurationError(f"hold.{name} counts standard deviations and must not be negative, got {value!r}.")
    return number


def _finite(name: str, unit: str, value: object) -> float:
    if not is_finite_number(value):
        raise ConfigurationError(f"hold.{name} counts {unit} and must be a finite number, got {shown(value)}.")
    return float(value)


__all__ = ["Control", "Method", "Scope"]


class Scope(StrEnum):
    """On which tokens the method acts."""

    NEGATIVE = "negative"
    """Tokens with A < 0."""
    POSITIVE = "positive"
    """Tokens with A > 0."""
    ALL = "all"
    DECREASING = "decreasing"
    """Tokens whose update lowers entropy: A * S_c > 0."""
    INCREASING = "increasing"
    """Tokens whose update raises entropy: A * S_c < 0."""

    @property
    def label(self) -> str:
        """For a person."""
        return {
            Scope.NEGATIVE: "Negative samples (A < 0)",
            Scope.POSITIVE: "Positive samples (A > 0)",
            Scope.ALL: "All tokens",
            Scope.DECREASING: "Tokens that lower entropy",
            Scope.INCREASING: "Tokens that raise entropy",
        }[self]


LONGEST_REASON = 10_000
"""Characters of a control's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFields(Answer):
    """The control document: the fields that a request, a stored version and an answer of the REST API have in common."""

    method: str
    mu_low: float | None
    """µ⁻: drop tokens whose score lies more than this many standard deviations below the centre. None: no lower side."""
    mu_high: float | None
    """µ⁺: the same above the centre. None: no upper side."""
    scope: str
    """On which tokens the method acts: one of `Scope`."""
    parameters: Mapping[str, Any]
    """What was given of the method's own parameters (`methods`); read them with `value`, which knows the
    defaults. A `preset` among those given sets the others, and is not kept."""
    hold: Mapping[str, Any] | None
    """The entropy to hold by moving thresholds, as `Hold` writes it; None: the thresholds stay as given. While it can't
    be done, the method and thresholds beside it are active."""
    reason: str
    """Kept in the history."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Control(ControlFields):
    """What a person or a controller asks of a running trainer.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    method: Method
    scope: Scope
    parameters: Mapping[str, Value]

    def __init__(
        self,
        *,
        method: Method | str = Method.NONE,
        mu_low: float | None = None,
        mu_high: float | None = None,
        scope: Scope | str | None = None,
        parameters: Mapping[str, object] | None = None,
        hold: Mapping[str, object] | None = None,
        reason: str = "",
    ) -> None:
        # Written out so that users may pass the plain words of the JSON document.
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"parameters must be an object of names and values, got {parameters!r}.")
        method = method_named(method)
        named = _filled_in(method, mu_low, mu_high, scope, dict(parameters or {}))
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "scope", _scope(named["scope"]))
        object.__setattr__(self, "mu_low", _threshold("mu_low", named["mu_low"]))
        object.__setattr__(self, "mu_high", _threshold("mu_high", named["mu_high"]))
        object.__setattr__(self, "parameters", checked_parameters(method, named["parameters"]))
        object.__setattr__(self, "hold", None if hold is None else Hold.from_document(hold).to_document())
        object.__setattr__(self, "reason", reason)
        self._check()

    def _check(self) -> None:
        if self.hold is not None and not (self.method.thresholds or self.method == Method.NONE):
            raise ConfigurationError(
                f"hold moves the thresholds of {' or '.join(threshold_methods())}, got method {self.method}. "
                "Choose one of these methods, or none."
            )
        if not isinstance(self.reason, str):
            raise ConfigurationError(f"reason must be text, got {self.reason!r}.")
        if len(self.reason) > LONGEST_REASON:
            raise ConfigurationError(
                f"reason may have {LONGEST_REASON} characters, got {len(self.reason)}. Shorten it."
            )
        thresholds_given = self.mu_low is not None or self.mu_high is not None
        if self.method.thresholds and not thresholds_given and self.hold is None:
            raise ConfigurationError(
                f"{self.method} needs mu_low, mu_high or both, got neither: it would clip nothing. "
                "Give at least one, or use method none."
            )
        if not self.method.thresholds and thresholds_given:
            raise ConfigurationError(
                f"mu_low and mu_high act only with {', '.join(threshold_methods())}, got method {self.method}. "
                "Leave them out, or choose one of these methods."
            )
        self._check_parameters()

    def _check_parameters(self) -> None:
        if self.method == Method.CLIP_COV and self.number("omega_low") >= self.number("omega_high"):
            raise ConfigurationError(
                f"parameters.omega_low must lie below omega_high, got {self.value('omega_low')} and "
                f"{self.value('omega_high')}: no token's covariance lies between them."
            )
        if self.method.positive_only and self.scope == Scope.NEGATIVE:
            raise ConfigurationError(
                f"{self.method} acts on positive samples, with scope negative it would do nothing. "
                "Use scope all or positive, or another method."
            )

    def value(self, name: str) -> Value:
        """A parameter of the method: as given, else its default; None where the knob is off or not the method's."""
        return parameter_value(self.method, self.parameters, name)

    def number(self, name: str) -> float:
        """A parameter that is a number and on.

        Raises:
            ConfigurationError: it is off, or not the method's.
        """
        value = self.value(name)
        if not isinstance(value, int | float):
            raise ConfigurationError(f"The method {self.method} has no number {name}; it is {value!r}.")
        return float(value)

    def to_document(self) -> dict[str, object]:
        """The control as the JSON object users send and read."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Control:
        """Read the JSON object users send. Fields not given keep their defaults.

        Raises:
            ConfigurationError: for a field no control has, or a value a field can't take.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(document) - known)
        if unknown:
            raise ConfigurationError(f"A control has the fields {', '.join(sorted(known))}; got {', '.join(unknown)}.")
        return cls(**document)  # type: ignore[arg-type]  # checked field by field

    @property
    def held(self) -> Hold | None:
        """`hold` as a `Hold`; None where there is none."""
        return None if self.hold is None else Hold.from_document(self.hold)

    @property
    def capability(self) -> str:
        """What a probe must be able to do to carry this control out, as listed in `RunStarted.capabilities`."""
        return "hold" if self.hold is not None else f"method:{self.method}"


CAPABILITIES = (*(f"method:{name}" for name in METHODS), "hold")
"""Every `Control.capability` of this version: what a probe announces when its run starts."""


def _plain(value: object) -> object:
    if isinstance(value, str):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else value


def _scope(value: object) -> Scope:
    try:
        return Scope(str(value))
    except ValueError:
        raise ConfigurationError(f"scope must be one of {', '.join(Scope)}; got {value!r}.") from None


def _threshold(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} counts standard deviations and must be a number, got {value!r}.")
    if not is_finite_number(value) or value < 0:
        raise ConfigurationError(
            f"{name} counts standard deviations and must be finite and not negative, got {shown(value)}. "
            "To clip nothing on that side, leave it out."
        )
    return float(value)


def _filled_in(
    method: Method, mu_low: object, mu_high: object, scope: object, parameters: dict[str, object]
) -> dict[str, Any]:
    """The fields, with those not given set by a preset among the parameters; the preset itself is removed."""
    shorthand: Mapping[str, Any] = {}
    if "preset" in parameters:
        shorthand = preset(method, parameters.pop("preset"))
    parameters = without_aliases(method, parameters)
    thresholds_given = mu_low is not None or mu_high is not None
    return {
        # Both thresholds or none: a preset's lower side beside one's own upper side is neither.
        "mu_low": mu_low if thresholds_given else shorthand.get("mu_low"),
        "mu_high": mu_high if thresholds_given else shorthand.get("mu_high"),
        "scope": shorthand.get("scope", Scope.ALL) if scope is None else scope,
        "parameters": {**shorthand.get("parameters", {}), **parameters},
    }
